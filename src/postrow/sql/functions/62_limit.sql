-- Limits: how many messages of a consumer, and of each tenant in it, are claimed at once (max_in_flight), and how many each
-- period (rate). Paid for by the queues that have one: a claim of theirs takes the queue's lock, counts the live leases and
-- fills the buckets up, so it is exact whoever claims; it never waits longer than 50 ms for another claim.

-- What a claim has to heed: the tenants that are paused, '*' for all, null for none; and whether any limit is set. Asked at
-- each claim and discovery, so with a kept plan: both tables have a few rows, and an index for what is looked for. Internal.
create or replace function postrow.claim_rules(queue text, out paused text[], out limited boolean)
language plpgsql stable set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    select (select array_agg(p.tenant) from postrow.pause p where p.queue in (claim_rules.queue, '*')),
            exists (select from postrow.consumer c where c.queue = claim_rules.queue
                and coalesce(c.max_in_flight, c.tenant_max_in_flight, c.rate, c.tenant_rate) is not null)
        into paused, limited;
end
$$

-- next
-- How many tokens a bucket has: `rate` at most, and at first; they come back evenly, `rate` in a period. Internal.
create or replace function postrow.tokens(rate int, period interval, had double precision, at timestamptz, now timestamptz)
returns double precision
language sql immutable parallel safe
as $$
select least(rate, coalesce(had, rate) + greatest(extract(epoch from now - at), 0) * rate / extract(epoch from period))
$$

-- next
-- The room of each of these tenants, in the order of the list: how many more messages may be claimed of it (`own`), and of
-- its consumer as a whole (`common`, the same for all with one `consumer`); without a limit 2,147,483,647. `own_rate`,
-- `common_rate`: what is in the buckets, null without a rate. `wait`: seconds until a bucket that is empty has a token. `run`: how
-- many messages of a group may come together: one, where those that wait would take the places of others in flight.
-- What is claimed counts until the sweep has taken it, since until then its token holds; a minute after its lease at most, where
-- nobody sweeps. The caller has the queue's lock, and takes a new snapshot. Internal.
create or replace function postrow.room(queue text, tenants text[], now timestamptz)
returns table (n int, tenant text, consumer text, own int, common int, own_rate double precision,
    common_rate double precision, wait double precision, run int)
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    return query
    with live as materialized (
        select m.tenant, count(*) as held, exists (select from postrow.consumer c
                where c.queue = room.queue and c.tenant = m.tenant) as has_own
        from postrow.message m
        where m.claim_token is not null and m.available_at > room.now - interval '1 minute' and m.queue = room.queue
        group by m.tenant
    )
    select u.n::int, u.tenant, c.tenant,
        greatest(least(c.tenant_max_in_flight - l.held, floor(r.own), 2147483647), 0)::int,
        greatest(least(c.max_in_flight - s.held, floor(r.common), 2147483647), 0)::int,
        r.own, r.common,
        greatest(case when r.own < 1 then (1 - r.own) * extract(epoch from c.tenant_rate_period) / c.tenant_rate end,
            case when r.common < 1 then (1 - r.common) * extract(epoch from c.rate_period) / c.rate end)::double precision,
        case when coalesce(c.max_in_flight, c.tenant_max_in_flight) is null then 100 else 1 end
    from unnest(room.tenants) with ordinality u(tenant, n)
    left join lateral postrow.consumer_of(room.queue, u.tenant) c on true
    cross join lateral (select coalesce(sum(l.held), 0) as held from live l where l.tenant = u.tenant) l
    cross join lateral (select coalesce(sum(l.held), 0) as held from live l
        where case when c.tenant = '*' then not l.has_own else l.tenant = u.tenant end) s
    left join postrow.bucket b on b.queue = room.queue and b.scope = 'tenant' and b.tenant = u.tenant
    left join postrow.bucket w on w.queue = room.queue and w.scope = 'consumer' and w.tenant = c.tenant
    cross join lateral (select
        case when c.tenant_rate is not null then postrow.tokens(c.tenant_rate, c.tenant_rate_period, b.tokens, b.at, room.now)
        end as own,
        case when c.rate is not null then postrow.tokens(c.rate, c.rate_period, w.tokens, w.at, room.now) end as common) r
    order by u.n;
end
$$

