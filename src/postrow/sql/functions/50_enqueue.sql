-- Puts one message into a queue, in the caller's transaction: it exists if that transaction commits.
-- Who calls it: producers, in SQL or through a driver. Reads nothing that others write and locks nothing; with
-- a caller's `id` it inserts the id's row in postrow.seen first (kept until 7 days after it is due), and a second
-- enqueue of the id for the same queue is the same message: its id, with deduplicated = true. So does a `dedup_key`, by
-- the rule that take_key has, which locks the row of the message that stands for this one.
-- `parent_id` and `hops`: the message whose handler enqueues this one, and how many published ones led to it.
-- `priority` is an int since `priority => 5` would not find a smallint.
-- Raises PW002 (name), PW003 (value), PW006 (id of another queue), 40001.
create or replace function postrow.enqueue(
    queue text, payload jsonb, tenant text default 'default', priority int default 0,
    delay interval default null, available_at timestamptz default null, max_attempts int default null,
    target text default null, target_for interval default null, subject text default null,
    group_key text default null, dedup_key text default null, dedup_for interval default null,
    dedup_while text default null, expires_at timestamptz default null, headers jsonb default null,
    inout id uuid default null, parent_id uuid default null, hops int default 0, out deduplicated boolean
)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_checked  boolean := postrow.check_message(queue, tenant, priority, delay, available_at, max_attempts, target,
        target_for, subject, group_key, dedup_key, dedup_for, dedup_while, expires_at, headers);
    v_now      timestamptz := postrow.clock();
    v_given    uuid := id;
    v_due      timestamptz;
    v_present  uuid;
begin
    if payload is null or postrow.may_be_long(payload) then
        perform postrow.check_payload(payload);
    end if;
    if hops is distinct from 0 then
        perform postrow.check_hops(hops);
    end if;
    v_due := greatest(coalesce(available_at, v_now + delay), v_now);
    id := coalesce(v_given, postrow.uuid7());
    if v_given is not null or dedup_key is not null then
        if v_given is not null then
            v_present := postrow.take_id(tenant, v_given, queue, v_due + interval '7 days', v_now);
        end if;
        if dedup_key is not null and v_present is null then
            v_present := postrow.take_key(tenant, queue, dedup_key, dedup_for, dedup_while, id, v_due, v_now);
            if v_present is not null and v_given is not null then
                perform postrow.point_id(tenant, v_given, v_present);
            end if;
        end if;
        if v_present is not null then
            id := v_present;
            deduplicated := true;
            if dedup_key is not null then
                perform postrow.tap(queue, tenant);  -- who found it locked by this transaction looks again at its end
            end if;
            return;
        end if;
    end if;
    deduplicated := false;
    insert into postrow.message (tenant, id, queue, priority, payload, headers, enqueued_at, enqueued_by,
        available_at, max_attempts, target, target_until, subject, group_key, dedup_key, expires_at, parent_id, hops)
    values (tenant, id, queue, priority, payload, headers, v_now, postrow.caller(),
        v_due, max_attempts, target, v_due + target_for, subject, group_key, dedup_key, expires_at, parent_id, hops);
    perform postrow.tap(queue, tenant);
end
$$

-- next
-- Refuses what is wrong with the elements of enqueue_many. What differs from row to row as a rule (subject,
-- headers, id, group_key, dedup_key) is checked in one pass, and each different set of the other options once. Says whether any element
-- has options of its own, and whether any has an id, or a key of deduplication. Internal. Raises PW002, PW003; the message names the position.
create or replace function postrow.check_each(
    queue text, messages jsonb, defaults jsonb, out own boolean, out ids boolean, out keys boolean
)
language plpgsql stable
as $$
#variable_conflict use_column
declare
    v_varying  constant text[] := '{payload,subject,headers,id,group_key}';
    v_row      record;
    v_long     boolean := false;
