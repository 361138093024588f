-- postrow.doctor(), and what it finds in the messages. Like the checks of the server: one function a check, internal. They
-- walk lanes by loose index scans and count nothing, so that ten million messages are no reason not to ask.

-- Whether workers work on this database, or on the one that it was copied from. Internal.
create or replace function postrow.doctor_copy(out level text, out detail text, out advice text)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_from  text := postrow.copied_from();
    v_home  postrow.home;
begin
    if v_from is not null then
        level := 'problem';
        detail := format('this database has the messages of %s: workers refuse to start', v_from);
        advice := 'If they are to be handled here, once more perhaps, run: postrow adopt';
        return;
    end if;
    select h.* into v_home from postrow.home h;
    level := 'ok';
    detail := case when v_home is null then 'no worker has started here yet'
        else format('workers have worked on it since %s', to_char(v_home.adopted_at, 'YYYY-MM-DD')) end;
end
$$

-- next
-- The oldest ready message of each queue and tenant, those of nobody in particular. Internal.
create or replace function postrow.oldest_ready(now timestamptz)
returns table (queue text, tenant text, due timestamptz)
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
begin
    return query
    with recursive lane as (
        (select m.queue, m.tenant, m.priority, m.available_at from postrow.message m
         where m.claim_token is null and m.target is null and not m.behind
         order by m.queue, m.tenant, m.priority, m.available_at limit 1)
        union all
        select n.* from lane l cross join lateral (
            select m.queue, m.tenant, m.priority, m.available_at from postrow.message m
            where m.claim_token is null and m.target is null and not m.behind
                and (m.queue, m.tenant, m.priority) > (l.queue, l.tenant, l.priority)
            order by m.queue, m.tenant, m.priority, m.available_at limit 1) n
    )
    select l.queue, l.tenant, min(l.available_at) from lane l
    where l.available_at <= oldest_ready.now group by l.queue, l.tenant;
end
$$

-- next
-- The oldest ready message of each queue and target, and until when it waits for it. Internal.
create or replace function postrow.oldest_targeted(now timestamptz)
returns table (queue text, tenant text, target text, due timestamptz, target_until timestamptz)
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
begin
    return query
    with recursive lane as (
        (select m.queue, m.target, m.tenant, m.priority, m.available_at, m.target_until from postrow.message m
         where m.claim_token is null and m.target is not null and not m.behind
         order by m.queue, m.target, m.tenant, m.priority, m.available_at limit 1)
        union all
        select n.* from lane l cross join lateral (
            select m.queue, m.target, m.tenant, m.priority, m.available_at, m.target_until from postrow.message m
            where m.claim_token is null and m.target is not null and not m.behind
                and (m.queue, m.target, m.tenant, m.priority) > (l.queue, l.target, l.tenant, l.priority)
            order by m.queue, m.target, m.tenant, m.priority, m.available_at limit 1) n
    )
    select l.queue, l.tenant, l.target, l.available_at, l.target_until from lane l
    where l.available_at <= oldest_targeted.now;
end
$$

