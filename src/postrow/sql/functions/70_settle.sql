-- Settling: ack, release, bury, extend here, fail in its own file. All are fenced by the claim's token.
--
-- Their settings leave one plan: the lists outside, and inside of that loop each message looked up. A table that vacuum
-- found empty is believed to have one row until the next analyze, however many came since and however new the plan is, and
-- where the join may be turned round it is: an ack of 100 read all of 300,000 rows and took 12 s. What cannot be turned
-- round is a lateral lookup that locks, and a lookup by tid, the place of a row: it cannot be had without the place.
-- So `take` finds and locks each message by its key, and says where it is, which is true until the transaction ends; what
-- changes it then looks there. No clause of `take` may imply `claim_token is not null`, or the index of leased messages
-- would do as well as the key's: tokens are compared by `is not distinct from`.

-- Refuses lists of different lengths, with nulls or with a pair that stands twice. Internal. Raises PW003.
create or replace function postrow.check_settle(tenants text[], ids uuid[], tokens uuid[]) returns void
language plpgsql immutable
as $$
begin
    if tenants is null or ids is null or tokens is null
        or cardinality(tenants) <> cardinality(ids) or cardinality(ids) <> cardinality(tokens) then
        perform postrow.refuse('tenants, ids and tokens are not of one length',
            'Give three arrays with one element for each message.');
    elsif array_position(tenants, null) is not null or array_position(ids, null) is not null
        or array_position(tokens, null) is not null then
        perform postrow.refuse('tenants, ids or tokens have a null in them');
    elsif cardinality(ids) > 1 and (select count(*) from (
            select distinct u.tenant, u.id from unnest(tenants, ids) u(tenant, id)) d) < cardinality(ids) then
        perform postrow.refuse('a message stands twice in tenants and ids', 'Settle each message once a call.');
    end if;
end
$$

-- next
-- Refuses a list that goes with ids and has another length. Internal. Raises PW003.
create or replace function postrow.check_length(what text, length int, ids uuid[]) returns void
language plpgsql immutable
as $$
begin
    if length is distinct from cardinality(ids) then
        perform postrow.refuse(format('%s and ids are not of one length', what),
            'Give one element for each message.');
    end if;
end
$$

-- next
-- The fence: locks those of the messages that are held under the given token, in (tenant, id) order, so that two
-- settlements cannot deadlock; gives their positions in the lists, and with these their keys and tids. A row that changed
-- hands while this call waited for its lock is looked at again and left out. `wait` false: rows locked by others are left
-- out too. Internal.
create or replace function postrow.take(
    inout tenants text[], inout ids uuid[], tokens uuid[], wait boolean, out taken int[], out tids tid[]
)
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan
set enable_indexscan = on set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    perform postrow.check_settle(take.tenants, take.ids, take.tokens);
    if take.wait then
        select array_agg(t.tenant), array_agg(t.id), array_agg(t.n), array_agg(t.ctid)
            into tenants, ids, taken, tids
        from (
            select w.tenant, w.id, w.n::int, l.ctid from (
                select * from unnest(take.tenants, take.ids, take.tokens) with ordinality u(tenant, id, token, n)
                order by u.tenant collate "C", u.id) w
            cross join lateral (
                select m.ctid from postrow.message m
                where m.tenant = w.tenant and m.id = w.id and m.claim_token is not distinct from w.token
                for update) l) t;
    else
        select array_agg(t.tenant), array_agg(t.id), array_agg(t.n), array_agg(t.ctid)
            into tenants, ids, taken, tids
        from (
            select w.tenant, w.id, w.n::int, l.ctid from (
                select * from unnest(take.tenants, take.ids, take.tokens) with ordinality u(tenant, id, token, n)
                order by u.tenant collate "C", u.id) w
            cross join lateral (
                select m.ctid from postrow.message m
                where m.tenant = w.tenant and m.id = w.id and m.claim_token is not distinct from w.token
                for update skip locked) l) t;
    end if;
    if taken is null then
        tenants := '{}';
        ids := '{}';
        taken := '{}';
        tids := '{}';
    end if;
end
$$

-- next
-- What became of each message of a settlement: `accepted` for the positions in `taken`; for the others by a look of
-- its own, with a new snapshot (the statement that lost the race still sees its own token): `stale`, another token
-- holds it or none; `unknown`, settled or never there; `busy`, ours and locked by another transaction. Internal.
create or replace function postrow.outcomes(tenants text[], ids uuid[], tokens uuid[], taken int[])
returns table (tenant text, id uuid, outcome text)
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan
set enable_bitmapscan = on set enable_seqscan = off set enable_indexscan = off set enable_indexonlyscan = off
set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
    if cardinality(outcomes.taken) = cardinality(outcomes.ids) then
        return query select w.tenant, w.id, 'accepted' from unnest(outcomes.tenants, outcomes.ids) w(tenant, id);
        return;
    end if;
    return query
    select w.tenant, w.id, case
        when w.n::int = any (outcomes.taken) then 'accepted'
        when m.id is null then 'unknown'
        when m.claim_token = w.token then 'busy'
        else 'stale' end
    from unnest(outcomes.tenants, outcomes.ids, outcomes.tokens) with ordinality w(tenant, id, token, n)
    left join postrow.message m on m.tenant = w.tenant and m.id = w.id;
