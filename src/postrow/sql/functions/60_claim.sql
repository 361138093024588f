-- The lanes of a queue that have free messages, by a loose index scan: about 15 microseconds a lane, however deep.
-- `ready`: its first message is due now; `next_due`: when that is. With `worker`, also lanes that hold only
-- messages targeted at it. Of the tenants behind `after_tenant`, up to `to_tenant`; null: from the first, to the last.
-- Who calls it: workers, on a deep pass. Locks nothing.
-- With a kept plan, unlike claims: without sorts only one index gives each step's order, so no statistics can mislead it, and
-- planning took four fifths of the time for an empty queue, which idle workers ask about all day.
create or replace function postrow.lanes(
    queue text, worker text default null, after_tenant text default null, to_tenant text default null
) returns table (tenant text, priority smallint, ready boolean, next_due timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := postrow.clock();
    v_after  text := coalesce(lanes.after_tenant, '');  -- none sorts before '' or behind '~'
    v_to     text := coalesce(lanes.to_tenant, '~');
begin
    return query
    with recursive free as (
        (select m.tenant, m.priority, m.available_at from postrow.message m
         where m.queue = lanes.queue and m.claim_token is null and m.target is null and not m.behind
            and m.tenant > v_after and m.tenant <= v_to
         order by m.tenant, m.priority, m.available_at limit 1)
        union all
        select n.* from free l cross join lateral (
            select m.tenant, m.priority, m.available_at from postrow.message m
            where m.queue = lanes.queue and m.claim_token is null and m.target is null and not m.behind
                and (m.tenant, m.priority) > (l.tenant, l.priority) and m.tenant <= v_to
            order by m.tenant, m.priority, m.available_at limit 1) n
    ), targeted as (
        (select m.tenant, m.priority, m.available_at from postrow.message m
         where m.queue = lanes.queue and m.claim_token is null and m.target = lanes.worker and not m.behind
            and m.tenant > v_after and m.tenant <= v_to
         order by m.tenant, m.priority, m.available_at limit 1)
        union all
        select n.* from targeted l cross join lateral (
            select m.tenant, m.priority, m.available_at from postrow.message m
            where m.queue = lanes.queue and m.claim_token is null and m.target = lanes.worker and not m.behind
                and (m.tenant, m.priority) > (l.tenant, l.priority) and m.tenant <= v_to
            order by m.tenant, m.priority, m.available_at limit 1) n
    )
    select u.tenant, u.priority, min(u.available_at) <= v_now, min(u.available_at)
    from (select * from free union all select * from targeted) u
    -- asked once, and only if there is a lane
    where not array['*', u.tenant] && coalesce((select (postrow.claim_rules(lanes.queue)).paused), '{}')
    group by u.tenant, u.priority order by u.tenant, u.priority;
end
$$

-- next
-- The same, without what lies before the watermarks of these lanes: `afters`, which claims returned as frontiers. Under a long
-- transaction vacuum removes nothing, and `lanes` walks all dead entries of a lane to its first message: with 700 in each of
-- 1,000 lanes it took 270 ms, this 14. Other lanes are looked for between these, from their beginning, or, without `others`,
-- are left out, which takes half the time. A watermark ahead of the
-- clock, which was set back, does not count. What was committed late, behind a watermark, only `lanes` finds.
-- Who calls it: workers, between claims. Locks nothing.
create or replace function postrow.lanes_ahead(
    queue text, tenants text[], priorities smallint[], afters timestamptz[], worker text default null,
    others boolean default true
) returns table (tenant text, priority smallint, ready boolean, next_due timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
declare
    v_now  timestamptz := postrow.clock();
begin
    if cardinality(lanes_ahead.tenants) is distinct from cardinality(lanes_ahead.priorities)
        or cardinality(lanes_ahead.tenants) is distinct from cardinality(lanes_ahead.afters) then
        perform postrow.refuse('tenants, priorities and afters are not of one length',
            'Give three arrays with one element for each lane; a null in afters starts at the beginning.');
    end if;
    return query
    with recursive marked as materialized (
        select k.tenant collate "C" as tenant, k.priority,
            case when k.after <= v_now then k.after else '-infinity' end as after
        from unnest(lanes_ahead.tenants, lanes_ahead.priorities, lanes_ahead.afters) k(tenant, priority, after)
    ), priorities as (  -- gaps between those of a tenant that are marked
        select k.tenant, k.priority::int as priority,
            lead(k.priority::int, 1, 32768) over (partition by k.tenant order by k.priority) as to_priority
        from marked k where lanes_ahead.others
        union all
        select k.tenant, -32769, min(k.priority) from marked k where lanes_ahead.others group by k.tenant
    ), tenants as (  -- and between tenants: none sorts before '' or behind '~'
        select e.tenant, lead(e.tenant, 1, '~') over (order by e.tenant) as to_tenant
        from (select '' collate "C" union select k.tenant from marked k) e(tenant) where lanes_ahead.others
    ), inside as (  -- each gap ends at one column: where two are compared Postgres 15 reads on
        select n.*, g.to_priority from priorities g cross join lateral (
            select m.tenant, m.priority, m.available_at from postrow.message m
            where m.queue = lanes_ahead.queue and m.claim_token is null and m.target is null and not m.behind
                and m.tenant = g.tenant and m.priority > g.priority and m.priority < g.to_priority
            order by m.priority, m.available_at limit 1) n
        union all
        select n.*, l.to_priority from inside l cross join lateral (
            select m.tenant, m.priority, m.available_at from postrow.message m
            where m.queue = lanes_ahead.queue and m.claim_token is null and m.target is null and not m.behind
                and m.tenant = l.tenant and m.priority > l.priority and m.priority < l.to_priority
            order by m.priority, m.available_at limit 1) n
    ), beside as (
        select n.*, g.to_tenant from tenants g cross join lateral (
            select m.tenant, m.priority, m.available_at from postrow.message m
            where m.queue = lanes_ahead.queue and m.claim_token is null and m.target is null and not m.behind
                and m.tenant > g.tenant and m.tenant < g.to_tenant
            order by m.tenant, m.priority, m.available_at limit 1) n
        union all
        select n.*, l.to_tenant from beside l cross join lateral (
            select m.tenant, m.priority, m.available_at from postrow.message m
            where m.queue = lanes_ahead.queue and m.claim_token is null and m.target is null and not m.behind
                and (m.tenant, m.priority) > (l.tenant, l.priority) and m.tenant < l.to_tenant
            order by m.tenant, m.priority, m.available_at limit 1) n
    ), targeted as (
        (select m.tenant, m.priority, m.available_at from postrow.message m
         where m.queue = lanes_ahead.queue and m.claim_token is null and m.target = lanes_ahead.worker and not m.behind
         order by m.tenant, m.priority, m.available_at limit 1)
        union all
        select n.* from targeted l cross join lateral (
            select m.tenant, m.priority, m.available_at from postrow.message m
            where m.queue = lanes_ahead.queue and m.claim_token is null and m.target = lanes_ahead.worker and not m.behind
                and (m.tenant, m.priority) > (l.tenant, l.priority)
            order by m.tenant, m.priority, m.available_at limit 1) n
    )
    select u.tenant, u.priority, min(u.available_at) <= v_now, min(u.available_at)
    from (
        select k.tenant, k.priority, n.available_at from marked k cross join lateral (
            select m.available_at from postrow.message m
            where m.queue = lanes_ahead.queue and m.tenant = k.tenant and m.priority = k.priority
                and m.claim_token is null and m.target is null and not m.behind and m.available_at >= k.after
            order by m.available_at limit 1) n
        union all select o.tenant, o.priority, o.available_at from inside o
        union all select o.tenant, o.priority, o.available_at from beside o
        union all select * from targeted) u
    where not array['*', u.tenant] && coalesce((select (postrow.claim_rules(lanes_ahead.queue)).paused), '{}')
    group by u.tenant, u.priority order by u.tenant, u.priority;
end
$$

-- next
-- Locks the first messages of one lane, in order of available_at, with skip locked: what everything rests on. With
-- `target`, that worker's own messages; else those of nobody in particular. Picking and marking are two statements,
-- as no setting is right for both: here the order has to come from an index (without one a sort would read the lane
-- whole), there a message has to be looked up by where it is. In one statement the planner may turn the join round and
-- read every message of a tenant, or lock more rows than the limit, when its statistics are old.
-- The plan is made at each call, with the values at hand: a plan kept from an empty table reads a full one whole.
-- Equality on queue, tenant and priority: runs on Citus. `sizes` only where `sized`. Groups in `shut` (`<tenant> <key>`) are
-- passed by. Internal.
create or replace function postrow.pick(
    queue text, tenant text, priority smallint, target text, after timestamptz, "limit" int, now timestamptz,
    sized boolean, shut text[] default null, out ids uuid[], out tids tid[], out dues timestamptz[], out sizes int[],
    out groups text[], out grouped boolean
)
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan
set enable_indexscan = on set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
begin
    select coalesce(array_agg(p.id), '{}'), coalesce(array_agg(p.ctid), '{}'), coalesce(array_agg(p.available_at), '{}'),
            coalesce(array_agg(p.size), '{}'), array_agg(p.group_key), coalesce(bool_or(p.group_key is not null), false)
        into ids, tids, dues, sizes, groups, grouped
    from (
        select m.id, m.ctid, m.available_at, m.group_key, case when pick.sized then octet_length(m.payload::text) end as size
        from postrow.message m
        where m.queue = pick.queue and m.tenant = pick.tenant and m.priority = pick.priority
            and m.claim_token is null and not m.behind
            and (pick.target is null and m.target is null or m.target = pick.target)
            and m.available_at <= pick.now and m.available_at >= coalesce(pick.after, '-infinity')
            and (m.expires_at is null or m.expires_at > pick.now)
            and (pick.shut is null or m.group_key is null or (m.tenant || ' ' || m.group_key) <> all (pick.shut))
        order by m.available_at
        limit pick."limit"
        for update skip locked
    ) p;
end
$$

-- next
-- Picks from one lane, and of what it finds in groups those whose turn it is, but for groups in `shut`. `held`: the groups of
-- what it gives. `frontier`: how far the lane was seen, null where something of a group had to be left; `more`: there may be
-- more than was asked for; `again`: it gives nothing, and could not look on. While it finds only messages that have to stand
-- back it sets up to 1,000 of them behind, and looks again past them, for 100 ms at most. Internal.
create or replace function postrow.pick_lane(
    queue text, tenant text, priority smallint, target text, worker text, after timestamptz, "limit" int, run int,
    now timestamptz, sized boolean, shut text[], out ids uuid[], out tids tid[], out dues timestamptz[], out sizes int[],
    out behinds boolean[], out frontier timestamptz, out more boolean, out again boolean, out grouped boolean, out held text[]
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_began   timestamptz := clock_timestamp();
    v_wide    boolean := false;
    v_left    boolean := false;
    v_parked  int := 0;
    v_most    int;
    v_picked  record;
    v_turn    record;
    v_count   int;
begin
    loop
        v_most := case when v_wide then greatest(pick_lane."limit", 1000) else pick_lane."limit" end;
        behinds := null;
        held := null;
        v_picked := postrow.pick(pick_lane.queue, pick_lane.tenant, pick_lane.priority, pick_lane.target, pick_lane.after,
            v_most, pick_lane.now, pick_lane.sized, shut);
        v_count := cardinality(v_picked.ids);
        ids := v_picked.ids;
        tids := v_picked.tids;
        dues := v_picked.dues;
        sizes := v_picked.sizes;
        grouped := v_picked.grouped;
        more := v_count >= v_most;
        frontier := case when more then v_picked.dues[v_count] else pick_lane.now end - interval '0.2 s';
        if grouped then
            v_turn := postrow.in_turn(pick_lane.queue, pick_lane.worker, pick_lane."limit", pick_lane.run, pick_lane.now,
                pick_lane.sized, array_fill(1, array[v_count]), array_fill(pick_lane.tenant, array[v_count]), ids, tids, dues,
                sizes, v_picked.groups);
            ids := v_turn.ids;
            tids := v_turn.tids;
            dues := v_turn.dues;
            sizes := v_turn.sizes;
            behinds := v_turn.behinds;
            held := v_turn.held;
            v_parked := v_parked + v_turn.parked;
            v_left := v_left or v_turn.skipped is not null;
            shut := shut || v_turn.shut;
        end if;
        if v_wide then
            if grouped then
                perform postrow.promote_held(pick_lane.queue, held, pick_lane.now);
            end if;
            v_wide := false;  -- within the limit now
            continue;
        end if;
        exit when not grouped;
        exit when ids <> '{}' or not more or v_turn.parked = 0 and v_turn.shut is null
            or clock_timestamp() - v_began > interval '100 ms';
        v_wide := true;
    end loop;
    if v_left then
        frontier := null;
    end if;
    again := ids = '{}' and more and v_parked > 0;
end
$$

-- next
-- How many of the first picked messages fit into `bytes` of payload text, null: all. `first`: one fits always.
-- Internal.
create or replace function postrow.fitting(sizes int[], bytes bigint, first boolean) returns int
language sql immutable parallel safe
as $$
select case when bytes is null then pg_catalog.cardinality(sizes) else greatest(count(*)
        filter (where s.total <= bytes), case when first and pg_catalog.cardinality(sizes) > 0 then 1 else 0 end)::int end
from (select pg_catalog.sum(u.size) over (order by u.n) as total
      from pg_catalog.unnest(case when bytes is not null then sizes end) with ordinality u(size, n)) s
$$

-- next
-- Marks picked messages as claimed, and gives them in the order of the lists; `frontiers` are those of the lanes, by their
-- numbers. The caller has locked them, so each is still where it was picked, at its tid, and is looked up there: with these
-- settings that is the one plan left, a loop over the lists, whatever the statistics say, so it is kept (70_settle.sql has
-- more of it). Two lists are unnested and the others looked into: each that is unnested costs a tenth of the update. `lease`
-- null: their consumer's, else 60 s. Who calls it: claim and claim_lanes. Internal.
create or replace function postrow.mark(
    lanes int[], tenants text[], ids uuid[], tids tid[], dues timestamptz[], frontiers timestamptz[], behinds boolean[],
    lease interval, worker text, token uuid, now timestamptz
) returns setof postrow.claimed
language plpgsql volatile set jit = off set plan_cache_mode = force_generic_plan
set enable_tidscan = on set enable_seqscan = off set enable_bitmapscan = off set enable_indexscan = off
set enable_indexonlyscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
    return query
    update postrow.message m
    set claim_token = mark.token, claimed_at = mark.now, claimed_by = mark.worker, attempt = m.attempt + 1,
        behind = coalesce(mark.behinds[w.n], false),
        available_at = mark.now + coalesce(mark.lease, postrow.lease_of(m.queue, m.tenant))
    from unnest(mark.tids, mark.tenants) with ordinality w(tid, tenant, n)
    where m.ctid = w.tid and m.tenant = w.tenant and m.id = mark.ids[w.n]
    returning mark.lanes[w.n], m.tenant, m.id, m.queue, m.priority, m.payload, m.headers, m.attempt, m.max_attempts,
        m.claim_token, m.claimed_at, m.available_at, mark.dues[w.n], m.enqueued_at, m.subject, m.target, m.group_key,
        m.topic, m.parent_id, m.hops, m.expires_at, m.failures, mark.frontiers[mark.lanes[w.n]], m.ctid;
end
$$

-- next
-- Whether anything free is targeted at `worker`. Most queues never have it, so this is asked at each claim with a kept
-- plan: there is one index for it, and no other scan. Internal.
create or replace function postrow.has_targeted(queue text, worker text) returns boolean
language plpgsql stable set jit = off set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    return exists (select from postrow.message m
        where m.queue = has_targeted.queue and m.target = has_targeted.worker and m.claim_token is null
            and not m.behind);
end
$$

-- next
-- Picks what is targeted at `worker`, lane after lane, of the tenants in `among`, null: all, but for those that are `paused`.
-- They are few: a laptop's own messages. `bytes` is what is left of `max_bytes`; `first`: the claim has given nothing yet, so
-- one fits always. Who calls it asks has_targeted first: this one's settings are a sixth of a claim of one message. Internal.
create or replace function postrow.pick_targeted(
    queue text, among text[], paused text[], worker text, "limit" int, run int, now timestamptz, max_bytes bigint,
    first boolean, out tenants text[], out ids uuid[], out tids tid[], out dues timestamptz[], out behinds boolean[], out bytes bigint
)
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan
set enable_indexscan = on set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
declare
    v_lane    record;
    v_picked  record;
    v_held    text[];
    v_fit     int;
begin
    tenants := '{}';
    ids := '{}';
    tids := '{}';
    dues := '{}';
    behinds := '{}';
    bytes := pick_targeted.max_bytes;
    if '*' = any (pick_targeted.paused) then
        return;
    end if;
    select m.tenant, m.priority into v_lane from postrow.message m
    where m.queue = pick_targeted.queue and m.target = pick_targeted.worker and m.claim_token is null and not m.behind
        and (pick_targeted.among is null or m.tenant = any (pick_targeted.among))
        and (pick_targeted.paused is null or m.tenant <> all (pick_targeted.paused))
    order by m.tenant, m.priority limit 1;
    while found and cardinality(ids) < pick_targeted."limit" and (bytes is null or bytes > 0) loop
        v_picked := postrow.pick_lane(pick_targeted.queue, v_lane.tenant, v_lane.priority, pick_targeted.worker,
            pick_targeted.worker, null, pick_targeted."limit" - cardinality(ids), pick_targeted.run, pick_targeted.now, bytes is not null,
            v_held);
        v_held := v_held || v_picked.held;  -- they are not marked yet: another lane must not give them again
        v_fit := postrow.fitting(v_picked.sizes, bytes, pick_targeted.first and ids = '{}');
        tenants := tenants || array_fill(v_lane.tenant, array[v_fit]);
        ids := ids || v_picked.ids[:v_fit];
        tids := tids || v_picked.tids[:v_fit];
        dues := dues || v_picked.dues[:v_fit];
        behinds := behinds || coalesce(v_picked.behinds[:v_fit], array_fill(false, array[v_fit]));
        bytes := bytes - (select coalesce(sum(u.size), 0) from unnest(v_picked.sizes[:v_fit]) u(size));  -- none may fit
        exit when v_fit < cardinality(v_picked.ids);
        select m.tenant, m.priority into v_lane from postrow.message m
        where m.queue = pick_targeted.queue and m.target = pick_targeted.worker and m.claim_token is null and not m.behind
            and (pick_targeted.among is null or m.tenant = any (pick_targeted.among))
            and (pick_targeted.paused is null or m.tenant <> all (pick_targeted.paused))
            and (m.tenant, m.priority) > (v_lane.tenant, v_lane.priority)
        order by m.tenant, m.priority limit 1;
    end loop;
end
$$

-- next
-- Refuses what is wrong with a claim's parameters. Asked in one expression first: each call of another function is a
-- twentieth of a claim of one message. Internal. Raises PW002, PW003.
create or replace function postrow.check_claim(
    queue text, "limit" int, lease interval, worker text, max_bytes bigint
) returns void
language plpgsql immutable
as $$
begin
    if postrow.valid_name(queue) and "limit" >= 1 and (lease is null or postrow.valid_lease(lease))
        and (worker is null or postrow.valid_name(worker)) and (max_bytes is null or max_bytes >= 1) then
        return;
    end if;
    perform postrow.check_name('queue', queue);
    perform postrow.check_limit('limit', "limit");
    perform postrow.check_lease(lease);
    if worker is not null then
        perform postrow.check_name('worker', worker);
    end if;
    if max_bytes is not null then
        perform postrow.check_limit('max_bytes', max_bytes);
    end if;
end
$$

-- next
-- Claims up to "limit" messages of a queue: of one tenant, or of all in turn. Who calls it: any language. Messages
-- targeted at `worker` come first, then lower priority numbers, oldest first in each lane; in one call of twenty the last
-- ones first, so that none starves (not after `set postrow.aging = off`). All tenants: lanes of one priority in random
-- order, each its share, then what is left over. `lease` null: the consumer's, else 60 s. `token`: the caller's, so that a lost answer can be given back by release_claim(token). `max_bytes`: of payload text, at least one message.
-- `after` starts each lane at a frontier that an earlier claim returned; with it every lane that was looked at and gave
-- none has a row with a null id, for its frontier; pass '-infinity' at first. Expired messages are skipped. Touches one
-- lane a statement, so it runs on Citus, and pays for it: about half a millisecond a lane.
-- Locks rows of postrow.message with skip locked: waits for nobody. Raises PW002, PW003.
create or replace function postrow.claim(
    queue text, "limit" int, tenant text default null, lease interval default null, worker text default null,
    token uuid default null, after timestamptz default null, max_bytes bigint default null
) returns setof postrow.claimed
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_custom_plan
set enable_indexscan = on set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
declare
    v_now       timestamptz := postrow.clock();
    v_token     uuid := coalesce(claim.token, gen_random_uuid());
    v_left      int := claim."limit";
    v_bytes     bigint := claim.max_bytes;
    v_rules     record := postrow.claim_rules(claim.queue);
    v_paused    text[] := v_rules.paused;
    -- one claim of twenty begins with the last priority, so that none starves
    v_turn      int := case when current_setting('postrow.aging', true) is distinct from 'off' and random() < 0.05
        then -1 else 1 end;
    v_lane      record;
    v_picked    record;
    v_share     int;
    v_fit       int;
    v_frontier  timestamptz;
    v_empty     postrow.claimed;
    v_at        int;
begin
    perform postrow.check_claim(claim.queue, claim."limit", claim.lease, claim.worker, claim.max_bytes);
    if claim.tenant is not null then
        perform postrow.check_name('tenant', claim.tenant);
    end if;
    if v_rules.limited then
        select array_agg(l.tenant order by l.n) as tenants, array_agg(l.priority order by l.n) as priorities,
                min(l.siblings) filter (where l.n = 1)::int as siblings
            into v_lane
        from (
            select l.tenant, l.priority, row_number() over (order by l.priority * v_turn, random()) as n,
                count(*) over (partition by l.priority) as siblings
            -- no other name is between the two: '~' sorts behind each character that a name may have
            from postrow.lanes(claim.queue, claim.worker, left(claim.tenant, -1) || chr(ascii(right(claim.tenant, 1)) - 1) || '~',
                claim.tenant) l
            where l.ready or claim.after is not null) l;
        for i in 1 .. least(coalesce(v_lane.siblings, 0), 2) loop  -- the fair share of each, then what is left
            v_at := 1;
            while v_at <= cardinality(v_lane.tenants) and v_left > 0 and (v_bytes is null or v_bytes > 0) loop
                for v_empty in
                    select * from postrow.claim_limited(claim.queue, v_lane.tenants[v_at:v_at + 255],
                        v_lane.priorities[v_at:v_at + 255],
                        array_fill(claim.after, array[least(256, cardinality(v_lane.tenants) - v_at + 1)]),
                        case when i = 1 then (v_left - 1) / v_lane.siblings + 1 else v_left end, v_left, claim.lease,
                        claim.worker, v_token, v_bytes, v_paused, v_now, v_left = claim."limit")
                loop
                    if v_empty.id is not null then
                        v_left := v_left - 1;
                        v_bytes := v_bytes - octet_length(v_empty.payload::text);
                    end if;
                    if v_empty.id is not null or claim.after is not null and i = 1 then
                        v_empty.lane := case when v_empty.lane > 0 then v_empty.lane + v_at - 1 else 0 end;
                        return next v_empty;
                    end if;
                end loop;
                v_at := v_at + 256;
            end loop;
            exit when v_left <= 0 or v_bytes <= 0;
        end loop;
        return;
    end if;
    if claim.worker is not null and postrow.has_targeted(claim.queue, claim.worker) then
        v_picked := postrow.pick_targeted(claim.queue, case when claim.tenant is not null then array[claim.tenant] end,
            v_paused, claim.worker, v_left, 100, v_now, v_bytes, true);
        v_fit := cardinality(v_picked.ids);
        if v_fit > 0 then
            return query
            select * from postrow.mark(array_fill(0, array[v_fit]), v_picked.tenants, v_picked.ids, v_picked.tids,
                v_picked.dues, null, v_picked.behinds, claim.lease, claim.worker, v_token, v_now);
            v_left := v_left - v_fit;
            v_bytes := v_picked.bytes;
        end if;
    end if;
    -- two rounds over the lanes: first the fair share of each, then what is left
    for v_lane in
        with recursive own as (
            (select m.priority, m.available_at from postrow.message m
             where m.queue = claim.queue and m.tenant = claim.tenant and m.claim_token is null
                and m.target is null and not m.behind
             order by m.priority, m.available_at limit 1)
            union all
            select n.* from own l cross join lateral (
                select m.priority, m.available_at from postrow.message m
                where m.queue = claim.queue and m.tenant = claim.tenant and m.claim_token is null
                    and m.target is null and not m.behind and m.priority > l.priority
                order by m.priority, m.available_at limit 1) n
        ), free as (
            select claim.tenant as tenant, o.priority, o.available_at <= v_now as ready from own o
            union all
            select l.tenant, l.priority, l.ready from postrow.lanes(claim.queue) l where claim.tenant is null
        ), numbered as (
            select f.tenant, f.priority, row_number() over (order by f.priority * v_turn, random())::int as lane,
                count(*) over (partition by f.priority)::int as siblings, f.ready
            from free f where (f.ready or claim.after is not null)
                and (v_paused is null or not (f.tenant = any (v_paused) or '*' = any (v_paused)))
        )
        select n.tenant, n.priority, n.lane, r.round,
            (n.siblings - (n.lane - min(n.lane) over (partition by n.priority)))::int as siblings
        from numbered n cross join (values (1), (2)) r(round)
        where n.siblings > 1 or r.round = 1
        order by n.priority * v_turn, r.round, n.lane
    loop
        exit when v_left <= 0 or v_bytes <= 0;
        -- the first round: what is left, over the lanes of this priority that are left; rounded up, without an overflow
        v_share := case when v_lane.round = 2 then v_left else (v_left - 1) / v_lane.siblings + 1 end;
        v_picked := postrow.pick_lane(claim.queue, v_lane.tenant, v_lane.priority, null, claim.worker, claim.after, v_share,
            100, v_now, v_bytes is not null, null);
        v_fit := postrow.fitting(v_picked.sizes, v_bytes, v_left = claim."limit");
        -- all of the lane was seen: the moment of the claim; else the last that was taken; less a trail of 0.2 s
        v_frontier := case
            when v_fit = cardinality(v_picked.ids) and (v_fit > 0 or not v_picked.more) then v_picked.frontier
            when v_fit > 0 and not v_picked.grouped then v_picked.dues[v_fit] - interval '0.2 s'
            else nullif(claim.after, '-infinity') end;  -- a client's clock may have no such moment
        if v_fit > 0 then  -- marked here and now: the second round must not pick them again
            return query
            select * from postrow.mark(array_fill(v_lane.lane, array[v_fit]), array_fill(v_lane.tenant, array[v_fit]),
                v_picked.ids[:v_fit], v_picked.tids[:v_fit], v_picked.dues[:v_fit],
                array_fill(v_frontier, array[1], array[v_lane.lane]), v_picked.behinds[:v_fit], claim.lease, claim.worker, v_token, v_now);
            v_left := v_left - v_fit;
            v_bytes := v_bytes - (select sum(u.size) from unnest(v_picked.sizes[:v_fit]) u(size));
        elsif claim.after is not null and v_lane.round = 1 then
            v_empty.lane := v_lane.lane;
            v_empty.tenant := v_lane.tenant;
            v_empty.queue := claim.queue;
            v_empty.priority := v_lane.priority;
            v_empty.frontier := v_frontier;
            return next v_empty;
        end if;
        if v_picked.grouped and v_fit < cardinality(v_picked.ids) then
            perform postrow.promote_held(claim.queue, v_picked.held, v_now);
        end if;
    end loop;
end
$$

-- next
-- Whether fewer than two other claims of the queue that have called this go on: then this is one, until the transaction ends.
-- Each claim steps over what others have locked and not committed yet, a row at a time, so the more of them at once, the more
-- each costs: 64 workers on two processors did little else. It does not wait: a session that waits keeps its snapshot, and all
-- walk over what is dead until the last of these is gone, which cost as much again. Who calls it: workers that are many, before
-- a claim of many messages.
create or replace function postrow.claim_turn(queue text) returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
select pg_try_advisory_xact_lock(1886613368, hashtext(queue) & -2) or pg_try_advisory_xact_lock(1886613368, hashtext(queue) | 1)
$$

-- next
-- Claims from many lanes: `tenants`, `priorities` and `afters` are lanes, `per_lane` the most that one lane gives (of a group
-- that it leads to: so many again), "limit" the most in all, in the order given. Who calls it: workers, on one server (a lateral lock does not run on
-- Citus). A row for each message, then one with null id for each lane that gave none; `lane` is its position from 1, and
-- 0 for messages of these tenants that are targeted at `worker`, which come first and count towards "limit". Every lane's
-- rows carry its new frontier: the moment of the claim if all of the lane was seen, the last available_at taken if not,
-- both less 0.2 s; the lane's own `after` where the limit was used up before it, null where it is paused. One statement picks and locks, one marks;
-- an idle queue pays for the first alone, a third of a millisecond. A thousand lanes take about 10 ms. Its plans are kept, unlike those
-- of pick: without sorts only one index gives a lane's order, so no statistics can mislead it, and planning took a third of a claim
-- of one message.
-- Locks rows of postrow.message with skip locked: waits for nobody. Raises PW002, PW003.
create or replace function postrow.claim_lanes(
    queue text, tenants text[], priorities smallint[], afters timestamptz[], per_lane int, "limit" int,
    lease interval default null, worker text default null, token uuid default null, max_bytes bigint default null
) returns setof postrow.claimed
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_generic_plan
set enable_indexscan = on set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
declare
    v_now        timestamptz := postrow.clock();
    v_token      uuid := coalesce(claim_lanes.token, gen_random_uuid());
    v_left       int := claim_lanes."limit";
    v_bytes      bigint := claim_lanes.max_bytes;
    v_count      int := coalesce(cardinality(claim_lanes.tenants), 0);
    v_rules      record := postrow.claim_rules(claim_lanes.queue);
    v_paused     text[] := v_rules.paused;
    v_own        record;
    v_lanes      int[];
    v_tenants    text[];
    v_ids        uuid[];
    v_tids       tid[];
    v_dues       timestamptz[];
    v_sizes      int[];
    v_size       bigint;         -- their sum
    v_picked     int;            -- how many were locked,
    v_fit        int;            -- and how many of them fit into max_bytes
    v_counts     int[];          -- of each lane: how many are taken,
    v_last       timestamptz[];  -- when the last of them was due,
    v_frontiers  timestamptz[];  -- and how far it was seen
    v_stop       int;
    v_groups     text[];
    v_grouped    boolean;        -- whether anything of a group was picked,
    v_turn       record;         -- and what came of that:
    v_behinds    boolean[];      -- who follows another of its group in this claim,
    v_skipped    int[];          -- and lanes in which something was left
    v_more       boolean := false;
    v_each       int;            -- how many are picked of a lane,
    v_most       int;            -- and in all:
    v_wide       boolean := false;  -- more than may be claimed, to set them behind
    v_shut       text[];         -- groups that are passed by
    v_parked     int := 0;
    v_cut        boolean := false;  -- whether max_bytes left any of v_turn out
    v_began      timestamptz := clock_timestamp();
    v_row        postrow.claimed;
begin
    perform postrow.check_claim(claim_lanes.queue, claim_lanes."limit", claim_lanes.lease, claim_lanes.worker,
        claim_lanes.max_bytes);
    if (claim_lanes.per_lane >= 1) is not true then
        perform postrow.check_limit('per_lane', claim_lanes.per_lane);
    end if;
    if cardinality(claim_lanes.tenants) is distinct from cardinality(claim_lanes.priorities)
        or cardinality(claim_lanes.tenants) is distinct from cardinality(claim_lanes.afters) then
        perform postrow.refuse('tenants, priorities and afters are not of one length',
            'Give three arrays with one element for each lane; a null in afters starts at the beginning.');
    end if;
    if v_rules.limited then
        return query
        select * from postrow.claim_limited(claim_lanes.queue, claim_lanes.tenants, claim_lanes.priorities,
            claim_lanes.afters, claim_lanes.per_lane, claim_lanes."limit", claim_lanes.lease, claim_lanes.worker, v_token,
            claim_lanes.max_bytes, v_paused, v_now, true);
        return;
    end if;
    if claim_lanes.worker is not null and postrow.has_targeted(claim_lanes.queue, claim_lanes.worker) then
        v_own := postrow.pick_targeted(claim_lanes.queue, claim_lanes.tenants, v_paused, claim_lanes.worker, v_left,
            100, v_now, v_bytes, true);
        if v_own.ids <> '{}' then
            return query
            select * from postrow.mark(array_fill(0, array[cardinality(v_own.ids)]), v_own.tenants, v_own.ids,
                v_own.tids, v_own.dues, null, v_own.behinds, claim_lanes.lease, claim_lanes.worker, v_token, v_now);
            v_left := v_left - cardinality(v_own.ids);
            v_bytes := case when v_own.bytes < 0 then 0 else v_own.bytes end;
        end if;
    end if;
    loop
        v_each := case when v_wide then greatest(claim_lanes.per_lane, 1000) else claim_lanes.per_lane end;
        v_most := case when v_wide then greatest(v_left, 1000) else v_left end;
        v_behinds := null;
        select coalesce(array_agg(p.n), '{}'), coalesce(array_agg(p.tenant), '{}'), coalesce(array_agg(p.id), '{}'),
                coalesce(array_agg(p.ctid), '{}'), coalesce(array_agg(p.available_at), '{}'), coalesce(array_agg(p.size), '{}'),
                sum(p.size), array_agg(p.group_key), coalesce(bool_or(p.group_key is not null), false)
            into v_lanes, v_tenants, v_ids, v_tids, v_dues, v_sizes, v_size, v_groups, v_grouped
        from (
            select l.n::int, p.* from unnest(claim_lanes.tenants, claim_lanes.priorities, claim_lanes.afters)
                with ordinality l(tenant, priority, after, n)
            cross join lateral (
                select m.tenant, m.id, m.ctid, m.available_at, m.group_key,
                    case when v_bytes is not null then octet_length(m.payload::text) end as size
                from postrow.message m
                where (v_paused is null or not (l.tenant = any (v_paused) or '*' = any (v_paused)))
                    and m.queue = claim_lanes.queue and m.tenant = l.tenant and m.priority = l.priority
                    and m.claim_token is null and m.target is null and not m.behind
                    and m.available_at <= v_now and m.available_at >= coalesce(l.after, '-infinity')
                    and (m.expires_at is null or m.expires_at > v_now)
                    and (v_shut is null or m.group_key is null or (m.tenant || ' ' || m.group_key) <> all (v_shut))
                order by m.available_at
                limit v_each
                for update skip locked
            ) p
            limit v_most
        ) p;
        v_picked := cardinality(v_ids);
        v_fit := v_picked;
        if v_size > v_bytes and (v_picked > 1 or v_left < claim_lanes."limit") then  -- the first fits always
            v_fit := postrow.fitting(v_sizes, v_bytes, v_left = claim_lanes."limit");
        end if;
        -- in loops, which cost less than the planning of a query: each lane was seen up to now, ...
        v_frontiers := array_fill(v_now - interval '0.2 s', array[v_count]);
        v_counts := array_fill(0, array[v_count]);
        for i in 1 .. v_fit loop
            v_counts[v_lanes[i]] := v_counts[v_lanes[i]] + 1;
            v_last[v_lanes[i]] := v_dues[i];
        end loop;
        if v_grouped then
            v_more := v_picked >= v_most or v_each = any (v_counts);
            v_turn := postrow.in_turn(claim_lanes.queue, claim_lanes.worker, v_left, least(claim_lanes.per_lane, 100),
                v_now, v_bytes is not null, v_lanes,
                v_tenants, v_ids, v_tids, v_dues, v_sizes, v_groups);
            v_parked := v_parked + v_turn.parked;
            v_behinds := v_turn.behinds;
            v_skipped := v_skipped || v_turn.skipped;
            v_shut := v_shut || v_turn.shut;
        end if;
        if v_wide then
            if v_grouped then
                perform postrow.promote_held(claim_lanes.queue, v_turn.held, v_now);
            end if;
            v_wide := false;  -- within the limits now
            continue;
        end if;
        -- found only messages that have to stand back: look past them, as pick_lane does
        exit when not v_grouped;
        exit when v_turn.ids <> '{}' or not v_more or v_turn.parked = 0 and v_turn.shut is null
            or clock_timestamp() - v_began > interval '100 ms';
        v_wide := true;
    end loop;
    -- ... but for the one in which the claim stopped, if it did, those behind it, and those that gave all they may
    v_stop := case when v_fit < v_picked then v_lanes[v_fit + 1]
        when v_picked >= v_most then coalesce(v_lanes[v_picked], 0) end;
    for i in 1 .. v_count loop
        if v_counts[i] > 0 and (v_counts[i] >= v_each or i = v_stop) then
            v_frontiers[i] := v_last[i] - interval '0.2 s';
        elsif i >= v_stop then
            v_frontiers[i] := nullif(claim_lanes.afters[i], '-infinity');
        end if;
        if i = any (v_skipped) then
            v_frontiers[i] := null;
        end if;
        if claim_lanes.tenants[i] = any (v_paused) or '*' = any (v_paused) then
            v_frontiers[i] := null;  -- what waits there was not seen
        end if;
    end loop;
    if v_grouped then
        v_lanes := v_turn.lanes;
        v_tenants := v_turn.tenants;
        v_ids := v_turn.ids;
        v_tids := v_turn.tids;
        v_dues := v_turn.dues;
        v_fit := cardinality(v_ids);
        if v_bytes is not null then
            v_fit := postrow.fitting(v_turn.sizes, v_bytes, v_left = claim_lanes."limit");
        end if;
        v_cut := v_fit < cardinality(v_ids);
        if v_cut then  -- who is left was seen, and is free
            v_frontiers := array_replace(claim_lanes.afters, '-infinity', null);
        end if;
        v_counts := array_fill(0, array[v_count]);
        for i in 1 .. v_fit loop
            v_counts[v_lanes[i]] := v_counts[v_lanes[i]] + 1;
        end loop;
    end if;
    if v_fit > 0 then
        return query
        select m.* from postrow.mark(v_lanes[:v_fit], v_tenants[:v_fit], v_ids[:v_fit], v_tids[:v_fit], v_dues[:v_fit],
            v_frontiers, v_behinds[:v_fit], claim_lanes.lease, claim_lanes.worker, v_token, v_now) m;
    end if;
    if v_cut then
        perform postrow.promote_held(claim_lanes.queue, v_turn.held, v_now);
    end if;
    for i in 1 .. v_count loop
        if v_counts[i] = 0 then
            v_row.lane := i;
            v_row.tenant := claim_lanes.tenants[i];
            v_row.queue := claim_lanes.queue;
            v_row.priority := claim_lanes.priorities[i];
            v_row.frontier := v_frontiers[i];
            if v_fit = 0 and v_more and v_parked > 0 then  -- there was no time to look on
                v_row.claimed_at := v_now;
                v_row.due_at := v_now;
            end if;
            return next v_row;
        end if;
    end loop;
end
$$

-- next
-- Gives back what a claim took whose answer was lost: all free again, at the front, no attempt spent. Gives the
-- number. Reads the claimed messages (there is no index by token: claims outnumber lost answers by far).
create or replace function postrow.release_claim(token uuid, queue text default null) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_tenants  text[];
    v_ids      uuid[];
begin
    if release_claim.token is null then
        perform postrow.refuse('token is null', 'Give the token that the claim was called with.');
    end if;
    select array_agg(m.tenant), array_agg(m.id) into v_tenants, v_ids
    from postrow.message m
    where m.claim_token = release_claim.token
        and (release_claim.queue is null or m.queue = release_claim.queue);
    return (select count(*) from postrow.release(coalesce(v_tenants, '{}'), coalesce(v_ids, '{}'),
        array_fill(release_claim.token, array[coalesce(cardinality(v_ids), 0)])) r where r.outcome = 'accepted');
end
$$