-- next
-- Queues whose oldest message has been ready for over a minute: those that no living worker handles (`served` false), or
-- those that one does, and does not keep up with. Not what is paused, which is a check of its own. Internal.
create or replace function postrow.doctor_queues(
    now timestamptz, served boolean, out level text, out detail text, out advice text
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_oldest  timestamptz;
    v_names   text[];
begin
    select min(q.due), array_agg(format('%s (%s%s)', q.queue,
            case when q.tenants > 1 then format('%s tenants, ', q.tenants) else '' end,
            postrow.said(doctor_queues.now - q.due)) order by q.due, q.queue)
        into v_oldest, v_names
    from (
        select r.queue, count(*) as tenants, min(r.due) as due
        from postrow.oldest_ready(doctor_queues.now) r
        where r.due < doctor_queues.now - interval '1 min'
            and not exists (select from postrow.pause p where p.queue in (r.queue, '*') and p.tenant in (r.tenant, '*'))
            and doctor_queues.served = (
                postrow.living(r.queue, (postrow.consumer_of(r.queue, r.tenant)).tenant, doctor_queues.now) > 0
                -- a worker of the queue may have it for another tenant only
                and ((postrow.consumer_of(r.queue, r.tenant)).handler is not null
                    or not exists (select from postrow.consumer c where c.queue = r.queue)))
        group by r.queue
    ) q
    where not doctor_queues.served or q.due < doctor_queues.now - interval '10 min';
    if doctor_queues.served then
        level := case when v_names is null then 'ok' else 'warning' end;
        detail := case when v_names is null then 'no worker is ten minutes behind'
            else format('workers are behind, the oldest ready message of %s', postrow.listed(v_names)) end;
        advice := case when v_names is not null
            then 'Start more workers, or raise their concurrency; or its limits hold it back: postrow consumer list. See how '
                'long handlers take: postrow.history.' end;
    else
        level := coalesce(postrow.grade(doctor_queues.now - v_oldest, '1 min', '10 min'), 'ok');
        detail := case when v_names is null then 'every queue with ready messages has a worker'
            else format('ready messages, and no living worker: %s', postrow.listed(v_names)) end;
        advice := case when v_names is not null
            then 'Start a worker that handles them: postrow worker MODULE:APP. See: postrow status' end;
    end if;
end
$$

-- next
-- Messages for one worker that has not been heard of for a minute. Internal.
create or replace function postrow.doctor_targets(now timestamptz, out level text, out detail text, out advice text)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_names  text[];
    v_worst  text;
begin
    select array_agg(format('%s for %s (%s, %s)', t.queue, t.target, postrow.said(doctor_targets.now - t.due),
            case when w.seen > doctor_targets.now - interval '1 min' then 'does not handle that queue'
                else coalesce('last seen ' || postrow.said(doctor_targets.now - w.seen) || ' ago', 'never seen') end)
            order by t.due),
        case when bool_or(t.due_for_ever < doctor_targets.now - interval '10 min') then 'problem' else 'warning' end
        into v_names, v_worst
    from (
        select o.queue, o.target, min(o.due) as due, min(o.due) filter (where o.target_until is null) as due_for_ever
        from postrow.oldest_targeted(doctor_targets.now) o
        where o.due < doctor_targets.now - interval '1 min'
        group by o.queue, o.target
    ) t
    cross join lateral (
        select max(w.beat_at) as seen, max(w.beat_at) filter (where t.queue = any (w.queues)) as handled
        from postrow.worker w where w.name = t.target) w
    where (w.handled > doctor_targets.now - interval '1 min') is not true;
    level := case when v_names is null then 'ok' else v_worst end;
    detail := case when v_names is null then 'no message waits for a worker that is gone'
        else format('messages for a worker that is gone: %s', postrow.listed(v_names)) end;
    advice := case when v_names is not null
        then 'Start a worker of that name (postrow worker MODULE:APP --name NAME). Give target_for next time, so that others '
            'may have them after a while.' end;
end
$$

-- next
-- Pauses that ready messages have waited behind for over ten minutes. A person made them: never a problem. Internal.
create or replace function postrow.doctor_paused(now timestamptz, out level text, out detail text, out advice text)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_names  text[];
begin
    select array_agg(format('%s, paused %s ago by %s%s (%s)',
            case when p.tenant = '*' then p.queue when p.queue = '*' then 'tenant ' || p.tenant
                else format('%s of tenant %s', p.queue, p.tenant) end,
            postrow.said(doctor_paused.now - p.paused_at), p.paused_by, coalesce(': ' || left(p.reason, 80), ''),
            postrow.said(doctor_paused.now - r.due)) order by r.due)
        into v_names
    from postrow.pause p
    cross join lateral (
        select min(r.due) as due from (
            select o.queue, o.tenant, o.due from postrow.oldest_ready(doctor_paused.now) o
            union all
            select o.queue, o.tenant, o.due from postrow.oldest_targeted(doctor_paused.now) o
        ) r
        where p.queue in (r.queue, '*') and p.tenant in (r.tenant, '*')
    ) r
    where r.due < doctor_paused.now - interval '10 min' and p.paused_at < doctor_paused.now - interval '10 min';
    level := case when v_names is null then 'ok' else 'warning' end;
    detail := case when v_names is null then 'no messages wait for a pause to end'
        else format('ready messages wait for a pause to end: %s', postrow.listed(v_names)) end;
    advice := case when v_names is not null then 'When its reason is gone: postrow resume QUEUE --tenant TENANT' end;
end
$$

-- next
-- Groups of which messages wait behind a dead letter that died over ten minutes ago, where the consumer lets it block them: a
-- person has to decide. Looks at 1,000 dead letters of each queue and tenant at most. Internal.
create or replace function postrow.doctor_groups(now timestamptz, out level text, out detail text, out advice text)
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
declare
    v_oldest  timestamptz;
    v_names   text[];
begin
    select min(g.died_at), array_agg(format('%s (%s, %s)', postrow.whose(g.queue, g.tenant),
            case when g.groups = 1 then '1 group' else g.groups || ' groups' end,
            postrow.said(doctor_groups.now - g.died_at)) order by g.died_at, g.queue, g.tenant)
        into v_oldest, v_names
    from (
        select o.queue, o.tenant, count(distinct b.group_key) as groups, min(b.died_at) as died_at
        from postrow.dead_of_groups() o
        cross join lateral (
            select d.group_key, d.died_at from postrow.dead_letter d
            where d.queue = o.queue and d.tenant = o.tenant and d.group_key is not null and d.resolved_at is null
            order by d.queue, d.tenant, d.group_key limit 1000) b
        where (postrow.consumer_of(o.queue, o.tenant)).on_dead = 'block'
            and b.died_at < doctor_groups.now - interval '10 min'
            and exists (select from postrow.message m
                where m.queue = o.queue and m.tenant = o.tenant and m.group_key = b.group_key and m.claim_token is null)
        group by o.queue, o.tenant
    ) g;
    level := coalesce(postrow.grade(doctor_groups.now - v_oldest, '10 min', '1 day'), 'ok');
    detail := case when v_names is null then 'no group waits for a decision about a dead letter'
        else format('groups wait behind a dead letter: %s', postrow.listed(v_names)) end;
    advice := case when v_names is not null
        then 'Decide them: postrow dead list --queue QUEUE, then postrow dead redrive ID, or postrow dead resolve ID --as handled --reason TEXT' end;
end
$$

-- next
-- Schedules that were due over a minute ago, and of which nobody has enqueued that time. Internal.
create or replace function postrow.doctor_schedules(now timestamptz, out level text, out detail text, out advice text)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_oldest  timestamptz;
    v_names   text[];
begin
    select min(s.next_at), array_agg(format('%s (%s)', postrow.whose(s.name, s.tenant),
            postrow.said(doctor_schedules.now - s.next_at)) order by s.next_at, s.name)
        into v_oldest, v_names
    from postrow.schedule s
    where s.next_at < doctor_schedules.now - interval '1 min' and not s.paused;
    level := coalesce(postrow.grade(doctor_schedules.now - v_oldest, '1 min', '10 min'), 'ok');
    detail := case when v_names is null then 'no schedule is late'
        else format('schedules that are late: %s', postrow.listed(v_names)) end;
    advice := case when v_names is not null
        then 'Start a worker (without --no-schedule). If one runs, its log says what is wrong with them.' end;
end
$$

-- next
-- Leases that ended over a minute ago, and that no sweep has taken. Counts 10,000 at most. Internal.
create or replace function postrow.doctor_leases(now timestamptz, out level text, out detail text, out advice text)
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_count   bigint;
    v_oldest  timestamptz;
begin
    select count(*), min(e.available_at) into v_count, v_oldest
    from (
        select m.available_at from postrow.message m
        where m.claim_token is not null and m.available_at < doctor_leases.now - interval '1 min'
        order by m.available_at limit 10000
    ) e;
    level := coalesce(postrow.grade(doctor_leases.now - v_oldest, '1 min', '10 min'), 'ok');
    detail := case when v_count = 0 then 'no lease has ended without being taken back'
        else format('leases that ended and were not taken back: %s, the first %s ago',
            case when v_count < 10000 then v_count::text else '10000 or more' end,
            postrow.said(doctor_leases.now - v_oldest)) end;
    advice := case when v_count > 0
        then 'Nobody sweeps: start a worker (without --no-sweep), or run: postrow sweep --every 1s' end;
end
$$

-- next
-- The history's days: the sweep makes them a week ahead. Rows in the default partition are never dropped. Internal.
create or replace function postrow.doctor_history(now timestamptz, out level text, out detail text, out advice text)
language plpgsql volatile set timezone = 'UTC'
as $$
#variable_conflict use_column
declare
    v_today    date := doctor_history.now::date;
    v_gaps     date[];   -- of today and the three days ahead: those without a partition
    v_missing  text[];   -- of these today and tomorrow
    v_strays   bigint;
    v_swept    boolean;  -- somebody does: the days ahead are there
begin
    select coalesce(array_agg(d.day), '{}') into v_gaps
    from (select v_today + n as day from generate_series(0, 3) n) d
    where not exists (
        select from pg_catalog.pg_inherits i join pg_catalog.pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'postrow.history'::regclass and c.relname = 'history_' || to_char(d.day, 'YYYYMMDD'));
    select array_agg(to_char(g.day, 'YYYY-MM-DD') order by g.day) into v_missing
    from unnest(v_gaps) g(day) where g.day <= v_today + 1;
    v_swept := v_today >= all (v_gaps);
    select count(*) into v_strays from (select from postrow.history_default limit 10000) h;
    level := case when v_strays = 0 and v_missing is null then 'ok'
        when v_swept or v_strays = 0 and v_today <> all (v_gaps) then 'warning' else 'problem' end;
    detail := concat_ws('; ',
        case when v_missing is not null then format('there is no partition for %s', array_to_string(v_missing, ', ')) end,
        case when v_strays > 0 then format('rows in the default partition: %s',
            case when v_strays < 10000 then v_strays::text else '10000 or more' end) end);
    if level = 'ok' then
        detail := 'there are partitions for today and tomorrow';
    elsif v_swept then
        advice := 'The sweep makes the partition of a day that has rows there when the day is over (UTC). If they stay for longer, a '
            'long transaction has postrow.history locked (the check snapshot).';
    else
        advice := 'The sweep makes them: start a worker, or run postrow sweep. If they stay away, a long transaction has '
            'postrow.history locked (the check snapshot).';
    end if;
end
$$

-- next
-- Living workers whose clock differs from the database's by over five seconds: what their handlers compute from it (a moment
-- to snooze until, the age of a token) is off by as much. Nothing of ours is. Internal.
create or replace function postrow.doctor_clocks(now timestamptz, out level text, out detail text, out advice text)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_names  text[];
begin
    select array_agg(format('%s on %s (%s %s)', w.name, w.host,
            postrow.said(greatest(w.skew, -w.skew)), case when w.skew > interval '0' then 'ahead' else 'behind' end)
            order by greatest(w.skew, -w.skew) desc, w.name)
        into v_names
    from postrow.worker w
    where w.beat_at > doctor_clocks.now - interval '1 min' and greatest(w.skew, -w.skew) > interval '5 s';
    level := case when v_names is null then 'ok' else 'warning' end;
    detail := case when v_names is null then 'no worker''s clock is five seconds off'
        else format('clocks of workers that differ from the database''s: %s', postrow.listed(v_names)) end;
    advice := case when v_names is not null then 'Let the machines set their clocks by one source (NTP).' end;