begin
    own := false;
    ids := false;
    keys := defaults ? 'dedup_key';
    for v_row in
        select min(e.ordinality) as n,
            bool_or(e.value ->> 'id' is not null) as ids,
            bool_or(e.value ?| '{subject,headers,group_key}') as varying,
            case when jsonb_typeof(e.value) <> 'object' then null
                -- a key is another in each row: its place is taken by one that passes
                when e.value ->> 'dedup_key' is not null then (e.value - v_varying) || '{"dedup_key": "k"}'
                else e.value - v_varying end as own,
            bool_or(e.value ->> 'dedup_key' is not null) as keys,
            min(e.ordinality) filter (where e.value ->> 'dedup_key' = '' or length(e.value ->> 'dedup_key') > 500)
                as bad_key,
            min(e.ordinality) filter (where jsonb_typeof(e.value) <> 'object' or not e.value ? 'payload')
                as bad_shape,
            min(e.ordinality) filter (where e.value ->> 'subject' = '' or length(e.value ->> 'subject') > 200)
                as bad_subject,
            min(e.ordinality) filter (where e.value ->> 'group_key' = '' or length(e.value ->> 'group_key') > 200)
                as bad_group,
            min(e.ordinality) filter (where jsonb_typeof(e.value -> 'headers') not in ('object', 'null'))
                as bad_headers,
            bool_or(postrow.may_be_long(e.value)) as long
        from jsonb_array_elements(check_each.messages) with ordinality e group by 4
    loop
        if v_row.bad_shape is not null then
            perform postrow.refuse(format('message %s is not an object with a payload', v_row.bad_shape),
                'Each element is {"payload": ..., and its own options}.');
        elsif v_row.bad_subject is not null then
            perform postrow.check_label(format('subject of message %s', v_row.bad_subject),
                check_each.messages -> (v_row.bad_subject - 1)::int ->> 'subject');
        elsif v_row.bad_group is not null then
            perform postrow.check_label(format('group_key of message %s', v_row.bad_group),
                check_each.messages -> (v_row.bad_group - 1)::int ->> 'group_key');
        elsif v_row.bad_key is not null then
            perform postrow.check_key(format('dedup_key of message %s', v_row.bad_key),
                check_each.messages -> (v_row.bad_key - 1)::int ->> 'dedup_key');
        elsif v_row.bad_headers is not null then
            perform postrow.refuse(format('headers of message %s have to be a JSON object', v_row.bad_headers));
        end if;
        v_long := v_long or v_row.long;
        own := own or v_row.ids or v_row.varying or v_row.own <> '{}';
        ids := ids or v_row.ids;
        keys := keys or v_row.keys;
        perform postrow.refuse(format('message %s has an unknown option %L', v_row.n, k.key))
        from jsonb_object_keys(v_row.own) k(key)
        where k.key not in ('tenant', 'priority', 'delay', 'available_at', 'max_attempts', 'target', 'target_for',
            'subject', 'group_key', 'dedup_key', 'dedup_for', 'dedup_while', 'expires_at', 'headers');
        perform postrow.check_message(check_each.queue, x.tenant, x.priority, x.delay, x.available_at,
            x.max_attempts, x.target, x.target_for, x.subject, x.group_key, x.dedup_key, x.dedup_for,
            x.dedup_while, x.expires_at, x.headers)
        from jsonb_to_record(postrow.own_options(v_row.own,
            -- a rule for all is none of those without a key
            case when v_row.own ->> 'dedup_key' is not null
                    or check_each.defaults ? 'dedup_key' and not v_row.own ? 'dedup_key' then check_each.defaults
                else check_each.defaults - '{dedup_for,dedup_while}'::text[] end)) x(tenant text, priority int, delay interval,
            available_at timestamptz, max_attempts int, target text, target_for interval, subject text,
            group_key text, dedup_key text, dedup_for interval, dedup_while text, expires_at timestamptz,
            headers jsonb);
    end loop;
    if v_long then
        perform postrow.check_text(format('payload of message %s', e.ordinality), e.value -> 'payload', 512),
            postrow.check_text(format('headers of message %s', e.ordinality), e.value -> 'headers', 256)
        from jsonb_array_elements(check_each.messages) with ordinality e where postrow.may_be_long(e.value);
    end if;