end
$$

-- next
-- Whether finished messages of a queue are kept: the consumer's word, else yes. Internal.
create or replace function postrow.keeps_history(queue text, tenant text) returns boolean
language sql stable
as $$
select coalesce((postrow.consumer_of(keeps_history.queue, keeps_history.tenant)).keep_history, true)
$$

-- next
-- Takes messages out of the live table, where the caller has locked them, and into history; lets their groups go on. The
-- plans are the only ones that these settings leave, so they are kept. Internal. Raises PW003 for a message that stands twice.
create or replace function postrow.finish(tids tid[], now timestamptz) returns void
language plpgsql volatile set jit = off set plan_cache_mode = force_generic_plan
set enable_tidscan = on set enable_seqscan = off set enable_bitmapscan = off set enable_indexscan = off
set enable_indexonlyscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_all      boolean;
    v_limited  boolean;  -- whether any consumer has a limit of messages in flight, for which room is made here
    v_gone     record;
begin
    select coalesce(bool_and(c.keep_history), true), coalesce(bool_or(
            coalesce(c.max_in_flight, c.tenant_max_in_flight) is not null), false) into v_all, v_limited
    from postrow.consumer c;
    insert into postrow.history (id, enqueued_at, started_at, finished_at, expires_at, parent_id, attempt,
        max_attempts, priority, hops, tenant, queue, outcome, enqueued_by, claimed_by, target, subject, group_key,
        dedup_key, topic, payload, headers, failures)
    select m.id, m.enqueued_at, m.claimed_at, finish.now, m.expires_at, m.parent_id, m.attempt,
        m.max_attempts, m.priority, m.hops, m.tenant, m.queue, 'done', m.enqueued_by, m.claimed_by, m.target, m.subject,
        m.group_key, m.dedup_key, m.topic, m.payload, m.headers, m.failures
    from unnest(finish.tids) w(tid) join postrow.message m on m.ctid = w.tid
    where v_all or postrow.keeps_history(m.queue, m.tenant);
    with gone as (
        delete from postrow.message m where m.ctid = any (finish.tids) returning m.queue, m.tenant, m.group_key
    )
    select count(*) as count, bool_or(g.group_key is not null) as grouped,
            array_agg(g.queue) filter (where v_limited or g.group_key is not null) as queues,
            array_agg(g.tenant) filter (where v_limited or g.group_key is not null) as tenants,
            array_agg(g.group_key) filter (where v_limited or g.group_key is not null) as keys
        into v_gone from gone g;
    if v_gone.count < cardinality(finish.tids) then
        perform postrow.refuse('a message stands twice in tenants and ids', 'Settle each message once a call.');
    end if;
    if v_gone.grouped then
        perform postrow.promote(v_gone.queues, v_gone.tenants, v_gone.keys, finish.now);
    end if;
    if v_limited then
        perform postrow.tap_room(v_gone.queues, v_gone.tenants);
    end if;
end
$$

