-- Groups: messages of a tenant's queue with one group_key are handled one after the other, oldest first (enqueued_at, then
-- id), and by one worker at a time. There is no row for a group. The order is that of the index message_group; a group is
-- held while a message of it is claimed. A claim that meets a message whose turn has not come sets it `behind`, out of the
-- indexes that claims read, and what takes away the message in front of it (promote) sets the next one free. Whether a group
-- is held is asked under a lock, since two claims may meet different messages of it: one that was committed late stands first.

-- Of the messages that a claim has locked, those whose turn it is, and what follows them in their groups: runs of up to `run`
-- each and "limit" in all, first what is of no group, then the head of each, then each one's second, and so on. Who has failed
-- before comes alone. `behinds`: which of them follow another of this claim. The others are set behind (`parked`: how
-- many), where what is in front of them can be locked: who takes that away waits, and then sees them. `skipped`: the lanes
-- of those that could be neither. `held` and `shut`: the groups, `<tenant> <key>`, of which something comes, and those of
-- which all was left, as others have them, or what is in front. Locks: of the groups, one of 1,024 each, until the
-- transaction's end, never waiting; in REPEATABLE READ that would prove nothing, so it is refused there. Internal. Raises PW003.
create or replace function postrow.in_turn(
    queue text, worker text, "limit" int, run int, now timestamptz, sized boolean, inout lanes int[], inout tenants text[],
    inout ids uuid[], inout tids tid[], inout dues timestamptz[], inout sizes int[], groups text[],
    out behinds boolean[], out parked int, out skipped int[], out held text[], out shut text[]
)
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan
set enable_indexscan = on set enable_tidscan = on set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = on set enable_sort = off
as $$
#variable_conflict use_column
declare
    v_blocks   boolean := exists (select from postrow.consumer c where c.queue = in_turn.queue and c.on_dead = 'block');
    v_lanes    int[];
    v_tenants  text[];  -- the groups: whose,
    v_keys     text[];  -- and their keys
    v_run      int;
    v_plain    int;
    v_taken    record;  -- what it gets, and the first messages of the groups that give nothing
    v_fronts   int[];   -- groups whose first message, or dead letter, is locked by us: nothing passes it unseen
    v_keep     tid[];
    v_last     int := cardinality(in_turn.groups);
    v_behind   tid[];
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        perform postrow.refuse(format('queue %s has messages with a group_key, and this transaction is %s', in_turn.queue,
            upper(current_setting('transaction_isolation'))), 'Claim in READ COMMITTED.');
    end if;
    select coalesce(array_agg(g.lane order by g.n), '{}'), coalesce(array_agg(g.tenant order by g.n), '{}'),
            coalesce(array_agg(g.key order by g.n), '{}')
        into v_lanes, v_tenants, v_keys
    from (
        select min(c.n) as n, min(c.lane) as lane, c.tenant, c.key
        from unnest(in_turn.lanes, in_turn.tenants, in_turn.groups) with ordinality c(lane, tenant, key, n)
        where c.key is not null group by c.tenant, c.key) g
    where pg_try_advisory_xact_lock(1886613365, hashtext(in_turn.queue || ' ' || g.tenant || ' ' || g.key) & 1023);
    select least(count(*), in_turn."limit") into v_plain from unnest(in_turn.groups) u where u is null;
    v_run := least(in_turn.run, ceil((in_turn."limit" - v_plain)::numeric / greatest(cardinality(v_keys), 1)));
    -- a new snapshot: it has all that was committed by who had these locks before
    select array_agg(j.lane order by j.k, j.n) filter (where j.gets) as lanes,
            array_agg(j.tenant order by j.k, j.n) filter (where j.gets) as tenants,
            array_agg(j.id order by j.k, j.n) filter (where j.gets) as ids,
            array_agg(j.tid order by j.k, j.n) filter (where j.gets) as tids,
            array_agg(j.available_at order by j.k, j.n) filter (where j.gets) as dues,
            array_agg(j.size order by j.k, j.n) filter (where j.gets) as sizes,
            array_agg(j.k > 1 order by j.k, j.n) filter (where j.gets) as behinds,
            coalesce(array_agg(j.n) filter (where j.k = 1 and j.gets), '{}') as heads,
            coalesce(array_agg(j.n) filter (where j.k = 1 and not j.gets), '{}') as shut,
            coalesce(array_agg(j.tid) filter (where j.k = 1 and not j.gets), '{}') as firsts,
            coalesce(array_agg(j.n) filter (where j.k = 1 and j.blocked), '{}') as blocked
        into v_taken
    from (
        select w.*, w.mine and row_number() over (order by not w.mine, w.k, w.n) <= in_turn."limit" - v_plain as gets
        from (
            select l.*, bool_and(o.held is not null) over (partition by l.n order by l.k) as mine
            from (
                select g.lane, g.tenant, g.n, r.*,
                    b.blocked,
                    bool_and(r.ready and (r.k = 1 or r.fresh)) over (partition by g.n order by r.k) and not b.blocked as fit
                from unnest(v_lanes, v_tenants, v_keys) with ordinality g(lane, tenant, key, n)
                -- whether its dead letters block it, then one that has expired does, too; and whether there is any
                cross join lateral (select v_blocks
                    and (postrow.consumer_of(in_turn.queue, g.tenant)).on_dead is not distinct from 'block' as blocks) a
                cross join lateral (select a.blocks, a.blocks
                    and exists (select from postrow.dead_letter d where d.queue = in_turn.queue
                        and d.tenant = g.tenant and d.group_key = g.key and d.resolved_at is null) as blocked) b
                cross join lateral (
                    select m.id, m.tid, m.available_at, m.size, m.ready, row_number() over () as k,
                        max(m.attempt) over (rows unbounded preceding) = 0 as fresh
                    from (
                        select m.id, m.ctid as tid, m.available_at, m.attempt,
                            case when in_turn.sized then octet_length(m.payload::text) end as size,
                            m.claim_token is null and m.available_at <= in_turn.now
                                and (m.expires_at is null or m.expires_at > in_turn.now)
                                and (m.target is null or m.target is not distinct from in_turn.worker) as ready
                        from postrow.message m
                        where m.queue = in_turn.queue and m.tenant = g.tenant and m.group_key = g.key
                            and (m.claim_token is not null or m.expires_at is null or m.expires_at > in_turn.now or b.blocks)
                        order by (m.claim_token is null), m.enqueued_at, m.id
                        limit v_run) m
                ) r
            ) l
            left join lateral (
                -- the condition is inside: what does not come must not be locked, or promote would pass it by
                select true as held from postrow.message m where l.fit and m.ctid = l.tid and m.claim_token is null
                for update skip locked) o on true
        ) w
    ) j;

    -- the others: what stands in front is ours, or is locked now, so that nobody takes it away unseen; a dead letter is, too
    v_fronts := v_taken.heads;
    if v_taken.shut <> '{}' then
        v_fronts := v_fronts || array(
            select f.n from unnest(v_taken.shut, v_taken.firsts) f(n, tid)
            where (select bool_or(true) from (select from postrow.message m where m.ctid = f.tid for key share skip locked) o));
        if v_taken.blocked <> '{}' then
            v_fronts := array(select n from unnest(v_fronts) n where n <> all (v_taken.blocked)
                or (select bool_or(true) from (select from postrow.dead_letter d where d.queue = in_turn.queue
                    and d.tenant = v_tenants[n] and d.group_key = v_keys[n] and d.resolved_at is null
                    limit 1 for key share skip locked) o));
        end if;
    end if;
    -- but for who is first himself, and was more than the limit
    v_keep := array(select f.tid from unnest(v_taken.shut, v_taken.firsts) f(n, tid) where f.n <> all (v_taken.blocked));
    select coalesce(array_agg(c.tid) filter (where g.n = any (v_fronts) and c.tid <> all (v_keep)), '{}'),
            array_agg(distinct c.lane) filter (where (g.n = any (v_fronts) and c.tid <> all (v_keep)) is not true),
            array_agg(distinct c.tenant || ' ' || c.key) filter (where (g.n = any (v_fronts)) is not true
                and c.tid <> all (v_keep))
        into v_behind, skipped, shut
    from unnest(in_turn.lanes, in_turn.tenants, in_turn.tids, in_turn.groups) c(lane, tenant, tid, key)
    left join unnest(v_tenants, v_keys) with ordinality g(tenant, key, n) on g.tenant = c.tenant and g.key = c.key
    where c.key is not null and (c.tid = any (v_taken.tids)) is not true;
    if v_behind <> '{}' then
        update postrow.message m set behind = true where m.ctid = any (v_behind);
    end if;
    parked := cardinality(v_behind);
    held := array(select v_tenants[n] || ' ' || v_keys[n] from unnest(v_taken.heads) n);

    -- what is of no group, as far as the limit goes; then the heads, then what follows
    if v_plain = in_turn."limit" and cardinality(in_turn.groups) > v_plain then
        select c.n into v_last from unnest(in_turn.groups) with ordinality c(key, n) where c.key is null
        order by c.n offset v_plain - 1 limit 1;
        skipped := array(select distinct u from unnest(skipped || in_turn.lanes[v_last + 1:]) u);
    end if;
    select coalesce(array_agg(c.lane order by c.n), '{}') || coalesce(v_taken.lanes, '{}'),
            coalesce(array_agg(c.tenant order by c.n), '{}') || coalesce(v_taken.tenants, '{}'),
            coalesce(array_agg(c.id order by c.n), '{}') || coalesce(v_taken.ids, '{}'),
            coalesce(array_agg(c.tid order by c.n), '{}') || coalesce(v_taken.tids, '{}'),
            coalesce(array_agg(c.due order by c.n), '{}') || coalesce(v_taken.dues, '{}'),
            coalesce(array_agg(c.size order by c.n), '{}') || coalesce(v_taken.sizes, '{}'),
            coalesce(array_agg(false), '{}') || coalesce(v_taken.behinds, '{}')
        into lanes, tenants, ids, tids, dues, sizes, behinds
    from unnest(in_turn.lanes, in_turn.tenants, in_turn.ids, in_turn.tids, in_turn.dues, in_turn.sizes, in_turn.groups)
        with ordinality c(lane, tenant, id, tid, due, size, key, n)
    where c.key is null and c.n <= v_last;
