-- Schedules: what is enqueued at times. When they come is worked out by clients (time zones and cron are theirs); that each
-- time is enqueued once is kept here, by the row's lock, its next_at, and an id that is made of the name and the time.

-- Refuses times that no scheduler could read, as far as SQL can tell: of a cron expression only how many fields it has. The
-- commonest mistakes are an interval that is not in seconds, and a moment without an offset. Internal. Raises PW003.
create or replace function postrow.check_times(kind text, spec text, timezone text) returns void
language plpgsql stable
as $$
begin
    if (kind in ('cron', 'every', 'at')) is not true then
        perform postrow.refuse(format('kind is %L', kind), 'Give cron, every or at.');
    elsif kind = 'cron' and spec !~ '^\s*\S+(\s+\S+){4,5}\s*$' then
        perform postrow.refuse(format('cron is %L', spec),
            'Five fields: minute, hour, day, month, day of week; or six, seconds first.');
    elsif kind = 'every' and (spec !~ '^[0-9]{1,9}(\.[0-9]{1,6})?$' or spec::float8 not between 1 and 316224000) then
        perform postrow.refuse(format('every is %L', spec), 'Give seconds: 300 for five minutes; from 1 to ten years.');
    elsif kind = 'at' and spec !~ '^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)$' then
        perform postrow.refuse(format('at is %L', spec), 'Such as 2026-05-01T12:00:00+02:00, with the offset.');
    end if;
    begin
        perform timezone(check_times.timezone, now()), case when kind = 'at' then spec::timestamptz end;
    exception when invalid_parameter_value then
        perform postrow.refuse(format('there is no time zone %L', check_times.timezone), 'Such as Europe/Berlin, or UTC.');
    when datetime_field_overflow or invalid_time_zone_displacement_value then
        perform postrow.refuse(format('at is %L', spec), 'There is no such moment.');
    end;
end
$$

-- next
-- Makes or changes a schedule. `kind` and `spec`: cron (an expression), every (seconds) or at (a moment); `next_at` is its
-- next time, as the client has worked it out: taken where the schedule is new or its times are others; null: none any more.
-- `missed` says what becomes of times at which nobody was there: skip, once (the last of them) or all (1,000 at most). The
-- last word wins; nothing is written where nothing differs. True when it was. Who calls it: workers when they start, and
-- admins. Locks its one row. Raises PW002, PW003.
create or replace function postrow.put_schedule(
    name text, queue text, payload jsonb, kind text, spec text, next_at timestamptz, timezone text default 'UTC',
    missed text default 'once', tenant text default 'default', priority int default 0, headers jsonb default null,
    max_attempts int default null
) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform postrow.check_name('name', put_schedule.name);
    perform postrow.check_message(put_schedule.queue, put_schedule.tenant, put_schedule.priority, null, null,
        put_schedule.max_attempts, null, null, null, null, null, null, null, null, put_schedule.headers);
    if put_schedule.payload is null or put_schedule.spec is null or put_schedule.timezone is null then
        perform postrow.refuse('payload, spec or timezone is null');
    elsif (put_schedule.missed in ('skip', 'once', 'all')) is not true then
        perform postrow.refuse(format('missed is %L', put_schedule.missed),
            'Give skip, once (the last missed time) or all (1,000 at most).');
    elsif not isfinite(put_schedule.next_at) then
        perform postrow.refuse('next_at has to be a finite moment, or null');
    end if;
    perform postrow.check_payload(put_schedule.payload);
    perform postrow.check_times(put_schedule.kind, put_schedule.spec, put_schedule.timezone);
    insert into postrow.schedule as s (tenant, name, kind, spec, timezone, queue, payload, priority, headers,
        max_attempts, missed, next_at, registered_by, registered_at)
    values (put_schedule.tenant, put_schedule.name, put_schedule.kind, put_schedule.spec, put_schedule.timezone,
        put_schedule.queue, put_schedule.payload, put_schedule.priority, put_schedule.headers,
        put_schedule.max_attempts, put_schedule.missed, put_schedule.next_at, postrow.caller(), postrow.clock())
    on conflict (tenant, name) do update
    set kind = excluded.kind, spec = excluded.spec, timezone = excluded.timezone, queue = excluded.queue,
        payload = excluded.payload, priority = excluded.priority, headers = excluded.headers,
        max_attempts = excluded.max_attempts, missed = excluded.missed,
        next_at = case when (s.kind, s.spec, s.timezone) = (excluded.kind, excluded.spec, excluded.timezone)
            then s.next_at else excluded.next_at end,
        registered_by = excluded.registered_by, registered_at = excluded.registered_at
    where (s.kind, s.spec, s.timezone, s.queue, s.payload, s.priority, s.headers, s.max_attempts, s.missed)
        is distinct from (excluded.kind, excluded.spec, excluded.timezone, excluded.queue, excluded.payload,
            excluded.priority, excluded.headers, excluded.max_attempts, excluded.missed);
    return found;
