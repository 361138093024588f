-- A text of at most `bytes` bytes in UTF-8: its head, or with `tail` its end. Internal.
create or replace function postrow.cut(value text, bytes int, tail boolean default false) returns text
language sql immutable parallel safe
as $$
select case
    when pg_catalog.octet_length(value) <= bytes then value
    when tail then pg_catalog."right"(value,
        case when pg_catalog.octet_length(pg_catalog."right"(value, bytes)) = bytes then bytes else bytes / 4 end)
    else pg_catalog."left"(value,
        case when pg_catalog.octet_length(pg_catalog."left"(value, bytes)) = bytes then bytes else bytes / 4 end)
end
$$

-- next
-- The failures of a message with one more, the last ten of them, 2 KB each at most. In plpgsql, as Postgres 18 plans
-- the body of a SQL function anew for each row under `force_custom_plan` (33 microseconds; an expression here takes 5). Internal.
create or replace function postrow.add_failure(
    failures jsonb, attempt int, at timestamptz, worker text, type text, message text, traceback text
) returns jsonb
language plpgsql stable
as $$
declare
    v_kept  jsonb := coalesce(failures, '[]');
begin
    while jsonb_array_length(v_kept) > 9 loop
        v_kept := v_kept - 0;
    end loop;
    return v_kept || jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
        'attempt', attempt, 'at', at, 'worker', worker, 'type', postrow.cut(type, 100),
        'message', postrow.cut(message, 800), 'traceback', postrow.cut(traceback, 800, true))));
end
$$

-- next
-- Moves messages to the dead letters. The rows are locked by the caller; the lists are of one length, failures as
-- they shall be kept. A message whose id was used again after its first death was resolved takes that row's place.
-- Where the consumer has a handler for that (tells_dead), a message in the queue `<queue>:dead` tells it: the payload and the
-- failures are the dead one's, parent_id is its id, the headers say `dead_letter` and `reason`; it has one attempt. When
-- such a one dies in turn it becomes no dead letter: its last failure is added to those of the one that it tells of, if that
-- is still there, and nobody else has it locked: this waits for nobody.
-- Internal; called by fail, bury and the sweep.
create or replace function postrow.kill(
    tenants text[], ids uuid[], reasons text[], failures jsonb[], now timestamptz
) returns void
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan
set enable_bitmapscan = on set enable_seqscan = off set enable_indexscan = off set enable_indexonlyscan = off
set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_told     boolean := exists (select from postrow.consumer c where c.tells_dead);
    v_parents  tid[];  -- the dead letters that messages of these tell of
    v_taps     int;
    v_queues   text[];
    v_tenants  text[];
    v_keys     text[];
begin
    if cardinality(kill.ids) is null or cardinality(kill.ids) = 0 then
        return;
    end if;
    delete from postrow.dead_letter d using unnest(kill.tenants, kill.ids) w(tenant, id)
    where d.tenant = w.tenant and d.id = w.id;
    v_parents := array(
        select p.ctid from unnest(kill.tenants, kill.ids) w(tenant, id)
        join postrow.message m on m.tenant = w.tenant and m.id = w.id
        cross join lateral (select d.ctid from postrow.dead_letter d where d.tenant = m.tenant and d.id = m.parent_id
            for no key update skip locked) p
        where m.queue like '%:dead' and m.headers ? 'dead_letter');
    with gone as (
        delete from postrow.message m using unnest(kill.tenants, kill.ids, kill.reasons, kill.failures)
            w(tenant, id, reason, list)
        where m.tenant = w.tenant and m.id = w.id
        returning m.*, w.reason, w.list, coalesce(m.queue like '%:dead' and m.headers ? 'dead_letter' and exists (
            select from postrow.dead_letter d
            where d.ctid = any (v_parents) and d.tenant = m.tenant and d.id = m.parent_id), false) as tells
    ), noted as (
        update postrow.dead_letter d
        set failures = coalesce(d.failures, '[]') || jsonb_build_array(jsonb_set(coalesce(g.list -> -1, '{}'), '{type}',
            to_jsonb('on_dead: ' || coalesce(g.list -> -1 ->> 'type', g.reason))))
        from gone g
        where g.tells and d.tenant = g.tenant and d.id = g.parent_id
    ), told as (
        insert into postrow.message (tenant, id, queue, priority, payload, headers, enqueued_at, enqueued_by,
            available_at, max_attempts, subject, topic, parent_id, hops, failures)
        select g.tenant, postrow.uuid7(), g.queue || ':dead', g.priority, g.payload, coalesce(g.headers, '{}')
            || jsonb_build_object('dead_letter', g.id, 'reason', g.reason), kill.now, postrow.caller(), kill.now, 1,
            g.subject, g.topic, g.id, g.hops, g.list
        from gone g
        where v_told and not g.tells and length(g.queue) <= 195
            and (postrow.consumer_of(g.queue, g.tenant)).tells_dead
        returning queue, tenant
    ), tapped as materialized (
        select count(postrow.tap(t.queue, t.tenant)) as taps from (select distinct queue, tenant from told) t
    ), buried as (
        insert into postrow.dead_letter (id, enqueued_at, claimed_at, died_at, expires_at, parent_id, attempt,
            max_attempts, priority, hops, tenant, queue, reason, enqueued_by, claimed_by, target, subject, group_key,
            dedup_key, topic, payload, headers, failures)
        select g.id, g.enqueued_at, g.claimed_at, kill.now, g.expires_at, g.parent_id, g.attempt, g.max_attempts,
            g.priority, g.hops, g.tenant, g.queue, g.reason, g.enqueued_by, g.claimed_by, g.target, g.subject,
            g.group_key, g.dedup_key, g.topic, g.payload, g.headers, g.list
        from gone g where not g.tells
    )
    select t.taps, g.queues, g.tenants, g.keys into v_taps, v_queues, v_tenants, v_keys
    from tapped t cross join (
        select array_agg(g.queue) as queues, array_agg(g.tenant) as tenants, array_agg(g.group_key) as keys from gone g) g;
    if array_length(array_remove(v_keys, null), 1) > 0 then
        perform postrow.promote(v_queues, v_tenants, v_keys, kill.now);
    end if;
    perform postrow.tap_room(v_queues, v_tenants);