end
$$

-- next
-- The places of those of these messages that are free and behind, locked. A claim that met one as another set it behind has it
-- locked until it ends, and does not know: that is waited for, 100 ms at most. What is locked for longer is left to the sweep.
-- Internal.
create or replace function postrow.wait_for_behind(tids tid[]) returns tid[]
language plpgsql volatile set lock_timeout = '100ms' set jit = off set plan_cache_mode = force_custom_plan
set enable_tidscan = on set enable_seqscan = off set enable_bitmapscan = off set enable_indexscan = off
as $$
begin
    return array(select m.ctid from postrow.message m
        where m.ctid = any (wait_for_behind.tids) and m.behind and m.claim_token is null for no key update);
exception when lock_not_available then
    return '{}';
end
$$

-- next
-- Sets the next message of each of these groups free, if what stands first in it is behind: the one in front of it is gone, or
-- what blocked the group is decided. A group that a dead letter blocks is left, and, without `wait`, a message that a claim has
-- locked. Due now, so that no watermark has passed it. Taps. Gives how many. Internal; called by all that takes messages away.
create or replace function postrow.promote(
    queues text[], tenants text[], keys text[], now timestamptz, wait boolean default true
) returns int
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan
set enable_indexscan = on set enable_tidscan = on set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_blocks  boolean := exists (select from postrow.consumer c where c.on_dead = 'block');
    v_tids    tid[];
    v_locked  tid[];  -- by others
    v_taps    int;
    v_done    int;