end
$$

-- next
-- Removes a schedule; what it has enqueued stays. True when there was one.
create or replace function postrow.drop_schedule(name text, tenant text default 'default') returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    delete from postrow.schedule s where s.tenant = drop_schedule.tenant and s.name = drop_schedule.name;
    return found;
end
$$

-- next
-- Pauses a schedule, or ends its pause: then the times that passed meanwhile are missed ones. True when there is one.
create or replace function postrow.pause_schedule(name text, paused boolean, tenant text default 'default')
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    update postrow.schedule s set paused = coalesce(pause_schedule.paused, true)
    where s.tenant = pause_schedule.tenant and s.name = pause_schedule.name;
    return found;
end
$$

-- next
-- The schedules, of one tenant or of all.
create or replace function postrow.schedules(tenant text default null) returns setof postrow.schedule
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
select s.* from postrow.schedule s where schedules.tenant is null or s.tenant = schedules.tenant order by s.tenant, s.name
$$

-- next
-- When the first schedule is due; null: there is none.
create or replace function postrow.next_schedule() returns timestamptz
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
select min(s.next_at) from postrow.schedule s where s.next_at is not null and not s.paused
$$

-- next
-- The schedules that are due, locked for the caller's transaction, with skip locked: one scheduler has each. Who calls
-- it: a worker, which then calls `fire` for each in the same transaction.
create or replace function postrow.due_schedules("limit" int default 100) returns setof postrow.schedule
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now  timestamptz := postrow.clock();
begin
    perform postrow.check_limit('limit', due_schedules."limit");
    return query
    select s.* from postrow.schedule s
    where s.next_at <= v_now and not s.paused
    order by s.next_at limit due_schedules."limit"
    for update skip locked;
end
$$

-- next
-- Enqueues a schedule's message for each of the times, and says when its next one is; null: none any more. Each time has an
-- id of its own: enqueued again, whoever does it, it is the same message. The headers say `schedule` and `scheduled_for`.
-- Gives how many are new. Nothing when the schedule is gone. Locks its row. Raises what enqueue raises.
create or replace function postrow.fire(
    name text, times timestamptz[], next_at timestamptz, tenant text default 'default'
) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_schedule  postrow.schedule;
    v_time      timestamptz;
    v_again     boolean;
    v_new       int := 0;
begin
    if fire.times is null or array_position(fire.times, null) is not null then
        perform postrow.refuse('times is null, or has a null in it');
    end if;
    select s.* into v_schedule from postrow.schedule s where s.tenant = fire.tenant and s.name = fire.name for update;
    if not found then
        return 0;
    end if;
    foreach v_time in array fire.times loop
        select e.deduplicated into v_again from postrow.enqueue(v_schedule.queue, v_schedule.payload,
            tenant => v_schedule.tenant, priority => v_schedule.priority, max_attempts => v_schedule.max_attempts,
            headers => coalesce(v_schedule.headers, '{}')
                || jsonb_build_object('schedule', v_schedule.name,
                'scheduled_for', to_char(v_time at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')),
            id => overlay(overlay(md5(format('%s %s %s', v_schedule.tenant, v_schedule.name, extract(epoch from v_time)))
                placing '8' from 13) placing '8' from 17)::uuid) e;
        v_new := v_new + case when v_again then 0 else 1 end;
    end loop;
    update postrow.schedule s
    set next_at = fire.next_at, last_at = coalesce((select max(u) from unnest(fire.times) u), s.last_at)
    where s.tenant = fire.tenant and s.name = fire.name;
    return v_new;
end
$$