end
$$

-- next
-- What a failed attempt leads to: the next one, by the policy of the message's consumer (defaults where there is none;
-- the message's own max_attempts wins), or the dead letters when attempts are spent. The rows are locked by the
-- caller. `dead_reason` is `attempts` or `lease`; a lease also clears the target, and gives the attempt back to what was claimed
-- behind another of its group, whose turn may never have come: it is the first of the next claim, and pays then.
-- `retry_at` null: the policy. Taps what is due.
-- Internal; called by fail and by the sweep, so that an expired lease is a failure like any other.
create or replace function postrow.retry_or_kill(
    tenants text[], ids uuid[], errors text[], types text[], tracebacks text[], retry_at timestamptz[],
    dead_reason text, now timestamptz
) returns void
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan
set enable_bitmapscan = on set enable_seqscan = off set enable_indexscan = off set enable_indexonlyscan = off
set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_tenants   text[];
    v_ids       uuid[];
    v_failures  jsonb[];
begin
    with judged as materialized (
        select m.tenant, m.id, u.untried,
            not u.untried and m.attempt >= coalesce(m.max_attempts, c.max_attempts, 5) as spent,
            case when u.untried then m.failures else postrow.add_failure(m.failures, m.attempt, retry_or_kill.now,
                m.claimed_by, w.type, w.error, w.traceback) end as list,
            case when u.untried then retry_or_kill.now else coalesce(w.again, retry_or_kill.now + postrow.retry_delay(m.attempt,
                coalesce(c.retry, 'exponential'), coalesce(c.retry_base, interval '10 s'),
                coalesce(c.retry_factor, 2), coalesce(c.retry_cap, interval '1 hour'),
                coalesce(c.retry_jitter, true))) end as again
        from unnest(retry_or_kill.tenants, retry_or_kill.ids, retry_or_kill.errors,
            coalesce(retry_or_kill.types, '{}'), coalesce(retry_or_kill.tracebacks, '{}'),
            coalesce(retry_or_kill.retry_at, '{}')) w(tenant, id, error, type, traceback, again)
        join postrow.message m on m.tenant = w.tenant and m.id = w.id
        left join lateral postrow.consumer_of(m.queue, m.tenant) c on true
        cross join lateral (select m.behind and retry_or_kill.dead_reason = 'lease' as untried) u
    ), retried as (
        update postrow.message m
        set claim_token = null, claimed_at = null, claimed_by = null, available_at = j.again, failures = j.list,
            behind = false, attempt = case when j.untried then greatest(m.attempt - 1, 0) else m.attempt end,
            target = case when retry_or_kill.dead_reason = 'lease' then null else m.target end,
            target_until = case when retry_or_kill.dead_reason = 'lease' then null else m.target_until end
        from judged j
        where not j.spent and m.tenant = j.tenant and m.id = j.id
        returning m.queue, m.tenant, j.again
    ), tapped as materialized (
        select count(postrow.tap(t.queue, t.tenant)) from (
            select distinct r.queue, r.tenant from retried r
            where r.again <= retry_or_kill.now or retry_or_kill.dead_reason = 'lease') t
    ), room as materialized (
        select postrow.tap_room(array_agg(r.queue), array_agg(r.tenant)) from retried r
    )
    select j.tenants, j.ids, j.lists into v_tenants, v_ids, v_failures
    from tapped cross join room cross join (  -- one row always: a join with none would leave the taps out
        select array_agg(j.tenant) as tenants, array_agg(j.id) as ids, array_agg(j.list) as lists
        from judged j where j.spent) j;
    perform postrow.kill(v_tenants, v_ids, array_fill(retry_or_kill.dead_reason, array[coalesce(cardinality(v_ids), 0)]),
        v_failures, retry_or_kill.now);
