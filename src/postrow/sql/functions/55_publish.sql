-- Topics: who publishes names a topic, and each subscription whose pattern fits it routes a message of its own to a queue.

-- Refuses a malformed topic or pattern: names whose segments between dots are not empty. In a pattern a segment may be
-- `*`, one segment, or `#`, any number of them, none too. Internal. Raises PW002.
create or replace function postrow.check_topic(what text, value text, pattern boolean) returns void
language plpgsql immutable parallel safe
as $$
begin
    if value is null or length(value) not between 1 and 200 or value !~ (case when pattern
            then '^([A-Za-z0-9_:-]+|\*|#)(\.([A-Za-z0-9_:-]+|\*|#))*$'
            else '^[A-Za-z0-9][A-Za-z0-9_:-]*(\.[A-Za-z0-9_:-]+)*$' end) then
        raise exception using errcode = 'PW002',
            message = format('%s %s is not a topic', what, coalesce(quote_literal(left(value, 250)), 'null')),
            hint = '1 to 200 of A-Z a-z 0-9 _ : - in segments with dots between them, none of them empty.' || case
                when pattern then ' In a pattern a segment may be * (one segment) or # (any number of them).' else '' end;
    end if;
end
$$

-- next
-- Whether a topic fits a pattern. `order.*` is one segment more, `order.#` any number, none too; `#` is everything. As a
-- regular expression over segments with a dot before each; of the other characters of names none means anything there. Internal.
create or replace function postrow.fits(topic text, pattern text) returns boolean
language sql immutable parallel safe
as $$
select case when fits.pattern ~ '[*#]' then '.' || fits.topic ~ ('^' || pg_catalog.replace(pg_catalog.replace(
        pg_catalog.replace(pg_catalog.replace('.' || fits.pattern, '.#', '>'), '.', '\.'), '*', '[^.]+'),
        '>', '(\.[^.]+)*') || '$')
    else fits.topic = fits.pattern end
$$

-- next
-- Routes what is published to a topic to a queue: for one tenant, or for all ('*'). `pattern`: a topic, or with `*` and
-- `#`. True when it is new. Who calls it: workers when they start, and admins. Locks its one row. Raises PW002.
create or replace function postrow.subscribe(pattern text, queue text, tenant text default '*') returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform postrow.check_topic('pattern', subscribe.pattern, true);
    perform postrow.check_name('queue', subscribe.queue);
    if subscribe.tenant is distinct from '*' then
        perform postrow.check_name('tenant', subscribe.tenant);
    end if;
    insert into postrow.subscription (tenant, pattern, queue, registered_by, registered_at)
    values (subscribe.tenant, subscribe.pattern, subscribe.queue, postrow.caller(), postrow.clock())
    on conflict do nothing;
    return found;
end
$$

-- next
-- Routes no more. What its queue holds stays there, and is handled as before. True when there was such a subscription.
create or replace function postrow.unsubscribe(pattern text, queue text, tenant text default '*') returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    delete from postrow.subscription s
    where s.tenant = unsubscribe.tenant and s.pattern = unsubscribe.pattern and s.queue = unsubscribe.queue;
    return found;
end
$$

-- next
-- The subscriptions; of one tenant with those for all, and those that a topic fits, if these are given.
create or replace function postrow.subscriptions(topic text default null, tenant text default null)
returns setof postrow.subscription
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
select s.* from postrow.subscription s
where (subscriptions.tenant is null or s.tenant in (subscriptions.tenant, '*'))
    and (subscriptions.topic is null or postrow.fits(subscriptions.topic, s.pattern))
order by s.pattern, s.queue, s.tenant
$$

-- next
-- The id of the message that a published id is in one queue: the same again when it is published again. A UUIDv8 (RFC
-- 9562, section 5.8): what is not version and variant is an MD5 of the id and the queue. Internal.
create or replace function postrow.id_in(queue text, id uuid) returns uuid
language sql immutable parallel safe
as $$
select pg_catalog.overlay(pg_catalog.overlay(pg_catalog.md5(id_in.id::text || ' ' || id_in.queue), '8', 13, 1), '8', 17, 1)::uuid
$$