end
$$

-- next
-- The options of one element of enqueue_many over the defaults of the call: its own `delay` or `available_at`
-- replaces both, and so does its own `dedup_for` or `dedup_while`. Internal.
create or replace function postrow.own_options(message jsonb, defaults jsonb) returns jsonb
language sql immutable parallel safe
as $$
select defaults - case when message ? 'delay' or message ? 'available_at' then '{delay,available_at}'::text[] else '{}' end
    - case when message ? 'dedup_for' or message ? 'dedup_while' then '{dedup_for,dedup_while}'::text[] else '{}' end
    || (message - 'payload')
$$

-- next
-- Puts many messages into a queue. `messages` is an array of {"payload": ..., own options}; the other
-- parameters are defaults for all. Ids come from one reading of the clock plus the ordinal in microseconds, and
-- so does each row's own enqueued_at. Callers' ids, then keys of deduplication, are
-- taken in sorted order, so that two calls with the same ones cannot deadlock. One call holds its JSON in memory: some 100 MB at most; the drivers cut longer lists.
-- Gives n (the position, from 1), id and deduplicated. Raises what enqueue raises.
create or replace function postrow.enqueue_many(
    queue text, messages jsonb, tenant text default 'default', priority int default 0,
    delay interval default null, available_at timestamptz default null, max_attempts int default null,
    target text default null, target_for interval default null, subject text default null,
    group_key text default null, dedup_key text default null, dedup_for interval default null,
    dedup_while text default null, expires_at timestamptz default null, headers jsonb default null,
    parent_id uuid default null, hops int default 0
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
    v_given     record;  -- whether any message brings options of its own, ids, and keys
    v_stands    uuid[] := '{}';  -- by position: the message that stands for this one, null for a new one
    v_repeats   jsonb := '[]';  -- of an id: the place, the place where it came first, and the id
    v_later     int[] := '{}';  -- those places
    v_row       record;
    v_present   uuid;
begin
    if jsonb_typeof(enqueue_many.messages) is distinct from 'array' then
        perform postrow.refuse('messages has to be a JSON array of objects with a payload');
    end if;
    perform postrow.check_hops(enqueue_many.hops);
    select coalesce(jsonb_object_agg(d.key, d.value), '{}') into v_defaults
    from jsonb_each(jsonb_build_object('tenant', tenant, 'priority', priority, 'delay', delay,
        'available_at', available_at, 'max_attempts', max_attempts, 'target', target,
        'target_for', target_for, 'subject', subject, 'group_key', group_key, 'dedup_key', dedup_key,
        'dedup_for', dedup_for, 'dedup_while', dedup_while, 'expires_at', expires_at,
        'headers', headers)) d where d.value <> 'null';
    v_given := postrow.check_each(enqueue_many.queue, enqueue_many.messages, v_defaults);
    -- first ids, then keys, each in order, so that two calls with the same ones cannot deadlock
    if v_given.ids then
        for v_row in
            select x.tenant, x.id, array_agg(e.ordinality order by e.ordinality) as places,
                max(greatest(coalesce(x.available_at, v_now + x.delay), v_now)) as due
            from jsonb_array_elements(enqueue_many.messages) with ordinality e,
                jsonb_to_record(postrow.own_options(e.value, v_defaults))
                    x(tenant text, id uuid, delay interval, available_at timestamptz)
            where x.id is not null
            group by x.tenant, x.id order by x.tenant collate "C", x.id
        loop
            v_present := postrow.take_id(v_row.tenant, v_row.id, enqueue_many.queue,
                v_row.due + interval '7 days', v_now);
            if v_present is not null then
                v_stands[v_row.places[1]] := v_present;
            end if;
            if cardinality(v_row.places) > 1 then  -- the others are what the first is, which its key may decide
                v_repeats := v_repeats || (select jsonb_agg(jsonb_build_array(r.place, v_row.places[1], v_row.id))
                    from unnest(v_row.places[2:]) r(place));
                v_later := v_later || v_row.places[2:]::int[];
            end if;
        end loop;
    end if;
    if v_given.keys then
        for v_row in
            select x.tenant, x.dedup_key, x.dedup_for is null as by_state, array_agg(e.ordinality order by e.ordinality) as places,
                array_agg(x.id order by e.ordinality) as ids, (array_agg(x.dedup_for order by e.ordinality))[1] as dedup_for,
                (array_agg(x.dedup_while order by e.ordinality))[1] as dedup_while,
                max(greatest(coalesce(x.available_at, v_now + x.delay), v_now)) as due
            from jsonb_array_elements(enqueue_many.messages) with ordinality e,
                jsonb_to_record(postrow.own_options(e.value, v_defaults))
                    x(tenant text, id uuid, delay interval, available_at timestamptz, dedup_key text, dedup_for interval,
                    dedup_while text)
            where x.dedup_key is not null and v_stands[e.ordinality] is null and e.ordinality::int <> all (v_later)
            group by 1, 2, 3 order by x.tenant collate "C", 3, x.dedup_key collate "C"
        loop
            v_present := postrow.take_key(v_row.tenant, enqueue_many.queue, v_row.dedup_key, v_row.dedup_for,
                v_row.dedup_while, coalesce(v_row.ids[1], postrow.uuid7_at(v_us + v_row.places[1], v_random)), v_row.due, v_now);
            for i in 1 .. cardinality(v_row.places) loop
                if i > 1 or v_present is not null then
                    v_stands[v_row.places[i]] := coalesce(v_present, v_row.ids[1],
                        postrow.uuid7_at(v_us + v_row.places[1], v_random));
                    if v_row.ids[i] is not null then
                        perform postrow.point_id(v_row.tenant, v_row.ids[i], v_stands[v_row.places[i]]);
                    end if;
                end if;
            end loop;
        end loop;
    end if;
    for v_row in select (r.value ->> 0)::int as place, (r.value ->> 1)::int as first, (r.value ->> 2)::uuid as id
        from jsonb_array_elements(v_repeats) r
    loop
        v_stands[v_row.place] := coalesce(v_stands[v_row.first], v_row.id);
    end loop;

    return query
    with parsed as materialized (
        select e.ordinality::int as n, e.value -> 'payload' as payload, x.*,
            coalesce(x.id, postrow.uuid7_at(v_us + e.ordinality, v_random)) as new_id,
            v_now + e.ordinality * interval '1 microsecond' as stamp, v_stands[e.ordinality] as stands
        from jsonb_array_elements(enqueue_many.messages) with ordinality e,
            -- with no options of their own, the defaults are read once and not row by row
            jsonb_to_record(case when v_given.own then postrow.own_options(e.value, v_defaults) else v_defaults end)
                x(id uuid, tenant text, priority smallint,
                delay interval, available_at timestamptz, max_attempts int, target text, target_for interval,
                subject text, group_key text, dedup_key text, expires_at timestamptz, headers jsonb)
    ), put as (
        insert into postrow.message (tenant, id, queue, priority, payload, headers, enqueued_at, enqueued_by,
            available_at, max_attempts, target, target_until, subject, group_key, behind, dedup_key, expires_at,
            parent_id, hops)
        select p.tenant, p.new_id, enqueue_many.queue, p.priority, p.payload, p.headers, p.stamp, v_by,
            greatest(coalesce(p.available_at, p.stamp + p.delay), p.stamp), p.max_attempts, p.target,
            greatest(coalesce(p.available_at, p.stamp + p.delay), p.stamp) + p.target_for,
            p.subject, p.group_key, p.turn > 1, p.dedup_key, p.expires_at, enqueue_many.parent_id, enqueue_many.hops
        from (
            -- of a group, what comes later in this list stands behind its first
            select p.*, case when p.group_key is null then 1
                else row_number() over (partition by p.tenant, p.group_key order by p.n) end as turn
            from parsed p where p.stands is null) p
    ), tapped as materialized (
        select count(postrow.tap(enqueue_many.queue, t.tenant)) as taps
        from (select distinct p.tenant from parsed p) t
    )
    select p.n, coalesce(p.stands, p.new_id), p.stands is not null from parsed p cross join tapped order by p.n;
end
$$

-- next
-- Puts many messages into a queue that differ in their payloads alone: one JSON value a line, as JSON Lines files have it
-- (a line feed within a JSON text is always escaped). In 0.6 of the time of enqueue_many: nothing is wrapped and taken out
-- again, and no row is given for each. The options are those of enqueue that can hold for many.
-- Gives how many they are, and the first one's id; the others' follow one by one: the id of message n, from 1, is
-- first_id + n - 1, as a number. No message: 0, and no id. Raises what enqueue raises; 22P02 for a line that is not JSON.
create or replace function postrow.enqueue_lines(
    queue text, payloads text, tenant text default 'default', priority int default 0,
    delay interval default null, available_at timestamptz default null, max_attempts int default null,
    target text default null, target_for interval default null, subject text default null,
    group_key text default null, expires_at timestamptz default null, headers jsonb default null,
    parent_id uuid default null, hops int default 0, out first_id uuid, out messages int
)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := postrow.clock();
    v_by     text := postrow.caller();
    -- Ids that differ in their last eight digits alone, which count up: a UUIDv7's random part may (RFC 9562, section
    -- 6.2). They begin with 1 to 7: so they are eight, and no list is so long that they come to their end.
    v_id     text := postrow.uuid7_at((date_part('epoch', v_now) * 1000000)::bigint, gen_random_uuid());
    v_head   text := left(v_id, 28);
    v_tail   bigint := (('x' || right(v_id, 8))::bit(32)::bigint & x'6fffffff'::bigint) + x'10000000'::bigint;
