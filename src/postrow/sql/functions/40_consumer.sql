-- The consumer of a message's queue: the row for its tenant, else the row for all tenants; no row: null.
create or replace function postrow.consumer_of(queue text, tenant text) returns postrow.consumer
language sql stable
as $$
select c from postrow.consumer c
where c.queue = consumer_of.queue and c.tenant in (consumer_of.tenant, '*')
order by c.tenant = '*' limit 1
$$

-- next
-- The lease of a claim that gives none: the consumer's, else 60 seconds.
create or replace function postrow.lease_of(queue text, tenant text) returns interval
language sql stable
as $$
select coalesce((postrow.consumer_of(lease_of.queue, lease_of.tenant)).lease, interval '60 seconds')
$$

-- next
-- How long a message waits after its failed attempt number `attempt` (1 is the first).
-- exponential: base * factor^(attempt-1); linear: base * attempt; constant: base; then the cap, then, with
-- jitter, times a uniform number from 0.5 to 1, so that messages that failed together do not meet again.
-- Compared as logarithms first: attempt 1,000 of factor 10 is no number.
create or replace function postrow.retry_delay(
    attempt int, retry text, base interval, factor double precision, cap interval, jitter boolean
) returns interval
language sql volatile parallel safe
as $$
select pg_catalog.make_interval(secs => v.seconds
    * case when retry_delay.jitter then 0.5 + pg_catalog.random() * 0.5 else 1 end)
from (
    select case
        when s.base <= 0 then 0
        when retry_delay.retry = 'constant' then least(s.base, s.cap)
        when retry_delay.retry = 'linear' then least(s.base * greatest(retry_delay.attempt, 1), s.cap)
        when s.base >= s.cap then s.cap
        when (greatest(retry_delay.attempt, 1) - 1) * pg_catalog.ln(retry_delay.factor)
            >= pg_catalog.ln(s.cap / s.base) then s.cap
        else s.base * pg_catalog.power(retry_delay.factor, greatest(retry_delay.attempt, 1) - 1)
    end as seconds
    from (select pg_catalog.date_part('epoch', retry_delay.base) as base,
                 pg_catalog.date_part('epoch', retry_delay.cap) as cap) s
) v
$$