-- next
-- claim_lanes for a queue with limits, one lane after the other: what a lane may give is the least of per_lane, what is left
-- of "limit", and the room of its tenant and of its consumer. A lane for which there was no room has a row with a null id, a
-- null frontier, and in due_at (claimed_at: now) the moment to look again: when there is a token, if it waits for a rate; else,
-- as nobody knows, in 250 ms; tap_room tells sooner.
-- Another claim of the queue that takes longer than 50 ms: nothing, and due_at is 5 ms from now. `first`: the claim that this is
-- a part of has given nothing yet, so one message fits into `max_bytes` always. Internal. Raises PW003.
create or replace function postrow.claim_limited(
    queue text, tenants text[], priorities smallint[], afters timestamptz[], per_lane int, "limit" int, lease interval,
    worker text, token uuid, max_bytes bigint, paused text[], now timestamptz, first boolean
) returns setof postrow.claimed
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_left       int := claim_limited."limit";
    v_bytes      bigint := claim_limited.max_bytes;
    v_locked     boolean := false;
    v_names      text[] := array(select distinct t from unnest(claim_limited.tenants) t);
    v_consumers  text[];              -- by tenant: who handles it, '' for nobody,
    v_own        int[];               -- how much room there is,
    v_common     int[];               -- and in all for that consumer, counted down at its first tenant only
    v_own_rate   double precision[];  -- what the buckets hold
    v_rate       double precision[];
    v_waits      double precision[];
    v_runs       int[];
    v_taken      int[];
    v_picked     record;
    v_share      int;
    v_fit        int;
    v_room       int;
    v_ahead      int[];               -- by consumer: its lanes of this priority that are left, for their shares of v_common
    v_places     bigint[];            -- by lane: its tenant's place in the lists
    v_firsts     bigint[];            -- by tenant: the place of the first with the same consumer
    v_t          int;                 -- the tenant's place in the lists,
    v_c          int;                 -- and that of the first with the same consumer
    v_row        postrow.claimed;
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        perform postrow.refuse(format('queue %s has a limit, and this transaction is %s', claim_limited.queue,
            upper(current_setting('transaction_isolation'))), 'Claim in READ COMMITTED.');
    end if;
    for i in 1 .. 50 loop
        v_locked := pg_try_advisory_xact_lock(1886613366, hashtext(claim_limited.queue));
        exit when v_locked;
        perform pg_sleep(0.001);
    end loop;
    -- read again, under the lock: buckets that claims wrote out of the order of their moments would fill up twice
    now := greatest(now, postrow.clock());
    if v_locked then  -- where the clock was set back, they fill up from now on
        update postrow.bucket b set at = claim_limited.now
        where b.queue = claim_limited.queue and b.at > claim_limited.now
            and (b.scope = 'consumer' or b.tenant = any (v_names));
    end if;
    select array_agg(coalesce(r.consumer, '') order by r.n), array_agg(r.own order by r.n),
            array_agg(r.common order by r.n), array_agg(r.own_rate order by r.n), array_agg(r.common_rate order by r.n),
            array_agg(r.wait order by r.n), array_agg(r.run order by r.n), array_agg(0)
        into v_consumers, v_own, v_common, v_own_rate, v_rate, v_waits, v_runs, v_taken
    from postrow.room(claim_limited.queue, v_names, claim_limited.now) r;
    if not v_locked then
        v_left := 0;
    elsif claim_limited.worker is not null and postrow.has_targeted(claim_limited.queue, claim_limited.worker) then
        for t in 1 .. cardinality(v_names) loop
            v_c := array_position(v_consumers, v_consumers[t]);
            v_share := least(v_left, v_own[t], v_common[v_c]);
            continue when v_share <= 0 or v_bytes <= 0;
            v_picked := postrow.pick_targeted(claim_limited.queue, v_names[t:t], claim_limited.paused,
                claim_limited.worker, v_share, v_runs[t], claim_limited.now, v_bytes,
                claim_limited.first and v_left = claim_limited."limit");
            v_fit := cardinality(v_picked.ids);
            continue when v_fit = 0;
            return query
            select * from postrow.mark(array_fill(0, array[v_fit]), v_picked.tenants, v_picked.ids, v_picked.tids,
                v_picked.dues, null, v_picked.behinds, claim_limited.lease, claim_limited.worker, claim_limited.token,
                claim_limited.now);
            v_left := v_left - v_fit;
            v_bytes := v_picked.bytes;
            v_own[t] := v_own[t] - v_fit;
            v_common[v_c] := v_common[v_c] - v_fit;
            v_taken[t] := v_taken[t] + v_fit;
        end loop;
    end if;
    select array_agg(n.n order by l.n) into v_places
    from unnest(claim_limited.tenants) with ordinality l(tenant, n) join unnest(v_names) with ordinality n(tenant, n) using (tenant);
    select array_agg(c.n order by t.n) into v_firsts
    from unnest(v_consumers) with ordinality t(consumer, n)
    join (select u.consumer, min(u.n) as n from unnest(v_consumers) with ordinality u(consumer, n) group by u.consumer) c
        using (consumer);
    for i in 1 .. coalesce(cardinality(claim_limited.tenants), 0) loop
        v_t := v_places[i];
        v_c := v_firsts[v_t];
        v_room := case when not v_locked or v_names[v_t] = any (claim_limited.paused) or '*' = any (claim_limited.paused) then 0
            else least(v_own[v_t], v_common[v_c]) end;
        if claim_limited.priorities[i] is distinct from claim_limited.priorities[i - 1] then
            v_ahead := array_fill(0, array[cardinality(v_names)]);
            for j in i .. cardinality(claim_limited.tenants) loop
                exit when claim_limited.priorities[j] <> claim_limited.priorities[i];
                v_share := v_firsts[v_places[j]];
                v_ahead[v_share] := v_ahead[v_share] + 1;
            end loop;
        end if;
        v_share := least(claim_limited.per_lane, v_left, v_room, (v_common[v_c] - 1) / v_ahead[v_c] + 1);
        v_ahead[v_c] := v_ahead[v_c] - 1;
        v_row.lane := i;
        v_row.tenant := v_names[v_t];
        v_row.queue := claim_limited.queue;
        v_row.priority := claim_limited.priorities[i];
        v_row.frontier := case when v_room > 0 then nullif(claim_limited.afters[i], '-infinity') end;
        v_row.claimed_at := claim_limited.now;
        v_row.due_at := case when not v_locked then claim_limited.now + interval '5 ms'
            when least(v_own[v_t], v_common[v_c]) <= 0
                then claim_limited.now + make_interval(secs => coalesce(v_waits[v_t], 0.25)) end;
        if v_share > 0 and (v_bytes is null or v_bytes > 0) then
            v_picked := postrow.pick_lane(claim_limited.queue, v_names[v_t], claim_limited.priorities[i], null,
                claim_limited.worker, claim_limited.afters[i], v_share, v_runs[v_t], claim_limited.now,
                v_bytes is not null, null);
            v_fit := postrow.fitting(v_picked.sizes, v_bytes,
                claim_limited.first and v_left = claim_limited."limit");
            if v_fit = cardinality(v_picked.ids) then
                v_row.frontier := v_picked.frontier;
            end if;
            if v_fit > 0 then
                return query
                select * from postrow.mark(array_fill(i, array[v_fit]), array_fill(v_names[v_t], array[v_fit]),
                    v_picked.ids[:v_fit], v_picked.tids[:v_fit], v_picked.dues[:v_fit],
                    array_fill(v_row.frontier, array[1], array[i]), v_picked.behinds[:v_fit], claim_limited.lease,
                    claim_limited.worker, claim_limited.token, claim_limited.now);
                v_left := v_left - v_fit;
                v_bytes := v_bytes - (select sum(u.size) from unnest(v_picked.sizes[:v_fit]) u(size));
                v_own[v_t] := v_own[v_t] - v_fit;
                v_common[v_c] := v_common[v_c] - v_fit;
                v_taken[v_t] := v_taken[v_t] + v_fit;
            elsif v_picked.again then
                v_row.due_at := claim_limited.now;
            end if;
            if v_picked.grouped and v_fit < cardinality(v_picked.ids) then
                perform postrow.promote_held(claim_limited.queue, v_picked.held, claim_limited.now);
            end if;
            continue when v_fit > 0;
        end if;
        return next v_row;
    end loop;
    insert into postrow.bucket (queue, scope, tenant, tokens, at)
    select claim_limited.queue, s.scope, s.tenant, s.had - s.taken, claim_limited.now
    from (
        select 'tenant' as scope, u.tenant, u.had, u.taken from unnest(v_names, v_own_rate, v_taken) u(tenant, had, taken)
        where u.had is not null and u.taken > 0
        union all
        select 'consumer', u.consumer, max(u.had), sum(u.taken)
        from unnest(v_consumers, v_rate, v_taken) u(consumer, had, taken)
        where u.had is not null and u.taken > 0 group by u.consumer
    ) s
    on conflict (queue, scope, tenant) do update set tokens = excluded.tokens, at = excluded.at;
end
$$

-- next
-- Taps the workers of what has messages in flight no more, where a limit may have kept others back. Internal; called by all
-- that settles.
create or replace function postrow.tap_room(queues text[], tenants text[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
    if exists (select from postrow.consumer c where coalesce(c.max_in_flight, c.tenant_max_in_flight) is not null) then
        perform postrow.tap(u.queue, u.tenant)
        from (select distinct f.queue, f.tenant from unnest(tap_room.queues, tap_room.tenants) f(queue, tenant)) u
        cross join lateral postrow.consumer_of(u.queue, u.tenant) c
        where coalesce(c.max_in_flight, c.tenant_max_in_flight) is not null;
    end if;
end
$$
