-- The lanes of a queue that have free messages, by a loose index scan: about 15 microseconds a lane, however deep.
-- `ready`: its first message is due now; `next_due`: when that is. With `worker`, also lanes that hold only
-- messages targeted at it. With `handler`, without the lanes of tenants whose own consumer is another. Who calls it: workers, on a deep pass. Locks nothing.
create or replace function postrow.lanes(queue text, worker text default null, handler text default null)
returns table (tenant text, priority smallint, ready boolean, next_due timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
declare
    v_now  timestamptz := postrow.clock();
begin
    return query
    with recursive free as (
        (select m.tenant, m.priority, m.available_at from postrow.message m
         where m.queue = lanes.queue and m.claim_token is null and m.target is null
         order by m.tenant, m.priority, m.available_at limit 1)
        union all
        select n.* from free l cross join lateral (
            select m.tenant, m.priority, m.available_at from postrow.message m
            where m.queue = lanes.queue and m.claim_token is null and m.target is null
                and (m.tenant, m.priority) > (l.tenant, l.priority)
            order by m.tenant, m.priority, m.available_at limit 1) n
    ), targeted as (
        (select m.tenant, m.priority, m.available_at from postrow.message m
         where m.queue = lanes.queue and m.claim_token is null and m.target = lanes.worker
         order by m.tenant, m.priority, m.available_at limit 1)
        union all
        select n.* from targeted l cross join lateral (
            select m.tenant, m.priority, m.available_at from postrow.message m
            where m.queue = lanes.queue and m.claim_token is null and m.target = lanes.worker
                and (m.tenant, m.priority) > (l.tenant, l.priority)
            order by m.tenant, m.priority, m.available_at limit 1) n
    )
    select u.tenant, u.priority, min(u.available_at) <= v_now, min(u.available_at)
    from (select * from free union all select * from targeted) u
    where lanes.handler is null or not exists (
        select from postrow.consumer c
        where c.queue = lanes.queue and c.tenant = u.tenant and c.handler <> lanes.handler)
    group by u.tenant, u.priority order by u.tenant, u.priority;
end
$$

-- next
-- Claims up to "limit" messages of one lane: the statement that everything rests on. With `target`, that worker's
-- own messages; else those of nobody in particular. Without any, a row with a null id says how far it has seen. Rows are locked with skip locked in order of available_at;
-- `materialized` matters: with stale statistics `id in (select ... limit n for update skip locked)` takes more.
-- The plan is made at each call, with the values at hand: a plan kept from an empty table reads a full one whole.
-- Equality on queue, tenant and priority: runs on Citus. Internal; the callers have checked everything.
create or replace function postrow.claim_lane(
    lane int, queue text, tenant text, priority smallint, target text, after timestamptz, "limit" int,
    lease interval, worker text, token uuid, now timestamptz, max_bytes bigint, at_least_one boolean
) returns setof postrow.claimed
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
    return query
    with picked as materialized (
        select m.id, m.available_at,
            case when claim_lane.max_bytes is null then null else octet_length(m.payload::text) end as size
        from postrow.message m
        where m.queue = claim_lane.queue and m.tenant = claim_lane.tenant and m.priority = claim_lane.priority
            and m.claim_token is null
            and (claim_lane.target is null and m.target is null or m.target = claim_lane.target)
            and m.available_at <= claim_lane.now
            and m.available_at >= coalesce(claim_lane.after, '-infinity')
            and (m.expires_at is null or m.expires_at > claim_lane.now)
        order by m.available_at
        limit claim_lane."limit"
        for update skip locked
    ), claimed as (
        update postrow.message m
        set claim_token = claim_lane.token, claimed_at = claim_lane.now, claimed_by = claim_lane.worker,
            attempt = m.attempt + 1, available_at = claim_lane.now + claim_lane.lease
        from (select p.*, sum(p.size) over (order by p.available_at, p.id rows unbounded preceding) as total
              from picked p) f
        where m.tenant = claim_lane.tenant and m.id = f.id
            and (claim_lane.max_bytes is null or f.total <= claim_lane.max_bytes
                or claim_lane.at_least_one and f.total = f.size)
        returning m.*, f.available_at as due_at
    ), reached as (
        -- all of the lane was seen: the moment of the claim; else the last that was taken; less a trail of 0.2 s
        select case
            when claim_lane.target is not null then null
            when (select count(*) from picked) < claim_lane."limit"
                and (select count(*) from claimed) = (select count(*) from picked)
                then claim_lane.now - interval '0.2 s'
            when exists (select from claimed)
                then (select max(c.due_at) from claimed c) - interval '0.2 s'
            else claim_lane.after end as frontier
    )
    select claim_lane.lane, claim_lane.tenant, c.id, claim_lane.queue, claim_lane.priority, c.payload, c.headers,
        c.attempt, c.max_attempts, c.claim_token, c.claimed_at, c.available_at, c.due_at, c.enqueued_at,
        c.subject, c.target, c.group_key, c.topic, c.parent_id, c.hops, c.expires_at, c.failures, r.frontier
    from reached r left join claimed c on true
    where c.id is not null or claim_lane.target is null
    order by c.due_at, c.id;
end
$$

-- next
-- Claims what is targeted at `worker`, lane after lane. They are few: a laptop's own messages. Their rows have
-- lane 0 and no frontier. Internal.
create or replace function postrow.claim_targeted(
    queue text, tenant text, "limit" int, lease interval, worker text, token uuid, now timestamptz,
    max_bytes bigint
) returns setof postrow.claimed
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
declare
    v_left   int := claim_targeted."limit";
    v_bytes  bigint := claim_targeted.max_bytes;
    v_lane   record;
    v_row    postrow.claimed;
begin
    select m.tenant, m.priority into v_lane from postrow.message m
    where m.queue = claim_targeted.queue and m.target = claim_targeted.worker and m.claim_token is null
        and (claim_targeted.tenant is null or m.tenant = claim_targeted.tenant)
    order by m.tenant, m.priority limit 1;
    while found and v_left > 0 and (v_bytes is null or v_bytes > 0) loop
        for v_row in
            select * from postrow.claim_lane(0, claim_targeted.queue, v_lane.tenant, v_lane.priority,
                claim_targeted.worker, null, v_left,
                coalesce(claim_targeted.lease, postrow.lease_of(claim_targeted.queue, v_lane.tenant)),
                claim_targeted.worker, claim_targeted.token, claim_targeted.now, v_bytes,
                v_left = claim_targeted."limit")
        loop
            v_left := v_left - 1;
            if v_bytes is not null then
                v_bytes := v_bytes - octet_length(v_row.payload::text);
            end if;
            return next v_row;
        end loop;
        select m.tenant, m.priority into v_lane from postrow.message m
        where m.queue = claim_targeted.queue and m.target = claim_targeted.worker and m.claim_token is null
            and (claim_targeted.tenant is null or m.tenant = claim_targeted.tenant)
            and (m.tenant, m.priority) > (v_lane.tenant, v_lane.priority)
        order by m.tenant, m.priority limit 1;
    end loop;
end
$$

-- next
-- Refuses what is wrong with a claim's parameters. Internal. Raises PW002, PW003.
create or replace function postrow.check_claim(
    queue text, "limit" int, lease interval, worker text, max_bytes bigint
) returns void
language plpgsql immutable
as $$
begin
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
-- Claims up to "limit" messages of a queue: of one tenant, or of all in turn. Who calls it: any language; runs
-- on Citus. Messages targeted at `worker` come first, then lower priority numbers, oldest first in each lane. All tenants: lanes
-- of one priority in random order, each its share, then what is left over. `lease` null: the consumer's, else 60 s. `token`: the caller's,
-- so that a lost answer can be given back by release_claim(token). `max_bytes`: of payload text, at least one message.
-- `after` starts each lane at a frontier that an earlier claim returned; with it every lane that gave none
-- has a row with a null id, for its frontier; pass '-infinity' at first. Expired messages are skipped.
-- Locks rows of postrow.message with skip locked: waits for nobody. Raises PW002, PW003.
create or replace function postrow.claim(
    queue text, "limit" int, tenant text default null, lease interval default null, worker text default null,
    token uuid default null, after timestamptz default null, max_bytes bigint default null
) returns setof postrow.claimed
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := postrow.clock();
    v_token  uuid := coalesce(claim.token, gen_random_uuid());
    v_left   int := claim."limit";
    v_bytes  bigint := claim.max_bytes;
    v_lane   record;
    v_row    postrow.claimed;
    v_share  int;
begin
    perform postrow.check_claim(claim.queue, claim."limit", claim.lease, claim.worker, claim.max_bytes);
    if claim.tenant is not null then
        perform postrow.check_name('tenant', claim.tenant);
    end if;
    if claim.worker is not null then
        for v_row in
            select * from postrow.claim_targeted(claim.queue, claim.tenant, v_left, claim.lease, claim.worker,
                v_token, v_now, v_bytes)
        loop
            v_left := v_left - 1;
            v_bytes := v_bytes - octet_length(v_row.payload::text);
            return next v_row;
        end loop;
    end if;
    -- two rounds over the lanes: first the fair share of each, then what is left
    for v_lane in
        with recursive own as (
            (select m.priority, m.available_at from postrow.message m
             where m.queue = claim.queue and m.tenant = claim.tenant and m.claim_token is null
                and m.target is null
             order by m.priority, m.available_at limit 1)
            union all
            select n.* from own l cross join lateral (
                select m.priority, m.available_at from postrow.message m
                where m.queue = claim.queue and m.tenant = claim.tenant and m.claim_token is null
                    and m.target is null and m.priority > l.priority
                order by m.priority, m.available_at limit 1) n
        ), free as (
            select claim.tenant as tenant, o.priority, o.available_at <= v_now as ready from own o
            union all
            select l.tenant, l.priority, l.ready from postrow.lanes(claim.queue) l where claim.tenant is null
        ), numbered as (
            select f.tenant, f.priority, row_number() over (order by f.priority, random())::int as lane,
                count(*) over (partition by f.priority)::int as siblings, f.ready
            from free f where f.ready or claim.after is not null
        )
        select n.tenant, n.priority, n.lane, r.round,
            (n.siblings - (n.lane - min(n.lane) over (partition by n.priority)))::int as siblings
        from numbered n cross join (values (1), (2)) r(round)
        where n.siblings > 1 or r.round = 1
        order by n.priority, r.round, n.lane
    loop
        exit when v_left <= 0 or v_bytes <= 0;
        -- the first round: what is left, over the lanes of this priority that are left
        v_share := case when v_lane.round = 2 then v_left
            else (v_left - 1) / v_lane.siblings + 1 end;
        for v_row in
            select * from postrow.claim_lane(v_lane.lane, claim.queue, v_lane.tenant, v_lane.priority, null,
                claim.after, greatest(v_share, 1),
                coalesce(claim.lease, postrow.lease_of(claim.queue, v_lane.tenant)), claim.worker, v_token,
                v_now, v_bytes, v_left = claim."limit")
        loop
            continue when v_row.id is null and (claim.after is null or v_lane.round = 2);
            if v_row.id is not null then
                v_left := v_left - 1;
                v_bytes := v_bytes - octet_length(v_row.payload::text);
            end if;
            return next v_row;
        end loop;
    end loop;
end
$$

-- next
-- Claims from many lanes in one statement: `tenants`, `priorities` and `afters` are lanes, `per_lane` the most that one
-- lane gives, "limit" the most in all, in the order given. Who calls it: workers, on one server (a lateral lock does not run
-- on Citus). A row for each message, and one with null id for each lane that gave none; `lane` is its position from 1, and 0
-- for messages targeted at `worker`, which come first and count towards "limit". Every lane's rows carry its new frontier:
-- the moment of the claim if all of the lane was seen, the last available_at taken if not, both less 0.2 s; the lane's
-- own `after` where the limit was used up before it. Scans other than by index are switched off: with them a thousand lanes take
-- 242 ms, without 19 ms. Locks rows of postrow.message with skip locked. Raises PW002, PW003.
create or replace function postrow.claim_lanes(
    queue text, tenants text[], priorities smallint[], afters timestamptz[], per_lane int, "limit" int,
    lease interval default null, worker text default null, token uuid default null, max_bytes bigint default null
) returns setof postrow.claimed
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := postrow.clock();
    v_token  uuid := coalesce(claim_lanes.token, gen_random_uuid());
    v_left   int := claim_lanes."limit";
    v_bytes  bigint := claim_lanes.max_bytes;
    v_row    postrow.claimed;
begin
    perform postrow.check_claim(claim_lanes.queue, claim_lanes."limit", claim_lanes.lease, claim_lanes.worker,
        claim_lanes.max_bytes);
    perform postrow.check_limit('per_lane', claim_lanes.per_lane);
    if cardinality(claim_lanes.tenants) is distinct from cardinality(claim_lanes.priorities)
        or cardinality(claim_lanes.tenants) is distinct from cardinality(claim_lanes.afters) then
        perform postrow.refuse('tenants, priorities and afters are not of one length',
            'Give three arrays with one element for each lane; a null in afters starts at the beginning.');
    end if;
    if claim_lanes.worker is not null then
        for v_row in
            select * from postrow.claim_targeted(claim_lanes.queue, null, v_left, claim_lanes.lease,
                claim_lanes.worker, v_token, v_now, v_bytes)
        loop
            v_left := v_left - 1;
            v_bytes := v_bytes - octet_length(v_row.payload::text);
            return next v_row;
        end loop;
        v_bytes := case when v_bytes < 0 then 0 else v_bytes end;
    end if;
    return query
    with lane as materialized (
        select l.* from unnest(claim_lanes.tenants, claim_lanes.priorities, claim_lanes.afters)
            with ordinality l(tenant, priority, after, n)
    ), picked as materialized (
        select l.n, p.* from lane l cross join lateral (
            select m.tenant, m.id, m.available_at,
                case when v_bytes is null then null else octet_length(m.payload::text) end as size
            from postrow.message m
            where m.queue = claim_lanes.queue and m.tenant = l.tenant and m.priority = l.priority
                and m.claim_token is null and m.target is null
                and m.available_at <= v_now and m.available_at >= coalesce(l.after, '-infinity')
                and (m.expires_at is null or m.expires_at > v_now)
            order by m.available_at
            limit claim_lanes.per_lane
            for update skip locked
        ) p
        limit v_left
    ), claimed as (
        update postrow.message m
        set claim_token = v_token, claimed_at = v_now, claimed_by = claim_lanes.worker,
            attempt = m.attempt + 1,
            available_at = v_now + coalesce(claim_lanes.lease, postrow.lease_of(claim_lanes.queue, m.tenant))
        from (select p.*, sum(p.size) over (order by p.n, p.available_at, p.id rows unbounded preceding) as total
              from picked p) f
        where m.tenant = f.tenant and m.id = f.id
            and (v_bytes is null or f.total <= v_bytes or f.total = f.size and v_left = claim_lanes."limit")
        returning m.*, f.n, f.available_at as due_at
    ), reach as (
        select coalesce(max(p.n), 0) as n, count(*) >= v_left as full from picked p
    ), tally as (  -- one pass and no join: joins here could only be nested loops
        select u.n, max(u.tenant) as tenant, max(u.priority) as priority, max(u.after) as after,
            sum(u.picked) as picked, sum(u.taken) as taken, max(u.due_at) as last
        from (
            select l.n, l.tenant, l.priority, l.after, 0 as picked, 0 as taken, null::timestamptz as due_at from lane l
            union all select p.n, null, null, null, 1, 0, null from picked p
            union all select c.n, null, null, null, 0, 1, c.due_at from claimed c
        ) u group by u.n
    ), edge as materialized (
        select t.n, t.tenant, t.priority, t.taken, case
            when t.taken > 0 and (t.picked = claim_lanes.per_lane or t.taken < t.picked or r.full and t.n = r.n)
                then t.last - interval '0.2 s'
            when t.taken < t.picked or r.full and t.n > r.n then t.after
            else v_now - interval '0.2 s' end as frontier
        from tally t cross join reach r
    ), frontiers as (  -- by position: lanes are numbered from 1 without a gap; a null would slow the look-up
        select array_agg(coalesce(e.frontier, '-infinity') order by e.n) as list from edge e
    )
    select u.* from (
        select c.n::int, c.tenant, c.id, c.queue, c.priority, c.payload, c.headers, c.attempt, c.max_attempts,
            c.claim_token, c.claimed_at, c.available_at, c.due_at, c.enqueued_at, c.subject, c.target,
            c.group_key, c.topic, c.parent_id, c.hops, c.expires_at, c.failures,
            nullif(f.list[c.n], '-infinity') as frontier
        from claimed c cross join frontiers f
        union all
        select e.n::int, e.tenant, null, claim_lanes.queue, e.priority, null, null, null, null, null, null, null,
            null, null, null, null, null, null, null, null, null, null, e.frontier
        from edge e where e.taken = 0
    ) u order by u.n, u.due_at, u.id;
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