-- next
-- Done: takes the messages out of the live table and into history. Who calls it: any language, and handlers in their
-- own transaction. Takes rows in (tenant, id) order; waits for rows that others have locked unless `wait` is false.
-- Raises PW003.
create or replace function postrow.ack(tenants text[], ids uuid[], tokens uuid[], wait boolean default true)
returns table (tenant text, id uuid, outcome text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_taken  record := postrow.take(ack.tenants, ack.ids, ack.tokens, ack.wait);
begin
    perform postrow.finish(v_taken.tids, postrow.clock());
    return query select * from postrow.outcomes(ack.tenants, ack.ids, ack.tokens, v_taken.taken);
end
$$

-- next
-- As ack without waiting, for a caller that knows where the claim left the messages (its column `place`): at half the
-- price. What has moved since, as by a renewed lease, is looked up by its key. Gives those that were not accepted, none as
-- a rule. Nulls and messages that stand twice are looked for where not all were found at their places: a null token is
-- found nowhere, and of what stands twice `finish` finds one too few. Who calls it: workers. Locks rows in the order of the
-- lists with skip locked: waits for nobody. Raises PW003.
create or replace function postrow.ack_at(tenants text[], ids uuid[], tokens uuid[], places tid[])
returns table (tenant text, id uuid, outcome text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off
set plan_cache_mode = force_generic_plan
set enable_tidscan = on set enable_seqscan = off set enable_bitmapscan = off set enable_indexscan = off
set enable_indexonlyscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_taken   int[];
    v_tids    tid[];
    v_others  int[];
    v_moved   record;
begin
    if ack_at.ids is null or ack_at.tokens is null or ack_at.places is null
        or cardinality(ack_at.tenants) is distinct from cardinality(ack_at.ids)
        or cardinality(ack_at.tokens) <> cardinality(ack_at.ids)
        or cardinality(ack_at.places) <> cardinality(ack_at.ids) then
        perform postrow.refuse('tenants, ids, tokens and places are not of one length',
            'Give four arrays with one element for each message.');
    end if;
    select coalesce(array_agg(w.n::int), '{}'), coalesce(array_agg(l.ctid), '{}') into v_taken, v_tids
    from unnest(ack_at.places, ack_at.tenants) with ordinality w(tid, tenant, n)
    cross join lateral (
        select m.ctid from postrow.message m
        where m.ctid = w.tid and m.tenant = w.tenant and m.id = ack_at.ids[w.n]
            and m.claim_token = ack_at.tokens[w.n]
        for update skip locked) l;
    if cardinality(v_taken) < cardinality(ack_at.ids) then
        perform postrow.check_settle(ack_at.tenants, ack_at.ids, ack_at.tokens);
        v_others := array(select n from generate_subscripts(ack_at.ids, 1) n where n <> all (v_taken));
        v_moved := postrow.take(array(select ack_at.tenants[n] from unnest(v_others) n),
            array(select ack_at.ids[n] from unnest(v_others) n),
            array(select ack_at.tokens[n] from unnest(v_others) n), false);
        v_taken := v_taken || array(select v_others[n] from unnest(v_moved.taken) n);
        v_tids := v_tids || v_moved.tids;
    end if;
    perform postrow.finish(v_tids, postrow.clock());
    if cardinality(v_taken) < cardinality(ack_at.ids) then
        return query
        select o.tenant, o.id, o.outcome
        from postrow.outcomes(ack_at.tenants, ack_at.ids, ack_at.tokens, v_taken) o where o.outcome <> 'accepted';
    end if;
end
$$

-- next
-- Gives messages back unharmed, the attempt with them: to the front of their lanes (of a group, which has its own order, due
-- now), or, with `until`, not before then (a snooze). Taps. Rows and waiting as for ack. Raises PW003.
create or replace function postrow.release(
    tenants text[], ids uuid[], tokens uuid[], until timestamptz[] default null, wait boolean default true
) returns table (tenant text, id uuid, outcome text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_custom_plan
set enable_tidscan = on set enable_seqscan = off set enable_bitmapscan = off set enable_indexscan = off
set enable_indexonlyscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_taken  record;
    v_taps   int;
    v_now    timestamptz := postrow.clock();
begin
    if release.until is not null then
        perform postrow.check_length('until', cardinality(release.until), release.ids);
        if exists (select from unnest(release.until) u where not isfinite(u) or u > '3000-01-01 00:00:00+00') then
            perform postrow.refuse('until has to hold finite moments before the year 3000');
        end if;
    end if;
    v_taken := postrow.take(release.tenants, release.ids, release.tokens, release.wait);
    with freed as (
        update postrow.message m
        set claim_token = null, claimed_at = null, claimed_by = null, attempt = greatest(m.attempt - 1, 0),
            behind = false, available_at = coalesce(release.until[w.n],
                case when m.group_key is null then m.enqueued_at else v_now end)
        from unnest(v_taken.tenants, v_taken.ids, v_taken.tids, v_taken.taken) w(tenant, id, tid, n)
        where m.ctid = w.tid and m.tenant = w.tenant and m.id = w.id
        returning m.queue, m.tenant
    )
    select count(postrow.tap(f.queue, f.tenant)) into v_taps from (select distinct queue, tenant from freed) f;
    return query select * from postrow.outcomes(release.tenants, release.ids, release.tokens, v_taken.taken);
end
$$

-- next
-- Renews the lease of messages to `lease` from now. Never waits: a row that is locked is being decided by its own
-- transaction, and `busy` says so. Accepted after the lease has ended too, as long as the sweep has not taken it.
-- Who calls it: the worker's heartbeat. Raises PW003.
create or replace function postrow.extend(tenants text[], ids uuid[], tokens uuid[], lease interval)
returns table (tenant text, id uuid, outcome text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_custom_plan
set enable_tidscan = on set enable_seqscan = off set enable_bitmapscan = off set enable_indexscan = off
set enable_indexonlyscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_taken  record;
    v_now    timestamptz := postrow.clock();
begin
    if extend.lease is null then
        perform postrow.refuse('lease is null', 'Give how long the claims hold from now.');
    end if;
    perform postrow.check_lease(extend.lease);
    v_taken := postrow.take(extend.tenants, extend.ids, extend.tokens, false);
    update postrow.message m set available_at = v_now + extend.lease
    from unnest(v_taken.tenants, v_taken.ids, v_taken.tids) w(tenant, id, tid)
    where m.ctid = w.tid and m.tenant = w.tenant and m.id = w.id;
    return query select * from postrow.outcomes(extend.tenants, extend.ids, extend.tokens, v_taken.taken);
end
$$