end
$$

-- next
-- What is wrong, and what to do: a row for each check, whatever it finds. `level` is ok, warning (look at it some day) or
-- problem (something does not work); advice is null when it is ok. Lists of names are cut after the first ten. It
-- gives up on a table that is locked for two seconds. Who calls it: `postrow doctor`. Locks nothing. Raises 55P03.
create or replace function postrow.doctor() returns table (name text, level text, detail text, advice text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
    v_now  timestamptz := postrow.clock();
begin
    return query select 'copy', d.* from postrow.doctor_copy() d;
    return query select 'consumers', d.* from postrow.doctor_queues(v_now, false) d;
    return query select 'backlog', d.* from postrow.doctor_queues(v_now, true) d;
    return query select 'targets', d.* from postrow.doctor_targets(v_now) d;
    return query select 'pauses', d.* from postrow.doctor_paused(v_now) d;
    return query select 'groups', d.* from postrow.doctor_groups(v_now) d;
    return query select 'schedules', d.* from postrow.doctor_schedules(v_now) d;
    return query select 'leases', d.* from postrow.doctor_leases(v_now) d;
    return query select 'history', d.* from postrow.doctor_history(v_now) d;
    return query select 'snapshot', d.* from postrow.doctor_snapshot(v_now) d;
    return query select 'vacuum', d.* from postrow.doctor_vacuum(v_now) d;
    return query select 'taps', d.* from postrow.doctor_taps() d;
    return query select 'freeze', d.* from postrow.doctor_freeze() d;
    return query select 'indexes', d.* from postrow.doctor_indexes() d;
    return query select 'privileges', d.* from postrow.doctor_privileges() d;
    return query select 'clocks', d.* from postrow.doctor_clocks(v_now) d;
end
$$