begin
    select coalesce(array_agg(o.ctid) filter (where o.ctid is not null), '{}'),
            coalesce(array_agg(f.ctid) filter (where o.ctid is null), '{}')
        into v_tids, v_locked
    from (
        select distinct u.queue, u.tenant, u.key from unnest(promote.queues, promote.tenants, promote.keys)
            u(queue, tenant, key)) g
    cross join lateral (select v_blocks
        and (postrow.consumer_of(g.queue, g.tenant)).on_dead is not distinct from 'block' as blocks) b
    cross join lateral (
        select m.ctid, m.behind and m.claim_token is null as waits from postrow.message m
        where m.queue = g.queue and m.tenant = g.tenant and m.group_key = g.key
            -- what has expired stands in nobody's way, as in in_turn
            and (m.claim_token is not null or m.expires_at is null or m.expires_at > promote.now or b.blocks)
        order by (m.claim_token is null), m.enqueued_at, m.id limit 1) f
    left join lateral (
        select m.ctid from postrow.message m
        -- past a producer whose message it stands for, who has it for key share; a claim has it for update
        where m.ctid = f.ctid and m.behind and m.claim_token is null for no key update skip locked) o on true
    where f.waits and not (b.blocks
        and exists (select from postrow.dead_letter d where d.queue = g.queue and d.tenant = g.tenant
            and d.group_key = g.key and d.resolved_at is null));
    if promote.wait and v_locked <> '{}' then
        v_tids := v_tids || postrow.wait_for_behind(v_locked);
    end if;
    if v_tids = '{}' then
        return 0;
    end if;
    with freed as (
        update postrow.message m set behind = false, available_at = greatest(m.available_at, promote.now)
        where m.ctid = any (v_tids)
        returning m.queue, m.tenant
    )
    select count(postrow.tap(f.queue, f.tenant)), max(f.n) into v_taps, v_done
    from (select queue, tenant, sum(count(*)) over () as n from freed group by queue, tenant) f;
    return v_done;
end
$$

-- next
-- The same for groups as in_turn names them, of which a claim has not taken what it might: all else of them may be behind, and
-- nothing would lead there. Internal.
create or replace function postrow.promote_held(queue text, held text[], now timestamptz) returns void
language plpgsql volatile
as $$
begin
    perform postrow.promote(array_agg(promote_held.queue), array_agg(split_part(h, ' ', 1)),
        array_agg(substr(h, position(' ' in h) + 1)), promote_held.now, wait => false)
    from unnest(promote_held.held) h;
end
$$

-- next
-- The same, for workers: when a message of a group was acknowledged in a handler's own transaction, which may have ended at the
-- same time as another of the group, or seen the group as it was before. Who calls it: workers, after such a handler.
create or replace function postrow.free_groups(queues text[], tenants text[], keys text[]) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return postrow.promote(free_groups.queues, free_groups.tenants, free_groups.keys, postrow.clock());
end
$$
