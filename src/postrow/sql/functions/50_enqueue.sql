-- The first sight of a key, in the caller's transaction. `fresh`: this transaction is the first, and the row
-- is its own until it ends. Otherwise the message that the key stands for. A rival that has not ended is
-- waited for: it commits, and its message is the present one; it rolls back, and this one is fresh. In
-- REPEATABLE READ and above a rival that committed meanwhile is 40001, by `on conflict do nothing` itself.
-- Never `do update ... where`: that locks the row even where its condition is false. Internal.
create or replace function postrow.first_sight(
    tenant text, scope text, key text, queue text, message_id uuid, until timestamptz, now timestamptz,
    out fresh boolean, out present_id uuid, out present_queue text
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_until  timestamptz;
begin
    loop
        insert into postrow.seen (tenant, scope, key, queue, message_id, until)
        values (first_sight.tenant, first_sight.scope, first_sight.key, first_sight.queue,
            first_sight.message_id, first_sight.until)
        on conflict do nothing;
        if found then
            fresh := true;
            return;
        end if;
        select s.message_id, s.queue, s.until into present_id, present_queue, v_until
        from postrow.seen s
        where s.tenant = first_sight.tenant and s.scope = first_sight.scope and s.key = first_sight.key;
        continue when not found;  -- swept since the insert
        if v_until > first_sight.now then
            fresh := false;
            return;
        end if;
        update postrow.seen s
        set queue = first_sight.queue, message_id = first_sight.message_id, until = first_sight.until
        where s.tenant = first_sight.tenant and s.scope = first_sight.scope and s.key = first_sight.key
            and s.until <= first_sight.now;
        if found then
            fresh := true;
            return;
        end if;
    end loop;
end
$$

-- next
-- Takes a caller's own id for one message of one queue: true when it is new, false when it is the present
-- message again, also after that was settled. Keeps the id's row in `seen` until `until`. Where that row is new, or past
-- its time, a live message or an open dead letter still counts; no rival can race for that look, since all who bring ids
-- go through `seen`. A new row under SERIALIZABLE is not followed by that look: two producers who read where the
-- other writes would be 40001 for no reason. (What is left then, an id that the database made itself, is 23505.)
-- Raises PW006 when the id belongs to another queue. Internal.
create or replace function postrow.take_id(
    tenant text, id uuid, queue text, until timestamptz, now timestamptz
) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_sight    record;
    v_present  text;
begin
    v_sight := postrow.first_sight(take_id.tenant, 'id', take_id.id::text, take_id.queue, take_id.id,
        take_id.until, take_id.now);
    if v_sight.fresh then
        if v_sight.present_id is null and current_setting('transaction_isolation') = 'serializable' then
            return true;
        end if;
        select m.queue into v_present from postrow.message m
        where m.tenant = take_id.tenant and m.id = take_id.id;
        if not found then
            select d.queue into v_present from postrow.dead_letter d
            where d.tenant = take_id.tenant and d.id = take_id.id and d.resolved_at is null;
        end if;
        if not found then
            return true;
        end if;
    else
        v_present := v_sight.present_queue;
    end if;
    if v_present <> take_id.queue then
        raise exception using errcode = 'PW006',
            message = format('id %s is a message of queue %s, not %s', take_id.id, v_present, take_id.queue),
            hint = 'An id names one message of one queue for seven days: use another id.';
    end if;
    return false;
end
$$

-- next
-- Puts one message into a queue, in the caller's transaction: it exists if that transaction commits.
-- Who calls it: producers, in SQL or through a driver. Reads nothing that others write and locks nothing; with
-- a caller's `id` it inserts the id's row in postrow.seen first (kept until 7 days after it is due), and a second
-- enqueue of the id for the same queue is the same message: its id, with deduplicated = true.
-- `priority` is an int since `priority => 5` would not find a smallint.
-- Raises PW002 (name), PW003 (value), PW004 (not yet), PW006 (id of another queue), 40001.
create or replace function postrow.enqueue(
    queue text, payload jsonb, tenant text default 'default', priority int default 0,
    delay interval default null, available_at timestamptz default null, max_attempts int default null,
    target text default null, target_for interval default null, subject text default null,
    group_key text default null, dedup_key text default null, dedup_for interval default null,
    dedup_while text default null, expires_at timestamptz default null, headers jsonb default null,
    inout id uuid default null, out deduplicated boolean
)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_now  timestamptz := postrow.clock();
    v_due  timestamptz;
begin
    perform postrow.check_message(queue, tenant, priority, delay, available_at, max_attempts, target,
        target_for, subject, group_key, dedup_key, dedup_for, dedup_while, expires_at, headers);
    if payload is null then
        perform postrow.refuse('payload is null', 'Give a JSON value; ''null''::jsonb is one.');
    end if;
    v_due := greatest(coalesce(available_at, v_now + delay), v_now);
    deduplicated := false;
    if id is null then
        id := postrow.uuid7();
    elsif not postrow.take_id(tenant, id, queue, v_due + interval '7 days', v_now) then
        deduplicated := true;
        return;
    end if;
    insert into postrow.message (tenant, id, queue, priority, payload, headers, enqueued_at, enqueued_by,
        available_at, max_attempts, target, target_until, subject, expires_at)
    values (tenant, id, queue, priority, payload, headers, v_now, postrow.caller(),
        v_due, max_attempts, target, v_due + target_for, subject, expires_at);
    perform postrow.tap(queue, tenant);
end
$$

-- next
-- Refuses what is wrong with the elements of enqueue_many. What differs from row to row as a rule (subject,
-- headers, id) is checked in one pass, and each different set of the other options once. Says whether any element
-- has options of its own, and whether any has an id. Internal. Raises PW002, PW003, PW004; the message names the position.
create or replace function postrow.check_each(
    queue text, messages jsonb, defaults jsonb, out own boolean, out ids boolean
)
language plpgsql stable
as $$
#variable_conflict use_column
declare
    v_varying  constant text[] := '{payload,subject,headers,id}';
    v_row      record;
begin
    own := false;
    ids := false;
    for v_row in
        select min(e.ordinality) as n,
            bool_or(e.value ->> 'id' is not null) as ids,
            bool_or(e.value ? 'subject' or e.value ? 'headers') as varying,
            case when jsonb_typeof(e.value) = 'object' then e.value - v_varying end as own,
            min(e.ordinality) filter (where jsonb_typeof(e.value) <> 'object' or not e.value ? 'payload')
                as bad_shape,
            min(e.ordinality) filter (where e.value ->> 'subject' = '' or length(e.value ->> 'subject') > 200)
                as bad_subject,
            min(e.ordinality) filter (where jsonb_typeof(e.value -> 'headers') not in ('object', 'null'))
                as bad_headers
        from jsonb_array_elements(check_each.messages) with ordinality e group by 4
    loop
        if v_row.bad_shape is not null then
            perform postrow.refuse(format('message %s is not an object with a payload', v_row.bad_shape),
                'Each element is {"payload": ..., and its own options}.');
        elsif v_row.bad_subject is not null then
            perform postrow.check_label(format('subject of message %s', v_row.bad_subject),
                check_each.messages -> (v_row.bad_subject - 1)::int ->> 'subject');
        elsif v_row.bad_headers is not null then
            perform postrow.refuse(format('headers of message %s have to be a JSON object', v_row.bad_headers));
        end if;
        own := own or v_row.ids or v_row.varying or v_row.own <> '{}';
        ids := ids or v_row.ids;
        perform postrow.refuse(format('message %s has an unknown option %L', v_row.n, k.key))
        from jsonb_object_keys(v_row.own) k(key)
        where k.key not in ('tenant', 'priority', 'delay', 'available_at', 'max_attempts', 'target', 'target_for',
            'subject', 'group_key', 'dedup_key', 'dedup_for', 'dedup_while', 'expires_at', 'headers');
        perform postrow.check_message(check_each.queue, x.tenant, x.priority, x.delay, x.available_at,
            x.max_attempts, x.target, x.target_for, x.subject, x.group_key, x.dedup_key, x.dedup_for,
            x.dedup_while, x.expires_at, x.headers)
        from jsonb_to_record(postrow.own_options(v_row.own, check_each.defaults)) x(tenant text, priority int, delay interval,
            available_at timestamptz, max_attempts int, target text, target_for interval, subject text,
            group_key text, dedup_key text, dedup_for interval, dedup_while text, expires_at timestamptz,
            headers jsonb);
    end loop;
end
$$

-- next
-- The options of one element of enqueue_many over the defaults of the call: its own `delay` or `available_at`
-- replaces both. Internal.
create or replace function postrow.own_options(message jsonb, defaults jsonb) returns jsonb
language sql immutable parallel safe
as $$
select case when message ? 'delay' or message ? 'available_at' then defaults - '{delay,available_at}'::text[]
    else defaults end || (message - 'payload')
$$

-- next
-- Puts many messages into a queue. `messages` is an array of {"payload": ..., own options}; the other
-- parameters are defaults for all. Ids come from one reading of the clock plus the ordinal in microseconds, and
-- so does each row's own enqueued_at. Callers' ids are taken in sorted order, so that two calls with the same ids
-- cannot deadlock. One call holds its JSON in memory: some 100 MB at most; the drivers cut longer lists.
-- Gives n (the position, from 1), id and deduplicated. Raises what enqueue raises.
create or replace function postrow.enqueue_many(
    queue text, messages jsonb, tenant text default 'default', priority int default 0,
    delay interval default null, available_at timestamptz default null, max_attempts int default null,
    target text default null, target_for interval default null, subject text default null,
    group_key text default null, dedup_key text default null, dedup_for interval default null,
    dedup_while text default null, expires_at timestamptz default null, headers jsonb default null
) returns table (n int, id uuid, deduplicated boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
    v_now       timestamptz := postrow.clock();
    v_us        bigint := (date_part('epoch', v_now) * 1000000)::bigint;
    v_by        text := postrow.caller();
    v_random    uuid := gen_random_uuid();
    v_defaults  jsonb;
    v_given     record;  -- whether any message brings options of its own, and ids
    v_present   text[] := '{}';  -- 'tenant id' of messages that exist already
    v_row       record;
begin
    if jsonb_typeof(enqueue_many.messages) is distinct from 'array' then
        perform postrow.refuse('messages has to be a JSON array of objects with a payload');
    end if;
    select coalesce(jsonb_object_agg(d.key, d.value), '{}') into v_defaults
    from jsonb_each(jsonb_build_object('tenant', tenant, 'priority', priority, 'delay', delay,
        'available_at', available_at, 'max_attempts', max_attempts, 'target', target,
        'target_for', target_for, 'subject', subject, 'group_key', group_key, 'dedup_key', dedup_key,
        'dedup_for', dedup_for, 'dedup_while', dedup_while, 'expires_at', expires_at,
        'headers', headers)) d where d.value <> 'null';
    v_given := postrow.check_each(enqueue_many.queue, enqueue_many.messages, v_defaults);
    if v_given.ids then
        for v_row in
            select x.tenant, x.id, max(greatest(coalesce(x.available_at, v_now + x.delay), v_now)) as due
            from jsonb_array_elements(enqueue_many.messages) e,
                jsonb_to_record(postrow.own_options(e.value, v_defaults))
                    x(tenant text, id uuid, delay interval, available_at timestamptz)
            where x.id is not null
            group by x.tenant, x.id order by x.tenant collate "C", x.id
        loop
            if not postrow.take_id(v_row.tenant, v_row.id, enqueue_many.queue,
                    v_row.due + interval '7 days', v_now) then
                v_present := v_present || (v_row.tenant || ' ' || v_row.id);
            end if;
        end loop;
    end if;

    return query
    with parsed as materialized (
        select e.ordinality::int as n, e.value -> 'payload' as payload, x.*,
            coalesce(x.id, postrow.uuid7_at(v_us + e.ordinality, v_random)) as new_id,
            v_now + e.ordinality * interval '1 microsecond' as stamp,
            -- an id that is present already, or that stands earlier in this list
            case when v_given.ids and x.id is not null then x.tenant || ' ' || x.id = any (v_present)
                or row_number() over (partition by x.tenant, x.id order by e.ordinality) > 1
            else false end as again
        from jsonb_array_elements(enqueue_many.messages) with ordinality e,
            -- with no options of their own, the defaults are read once and not row by row
            jsonb_to_record(case when v_given.own then postrow.own_options(e.value, v_defaults) else v_defaults end)
                x(id uuid, tenant text, priority smallint,
                delay interval, available_at timestamptz, max_attempts int, target text, target_for interval,
                subject text, expires_at timestamptz, headers jsonb)
    ), put as (
        insert into postrow.message (tenant, id, queue, priority, payload, headers, enqueued_at, enqueued_by,
            available_at, max_attempts, target, target_until, subject, expires_at)
        select p.tenant, p.new_id, enqueue_many.queue, p.priority, p.payload, p.headers, p.stamp, v_by,
            greatest(coalesce(p.available_at, p.stamp + p.delay), p.stamp), p.max_attempts, p.target,
            greatest(coalesce(p.available_at, p.stamp + p.delay), p.stamp) + p.target_for,
            p.subject, p.expires_at
        from parsed p where not p.again
    ), tapped as materialized (
        select count(postrow.tap(enqueue_many.queue, t.tenant)) as taps
        from (select distinct p.tenant from parsed p) t
    )
    select p.n, p.new_id, p.again from parsed p cross join tapped order by p.n;
end
$$

-- next
-- Puts many messages into a queue that differ in their payloads alone: one JSON value a line, as JSON Lines files have it
-- (a line feed within a JSON text is always escaped). A third faster than enqueue_many: nothing is wrapped and taken
-- out again, and the ids are made twice and not carried along. The options are those of enqueue that can hold for many.
-- Gives what enqueue_many gives, in order. Raises what enqueue raises; 22P02 for a line that is not JSON.
create or replace function postrow.enqueue_lines(
    queue text, payloads text, tenant text default 'default', priority int default 0,
    delay interval default null, available_at timestamptz default null, max_attempts int default null,
    target text default null, target_for interval default null, subject text default null,
    group_key text default null, expires_at timestamptz default null, headers jsonb default null
) returns table (n int, id uuid, deduplicated boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
    v_now     timestamptz := postrow.clock();
    v_us      bigint := (date_part('epoch', v_now) * 1000000)::bigint;
    v_by      text := postrow.caller();
    v_random  uuid := gen_random_uuid();
    v_count   int;
begin
    perform postrow.check_message(queue, tenant, priority, delay, available_at, max_attempts, target,
        target_for, subject, group_key, null, null, null, expires_at, headers);
    if payloads is null then
        perform postrow.refuse('payloads is null', 'Give a text with one JSON value a line.');
    end if;
    if payloads <> '' and get_byte(textsend(payloads), octet_length(payloads) - 1) = 10 then
        payloads := rtrim(payloads, E'\r\n');  -- a file ends with a line feed; rtrim alone takes a tenth of the time
    end if;
    insert into postrow.message (tenant, id, queue, priority, payload, headers, enqueued_at, enqueued_by,
        available_at, max_attempts, target, target_until, subject, expires_at)
    select enqueue_lines.tenant, postrow.uuid7_at(v_us + l.n, v_random), enqueue_lines.queue,
        enqueue_lines.priority, l.line::jsonb, enqueue_lines.headers, l.stamp, v_by, l.due,
        enqueue_lines.max_attempts, enqueue_lines.target, l.due + enqueue_lines.target_for,
        enqueue_lines.subject, enqueue_lines.expires_at
    from (
        select p.line, p.n, s.stamp,
            greatest(coalesce(enqueue_lines.available_at, s.stamp + enqueue_lines.delay), s.stamp) as due
        from string_to_table(enqueue_lines.payloads, E'\n') with ordinality p(line, n),
            lateral (select v_now + p.n * interval '1 microsecond' as stamp) s
    ) l;
    get diagnostics v_count = row_count;
    if v_count > 0 then
        perform postrow.tap(queue, tenant);
    end if;
    return query
    select i, postrow.uuid7_at(v_us + i, v_random), false from generate_series(1, v_count) i;
end
$$