-- next
-- Makes `handler` the consumer of a queue, for one tenant or for all ('*'). Workers call it when they start.
-- The same handler again: its policy becomes the given one (the last start wins), and the row is written only
-- if something differs. Another handler: PW005, naming the present one, unless `replace`. `tells_dead`: each message of it that
-- dies is told, once, to the queue `<queue>:dead`. `on_dead`: what a group does when one of its messages dies: `continue`
-- with the next, or `block` until the dead letter is decided. Limits, null for none: `max_in_flight`, how many of its
-- messages may be claimed at once, and `rate`, how many each `rate_period`; and both for each tenant. Taps, as a limit may be wider now.
-- Locks that one row; enqueue and claim never do.
create or replace function postrow.register_consumer(
    queue text, handler text, tenant text default '*', kind text default 'worker',
    lease interval default '60 seconds', retry text default 'exponential',
    retry_base interval default '10 seconds', retry_factor double precision default 2,
    retry_cap interval default '1 hour', retry_jitter boolean default true,
    max_attempts int default 5, keep_history boolean default true, replace boolean default false,
    tells_dead boolean default false, on_dead text default 'continue', max_in_flight int default null,
    rate int default null, rate_period interval default '1 second', tenant_max_in_flight int default null,
    tenant_rate int default null, tenant_rate_period interval default '1 second'
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_new      postrow.consumer;
    v_present  postrow.consumer;
begin
    perform postrow.check_name('queue', register_consumer.queue);
    perform postrow.check_name('handler', register_consumer.handler);
    if register_consumer.tenant is distinct from '*' then
        perform postrow.check_name('tenant', register_consumer.tenant);
    end if;
    if register_consumer.lease is null or register_consumer.max_attempts is null
        or register_consumer.keep_history is null or register_consumer.retry_jitter is null
        or register_consumer.kind is null or register_consumer.tells_dead is null then
        perform postrow.refuse('lease, max_attempts, keep_history, retry_jitter, kind and tells_dead cannot be null',
            'Leave an option out to have its default.');
    end if;
    if (register_consumer.on_dead in ('continue', 'block')) is not true then
        perform postrow.refuse(format('on_dead is %L', register_consumer.on_dead),
            'Give continue, or block: a group waits then until its dead letter is decided.');
    end if;
    perform postrow.check_limits('max_in_flight', register_consumer.max_in_flight, 'rate', register_consumer.rate,
        register_consumer.rate_period);
    perform postrow.check_limits('tenant_max_in_flight', register_consumer.tenant_max_in_flight, 'tenant_rate',
        register_consumer.tenant_rate, register_consumer.tenant_rate_period);
    perform postrow.check_lease(register_consumer.lease);
    perform postrow.check_limit('max_attempts', register_consumer.max_attempts);
    if (register_consumer.retry in ('exponential', 'linear', 'constant')) is not true then
        perform postrow.refuse(format('retry is %L', register_consumer.retry),
            'Give exponential, linear or constant.');
    end if;
    perform postrow.check_duration('retry_base', register_consumer.retry_base);
    perform postrow.check_duration('retry_cap', register_consumer.retry_cap);
    if (register_consumer.retry_cap >= register_consumer.retry_base) is not true then
        perform postrow.refuse('retry_cap is shorter than retry_base', 'Give a cap of the base or more.');
    end if;
    if (register_consumer.retry_factor between 1 and 1000) is not true then
        perform postrow.refuse(format('retry_factor is %s', register_consumer.retry_factor),
            'Give a number from 1 to 1000.');
    end if;

    v_new := (register_consumer.tenant, register_consumer.queue, register_consumer.handler,
        register_consumer.kind, register_consumer.lease, register_consumer.retry,
        register_consumer.retry_base, register_consumer.retry_factor, register_consumer.retry_cap,
        register_consumer.retry_jitter, register_consumer.max_attempts, register_consumer.keep_history,
        register_consumer.tells_dead, register_consumer.on_dead, register_consumer.max_in_flight,
        register_consumer.tenant_max_in_flight, register_consumer.rate,
        case when register_consumer.rate is not null then register_consumer.rate_period end, register_consumer.tenant_rate,
        case when register_consumer.tenant_rate is not null then register_consumer.tenant_rate_period end,
        postrow.caller(), postrow.clock())::postrow.consumer;
    loop
        insert into postrow.consumer select v_new.* on conflict do nothing;
        exit when found;
        select c.* into v_present from postrow.consumer c
        where c.tenant = v_new.tenant and c.queue = v_new.queue for update;
        continue when not found;  -- unregistered since the insert
        if v_present.handler <> v_new.handler and register_consumer.replace is not true then
            raise exception using errcode = 'PW005',
                message = format('queue %s%s is consumed by handler %s, not %s', v_new.queue,
                    case when v_new.tenant = '*' then '' else format(' of tenant %s', v_new.tenant) end,
                    v_present.handler, v_new.handler),
                hint = format('One consumer for a queue: run `postrow consumer replace %s %s` to change it, '
                    'or name this handler %s.', v_new.queue, v_new.handler, v_present.handler);
        end if;
        v_present.registered_by := v_new.registered_by;
        v_present.registered_at := v_new.registered_at;
        if v_present is distinct from v_new then
            delete from postrow.consumer c where c.tenant = v_new.tenant and c.queue = v_new.queue;
            insert into postrow.consumer select v_new.*;
            perform postrow.tap(v_new.queue, '*');
        end if;
        return;
    end loop;
    perform postrow.tap(v_new.queue, '*');  -- its limits may be wider than those that held for the tenant before
end
$$

-- next
-- Who consumes a queue: a row for all tenants ('*') and one for each tenant with its own. Who calls it: workers, every few
-- seconds, so that one whose handler was replaced takes nothing more. Locks nothing.
create or replace function postrow.consumers(queue text) returns table (tenant text, handler text)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
select c.tenant, c.handler from postrow.consumer c where c.queue = consumers.queue order by c.tenant
$$

-- next
-- Takes the consumer of a queue away; its messages stay, and are retried by the defaults. True if there was one. Taps.
create or replace function postrow.unregister_consumer(queue text, tenant text default '*') returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    delete from postrow.consumer c
    where c.queue = unregister_consumer.queue and c.tenant = unregister_consumer.tenant;
    if not found then
        return false;
    end if;
    perform postrow.tap(unregister_consumer.queue, '*');  -- its limits are gone, too
    return true;
end
$$

-- next
-- Who calls, for the record: never used for authorisation.
create or replace function postrow.caller() returns text
language sql stable
as $$
select case when pg_catalog.current_setting('application_name') = '' then session_user::text
    else session_user || '@' || pg_catalog.current_setting('application_name') end
$$