end
$$

-- next
-- Failed: recorded on the row, then retried by the consumer's policy or, when attempts are spent, a dead letter.
-- `errors`, `types` and `tracebacks` are text, so that no content can make the batch fail; they are cut to 800, 100 and
-- 800 bytes. `retry_at`: not before that moment, in place of the policy's delay; a null element keeps the policy.
-- Rows and waiting as for ack. Raises PW003.
create or replace function postrow.fail(
    tenants text[], ids uuid[], tokens uuid[], errors text[], types text[] default null,
    tracebacks text[] default null, retry_at timestamptz[] default null, wait boolean default true
) returns table (tenant text, id uuid, outcome text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
    v_taken  int[];
begin
    perform postrow.check_length('errors', cardinality(fail.errors), fail.ids);
    if fail.types is not null then
        perform postrow.check_length('types', cardinality(fail.types), fail.ids);
    end if;
    if fail.tracebacks is not null then
        perform postrow.check_length('tracebacks', cardinality(fail.tracebacks), fail.ids);
    end if;
    if fail.retry_at is not null then
        perform postrow.check_length('retry_at', cardinality(fail.retry_at), fail.ids);
        if exists (select from unnest(fail.retry_at) u where not isfinite(u) or u > '3000-01-01 00:00:00+00') then
            perform postrow.refuse('retry_at has to hold finite moments before the year 3000');
        end if;
    end if;
    v_taken := (postrow.take(fail.tenants, fail.ids, fail.tokens, fail.wait)).taken;
    if cardinality(v_taken) > 0 then
        perform postrow.retry_or_kill(array_agg(w.tenant), array_agg(w.id), array_agg(w.error), array_agg(w.type),
            array_agg(w.traceback), array_agg(w.again), 'attempts', postrow.clock())
        from unnest(fail.tenants, fail.ids, fail.errors, coalesce(fail.types, '{}'),
            coalesce(fail.tracebacks, '{}'), coalesce(fail.retry_at, '{}')) with ordinality
            w(tenant, id, error, type, traceback, again, n)
        where w.n::int = any (v_taken);
    end if;
    return query select * from postrow.outcomes(fail.tenants, fail.ids, fail.tokens, v_taken);
end
$$

-- next
-- A dead letter now, whatever attempts are left: `reasons` say why and are recorded as a failure.
-- Rows and waiting as for ack. Raises PW003.
create or replace function postrow.bury(
    tenants text[], ids uuid[], tokens uuid[], reasons text[], wait boolean default true
) returns table (tenant text, id uuid, outcome text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_custom_plan
set enable_bitmapscan = on set enable_seqscan = off set enable_indexscan = off set enable_indexonlyscan = off
set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_taken  int[];
    v_now    timestamptz := postrow.clock();
begin
    perform postrow.check_length('reasons', cardinality(bury.reasons), bury.ids);
    v_taken := (postrow.take(bury.tenants, bury.ids, bury.tokens, bury.wait)).taken;
    perform postrow.kill(array_agg(m.tenant), array_agg(m.id), array_agg('buried'::text),
        array_agg(postrow.add_failure(m.failures, m.attempt, v_now, m.claimed_by, 'buried', w.reason, null)), v_now)
    from unnest(bury.tenants, bury.ids, bury.reasons) with ordinality w(tenant, id, reason, n)
    join postrow.message m on m.tenant = w.tenant and m.id = w.id
    where w.n::int = any (v_taken);
    return query select * from postrow.outcomes(bury.tenants, bury.ids, bury.tokens, v_taken);
end
$$