begin
    perform postrow.check_message(queue, tenant, priority, delay, available_at, max_attempts, target,
        target_for, subject, group_key, null, null, null, expires_at, headers);
    if payloads is null then
        perform postrow.refuse('payloads is null', 'Give a text with one JSON value a line.');
    end if;
    perform postrow.check_hops(hops);
    if payloads <> '' and get_byte(convert_to(payloads, getdatabaseencoding()), octet_length(payloads) - 1) = 10 then
        payloads := rtrim(payloads, E'\r\n');  -- a file ends with a line feed; rtrim alone takes a tenth of the time
    end if;
    insert into postrow.message (tenant, id, queue, priority, payload, headers, enqueued_at, enqueued_by,
        available_at, max_attempts, target, target_until, subject, group_key, behind, expires_at, parent_id, hops)
    select enqueue_lines.tenant, (v_head || to_hex(v_tail + l.n))::uuid, enqueue_lines.queue,
        enqueue_lines.priority,
        -- as short a text is never too long as jsonb writes it: of 9 bytes it makes 131,074
        case when octet_length(l.line) > 16384 then postrow.long_line(l.line, l.n) else l.line::jsonb end,
        enqueue_lines.headers, l.stamp, v_by, l.due,
        enqueue_lines.max_attempts, enqueue_lines.target, l.due + enqueue_lines.target_for,
        enqueue_lines.subject, enqueue_lines.group_key, enqueue_lines.group_key is not null and l.n > 1,
        enqueue_lines.expires_at, enqueue_lines.parent_id, enqueue_lines.hops
    from (
        select p.line, p.n, p.stamp,
            greatest(coalesce(enqueue_lines.available_at, p.stamp + enqueue_lines.delay), p.stamp) as due
        from (
            select s.line, s.n, v_now + s.n * interval '1 microsecond' as stamp
            from string_to_table(enqueue_lines.payloads, E'\n') with ordinality s(line, n)
            offset 0  -- or the sum is made at each place where its result is used
        ) p
    ) l;
    get diagnostics messages = row_count;
    if messages > 0 then
        first_id := (v_head || to_hex(v_tail + 1))::uuid;
        perform postrow.tap(queue, tenant);
    end if;
end
$$