-- next
-- Publishes to a topic, in the caller's transaction: a message for each queue that a subscription of the tenant, or of
-- all, routes it to; one for a queue, however many patterns fit. Each has its own attempts and its own end. Gives queue, id,
-- deduplicated and dead of each; nothing when nobody subscribes: then it is recorded in the history, outcome `unrouted`, of the
-- queue that has the topic's name. A caller's `id` makes one id for each queue: published again it is the same messages.
-- `hops` says how many times messages led to this one; over the setting max_hops (8) all of them are dead letters, reason
-- `hops`, so that handlers which publish to each other end. Reads subscriptions, which change when workers start.
-- Raises PW002, PW003, PW006, 40001.
create or replace function postrow.publish(
    topic text, payload jsonb, tenant text default 'default', priority int default 0, delay interval default null,
    available_at timestamptz default null, max_attempts int default null, subject text default null,
    group_key text default null, expires_at timestamptz default null, headers jsonb default null,
    inout id uuid default null, parent_id uuid default null, hops int default 0,
    out queue text, out deduplicated boolean, out dead boolean
) returns setof record
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now      timestamptz := postrow.clock();
    v_by       text := postrow.caller();
    v_given    uuid := publish.id;
    v_due      timestamptz;
    v_queues   text[];
    v_dead     boolean;
    v_present  uuid;
begin
    perform postrow.check_topic('topic', publish.topic, false);
    perform postrow.check_message('q', publish.tenant, publish.priority, publish.delay, publish.available_at,
        publish.max_attempts, null, null, publish.subject, publish.group_key, null, null, null, publish.expires_at,
        publish.headers);
    perform postrow.check_payload(publish.payload);
    perform postrow.check_hops(publish.hops);
    v_due := greatest(coalesce(publish.available_at, v_now + publish.delay), v_now);
    v_dead := publish.hops > 0 and publish.hops > postrow.setting('max_hops')::int;
    v_queues := array(select distinct s.queue from postrow.subscription s
        where s.tenant in (publish.tenant, '*') and postrow.fits(publish.topic, s.pattern) order by s.queue);
    if v_queues = '{}' then
        id := coalesce(v_given, postrow.uuid7());
        if v_given is null
            or postrow.take_id(publish.tenant, postrow.id_in('', v_given), '', v_due + interval '7 days', v_now) is null then
            insert into postrow.history (tenant, id, queue, priority, payload, headers, enqueued_at, enqueued_by,
                finished_at, attempt, max_attempts, subject, group_key, expires_at, topic, parent_id, hops, outcome)
            values (publish.tenant, id, publish.topic, publish.priority, publish.payload, publish.headers, v_now, v_by,
                v_now, 0, publish.max_attempts, publish.subject, publish.group_key, publish.expires_at, publish.topic,
                publish.parent_id, publish.hops, 'unrouted');
        end if;
        return;
    end if;
    foreach queue in array v_queues loop  -- in order: two calls with one id cannot deadlock
        if v_given is null then
            id := postrow.uuid7();
            v_present := null;
        else
            id := postrow.id_in(queue, v_given);
            v_present := postrow.take_id(publish.tenant, id, queue, v_due + interval '7 days', v_now);
        end if;
        deduplicated := v_present is not null;
        dead := v_dead and not deduplicated;
        if deduplicated then
            id := v_present;
        elsif dead then
            -- that id's message has died before, and was decided
            delete from postrow.dead_letter d where d.tenant = publish.tenant and d.id = publish.id;
            insert into postrow.dead_letter (tenant, id, queue, priority, payload, headers, enqueued_at, enqueued_by,
                died_at, attempt, max_attempts, subject, group_key, expires_at, topic, parent_id, hops, reason, failures)
            values (publish.tenant, id, queue, publish.priority, publish.payload, publish.headers, v_now, v_by,
                v_now, 0, publish.max_attempts, publish.subject, publish.group_key, publish.expires_at, publish.topic,
                publish.parent_id, publish.hops, 'hops', postrow.add_failure(null, 0, v_now, null, 'hops', format(
                    'published in a chain of %s handlers; max_hops is %s', publish.hops, postrow.setting('max_hops')), null));
        else
            insert into postrow.message (tenant, id, queue, priority, payload, headers, enqueued_at, enqueued_by,
                available_at, max_attempts, subject, group_key, expires_at, topic, parent_id, hops)
            values (publish.tenant, id, queue, publish.priority, publish.payload, publish.headers, v_now, v_by,
                v_due, publish.max_attempts, publish.subject, publish.group_key, publish.expires_at, publish.topic,
                publish.parent_id, publish.hops);
            perform postrow.tap(queue, publish.tenant);
        end if;
        return next;
    end loop;
end
$$
