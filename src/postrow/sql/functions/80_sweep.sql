-- The sweep: what makes every promise true in the end. Each step is one function, bounded by a limit, waits for nobody
-- and knows no handler. All but postrow.sweep are internal; each gives how many rows it did.

-- Expired leases: failures like any other, by the consumer's policy, or dead letters with reason `lease`.
-- Starts where the session's last sweep ended (setting postrow.swept_to: `<clock> <moment of the next deep pass>`, a
-- hint; a text that does not parse counts as none), since vacuum can remove nothing under a long transaction and the index
-- would be walked from its dead beginning each time; a deep pass from the beginning comes every 10 s, and
-- where it is slow after twenty times what it took, 60 s at most. The frontier
-- never passes an expired row that was left, be it locked by others or beyond the limit.
create or replace function postrow.sweep_leases("limit" int, now timestamptz) returns int
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
declare
    v_state     text[] := regexp_match(current_setting('postrow.swept_to', true),
        '^([0-9]{1,12}\.[0-9]{6}) ([0-9]{1,12}\.[0-9]{6})$');
    v_clock     double precision := date_part('epoch', sweep_leases.now);
    v_deep      double precision := v_state[2]::double precision;
    v_began     timestamptz := clock_timestamp();
    v_from      timestamptz := '-infinity';
    v_tenants   text[];
    v_ids       uuid[];
    v_errors    text[];
    v_frontier  timestamptz;
begin
    if v_deep - v_clock between 0 and 60 then
        v_from := least(to_timestamp(v_state[1]::double precision), sweep_leases.now);
    end if;
    select array_agg(e.tenant), array_agg(e.id), array_agg(format('the lease of worker %s, claimed at %s, expired at %s',
            coalesce(e.claimed_by, 'unknown'), e.claimed_at, e.available_at))
        into v_tenants, v_ids, v_errors
    from (
        select m.tenant, m.id, m.claimed_by, m.claimed_at, m.available_at from postrow.message m
        where m.claim_token is not null and m.available_at < sweep_leases.now and m.available_at >= v_from
        order by m.available_at limit sweep_leases."limit"
        for update skip locked
    ) e;
    if v_ids is not null then
        perform postrow.retry_or_kill(v_tenants, v_ids, v_errors,
            array_fill('lease_expired'::text, array[cardinality(v_ids)]), null, null, 'lease', sweep_leases.now);
    end if;
    -- not min(): with old statistics that reads all that is expired, where this reads one
    select m.available_at into v_frontier from postrow.message m
    where m.claim_token is not null and m.available_at < sweep_leases.now and m.available_at >= v_from
    order by m.available_at limit 1;
    if v_from = '-infinity' then
        v_deep := v_clock + least(greatest(20 * date_part('epoch', clock_timestamp() - v_began), 10), 60);
    end if;
    perform set_config('postrow.swept_to', format('%s %s',
        -- extract and not date_part: a double cast to numeric keeps 15 digits, so 10 microseconds at best
        round(extract(epoch from coalesce(v_frontier, sweep_leases.now - interval '0.2 s')), 6),
        round(v_deep::numeric, 6)), false);
    return coalesce(cardinality(v_ids), 0);
end
$$

-- next
-- Messages past their expires_at that nobody holds: dead letters, reason `expired`.
create or replace function postrow.sweep_expired("limit" int, now timestamptz) returns int
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    v_tenants   text[];
    v_ids       uuid[];
    v_failures  jsonb[];
begin
    select array_agg(e.tenant), array_agg(e.id), array_agg(e.failures) into v_tenants, v_ids, v_failures
    from (
        select m.tenant, m.id, m.failures from postrow.message m
        where m.expires_at <= sweep_expired.now and m.claim_token is null
        order by m.expires_at limit sweep_expired."limit"
        for update skip locked
    ) e;
    perform postrow.kill(v_tenants, v_ids, array_fill('expired'::text, array[coalesce(cardinality(v_ids), 0)]),
        v_failures, sweep_expired.now);
    return coalesce(cardinality(v_ids), 0);
end
$$

-- next
-- Messages whose target did not claim them in time: anybody's now.
create or replace function postrow.sweep_targets("limit" int, now timestamptz) returns int
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    v_tids  tid[];
    v_done  int;
    v_taps  int;
begin
    -- two statements, as in 60_claim.sql: a join of both read all dead rows of the table under a long transaction
    v_tids := array(
        select m.ctid from postrow.message m
        where m.target_until <= sweep_targets.now and m.claim_token is null
        order by m.target_until limit sweep_targets."limit"
        for update skip locked);
    if v_tids = '{}' then
        return 0;
    end if;
    with freed as (
        update postrow.message m set target = null, target_until = null where m.ctid = any (v_tids)
        returning m.queue, m.tenant
    )
    select coalesce(sum(t.n), 0), count(postrow.tap(t.queue, t.tenant)) into v_done, v_taps
    from (select f.queue, f.tenant, count(*) as n from freed f group by f.queue, f.tenant) t;
    return v_done;
end
$$

-- next
-- Groups in which something is behind and nothing stands in front of it: its first message is set free. Who takes a message
-- away does that, but for a race of two that end at the same time; so each group is looked at, at most each 10 s, in the order of
-- the index, five times "limit" a call, and `more` until all were. Where the session's last call ended is in the setting
-- postrow.swept_groups, a hint: `<moment> <queue> <tenant> <key>`; a text that does not parse counts as none.
create or replace function postrow.sweep_groups("limit" int, now timestamptz, out done int, out more boolean)
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
declare
    v_state    text[] := regexp_match(current_setting('postrow.swept_groups', true),
        '^([0-9]{1,12}) ([^ ]*) ([^ ]*) (.*)$');
    v_clock    bigint := date_part('epoch', sweep_groups.now)::bigint;
    v_from     text[] := '{"","",""}';
    v_most     bigint := 5 * sweep_groups."limit"::bigint;
    v_queues   text[];
    v_tenants  text[];
    v_keys     text[];
    v_count    int;
begin
    done := 0;
    more := false;
    if v_state[2] <> '' and v_clock - v_state[1]::bigint between 0 and 60 then
        v_from := v_state[2:4];
    elsif v_clock - v_state[1]::bigint between 0 and 9 then
        return;  -- all were looked at a moment ago
    end if;
    with recursive g as (
        (select m.queue, m.tenant, m.group_key, 1 as n from postrow.message m
         where m.behind and m.claim_token is null and (m.queue, m.tenant, m.group_key) > (v_from[1], v_from[2], v_from[3])
         order by m.queue, m.tenant, m.group_key limit 1)
        union all
        select f.*, g.n + 1 from g cross join lateral (
            select m.queue, m.tenant, m.group_key from postrow.message m
            where m.behind and m.claim_token is null and (m.queue, m.tenant, m.group_key) > (g.queue, g.tenant, g.group_key)
            order by m.queue, m.tenant, m.group_key limit 1) f
        where g.n < v_most
    )
    select array_agg(g.queue order by g.n), array_agg(g.tenant order by g.n), array_agg(g.group_key order by g.n)
        into v_queues, v_tenants, v_keys
    from g;
    v_count := coalesce(cardinality(v_keys), 0);
    done := postrow.promote(v_queues, v_tenants, v_keys, sweep_groups.now, wait => false);
    more := v_count >= v_most;
    perform set_config('postrow.swept_groups', case when more
        then format('%s %s %s %s', v_clock, v_queues[v_count], v_tenants[v_count], v_keys[v_count])
        else v_clock || '   ' end, false);
end
$$

-- next
-- Keys of the ledger past their time. An id, or a key with dedup_while, whose message still lives, or waits as an open dead
-- letter, stays a day more; a key with dedup_for and one of `once` have a time and no more.
create or replace function postrow.sweep_seen("limit" int, now timestamptz) returns int
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    v_done  int;
begin
    with old as materialized (
        select s.tenant, s.scope, s.key, (s.scope = 'id' or s.scope like 'while %') and (
            exists (select from postrow.message m where m.tenant = s.tenant and m.id = s.message_id)
            or exists (select from postrow.dead_letter d where d.tenant = s.tenant and d.id = s.message_id
                and d.resolved_at is null)) as lives
        from postrow.seen s
        where s.until <= sweep_seen.now
        order by s.until limit sweep_seen."limit"
        for update of s skip locked
    ), kept as (
        update postrow.seen s set until = sweep_seen.now + interval '1 day' from old o
        where o.lives and s.tenant = o.tenant and s.scope = o.scope and s.key = o.key
        returning 1
    ), gone as (
        delete from postrow.seen s using old o
        where not o.lives and s.tenant = o.tenant and s.scope = o.scope and s.key = o.key
        returning 1
    )
    select (select count(*) from kept) + (select count(*) from gone) into v_done;
    return v_done;
end
$$

-- next
-- Workers that have not been heard of for a day, and buckets that have been full for as long. Nothing depends on their rows.
create or replace function postrow.sweep_workers("limit" int, now timestamptz) returns int
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_done  int;
begin
    with old as materialized (
        select w.id from postrow.worker w where w.beat_at < sweep_workers.now - interval '1 day'
        limit sweep_workers."limit" for update skip locked
    ), gone as (
        delete from postrow.worker w using old o where w.id = o.id returning 1
    )
    select count(*) into v_done from gone;
    -- one that is not there is full: a year is the longest period
    delete from postrow.bucket b where b.ctid in (
        select f.ctid from postrow.bucket f
        where f.at < sweep_workers.now - interval '1 day' and not exists (
            select from postrow.consumer c where c.queue = f.queue
                and f.at > sweep_workers.now - case when f.scope = 'tenant' then c.tenant_rate_period else c.rate_period end)
        limit sweep_workers."limit" for update skip locked);
    return v_done;
end
$$

-- next
-- Partitions of the history, a day of UTC each: one day a call is made, from today to a week ahead, together
-- with the rows of that day that stand in the default partition; else one that is older than the setting
-- history_days is dropped. Both need a lock on the parent, and every ack would queue behind one that waits: so
-- it waits 50 ms at most, and a later call tries again. So it does where an ack has come between the look at the default
-- partition and the lock: under steady acks a day whose rows stand there gets its partition when it is over. Days ahead come first.
-- A call moves 100 times "limit" rows at most, since until it ends nothing else is swept: a day that is over and has more gets
-- several partitions, `history_<day>_<time of its first row>`, and one that is not over waits until it is.
create or replace function postrow.sweep_history("limit" int, now timestamptz) returns int
language plpgsql volatile set lock_timeout = '50ms' set timezone = 'UTC' set datestyle = 'ISO' set jit = off
set plan_cache_mode = force_custom_plan set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    v_today  date := sweep_history.now::date;
    v_most   bigint := 100 * sweep_history."limit"::bigint;
    v_names  text[];  -- of the partitions there are
    v_day    date;
    v_name   text;
    v_parts  boolean;  -- whether the day has several
    v_last   timestamptz;
    v_from   timestamptz;
    v_to     timestamptz;
begin
    v_names := array(
        select c.relname::text from pg_catalog.pg_inherits i join pg_catalog.pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'postrow.history'::regclass and c.relname ~ '^history_[0-9]{8}(_[0-9]{12})?$' order by 1);
    select d.day into v_day
    from (
        select s.day::date as day, s.day::date = v_today and exists (select from postrow.history_default) as last
        from generate_series(v_today::timestamp, v_today + 7, interval '1 day') s(day)
        where not exists (select from unnest(v_names) n where n like 'history_' || to_char(s.day, 'YYYYMMDD') || '%')
            and not exists (select from postrow.history_default h
                where h.finished_at >= s.day and h.finished_at < s.day + interval '1 day' offset v_most)
        union all
        select h.finished_at::date, false from (
            (select finished_at from postrow.history_default where finished_at < v_today order by finished_at limit 1)
            union all
            (select finished_at from postrow.history_default where finished_at >= v_today + 8 order by finished_at limit 1)) h
    ) d
    order by d.last, d.day < v_today, d.day limit 1;
    if v_day is not null then
        v_name := 'history_' || to_char(v_day, 'YYYYMMDD');
        v_from := v_day;
        v_to := v_day + 1;
        v_parts := exists (select from unnest(v_names) n where n like v_name || '\_%') or exists (
            select from postrow.history_default h where h.finished_at >= v_from and h.finished_at < v_to offset v_most);
        if v_parts then
            -- up to the last of so many rows, and with all of its moment; and not into a partition that follows
            select min(f.finished_at), max(f.finished_at) into v_from, v_last
            from (select h.finished_at from postrow.history_default h
                where h.finished_at >= v_from and h.finished_at < v_to order by h.finished_at limit v_most) f;
            v_to := least(v_to, v_last + interval '1 us', (
                select min(p.start) from (
                    select to_timestamp(substr(n, 9), 'YYYYMMDD_HH24MISSUS') as start
                    from unnest(v_names) n where n like v_name || '\_%') p
                where p.start > v_from));
            v_name := 'history_' || to_char(v_from, 'YYYYMMDD_HH24MISSUS');
        end if;
        if to_regclass('postrow.' || v_name) is not null then
            return 0;  -- rows of a day that has its partition cannot be in the default one
        end if;
        -- whether the lock can be had, before all these rows are moved: a long reader of history would have it done in vain
        begin
            lock table postrow.history_default in access exclusive mode;
            raise triggered_action_exception;  -- gives it back
        exception when triggered_action_exception then
            null;
        end;
        -- with its indexes: to make them while it is attached would be under the lock
        execute format('create table postrow.%I (like postrow.history including defaults including constraints '
            'including storage including indexes)', v_name);
        execute format('with moved as (delete from postrow.history_default where finished_at >= %1$L and '
            'finished_at < %2$L returning *) insert into postrow.%3$I select * from moved', v_from, v_to, v_name);
        execute format('alter table postrow.history attach partition postrow.%I for values from (%L) to (%L)',
            v_name, v_from, v_to);
        return 1;
    end if;
    select n into v_name from unnest(v_names) n
    where substr(n, 9, 8)::date + 1 + postrow.setting('history_days')::int <= v_today
    order by n limit 1;
    if found then
        execute format('drop table postrow.%I', v_name);
        return 1;
    end if;
    return 0;
exception
    when lock_not_available or check_violation then
        return 0;
end
$$

-- next
-- Dead letters that died, or were decided, more than the setting dead_letter_days ago. 0, the default: none ever. Those that
-- block a group stay until they are decided, and are not read here: of open ones of groups only the queues and tenants whose
-- consumer lets a group go on are looked at.
create or replace function postrow.sweep_dead("limit" int, now timestamptz) returns int
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
declare
    v_days  int := postrow.setting('dead_letter_days')::int;
    v_old   timestamptz;
    v_tids  tid[];
begin
    if v_days = 0 then
        return 0;
    end if;
    v_old := sweep_dead.now - v_days * interval '1 day';
    v_tids := array(
        select d.ctid from postrow.dead_letter d
        where coalesce(d.resolved_at, d.died_at) < v_old and (d.resolved_at is not null or d.group_key is null)
        order by coalesce(d.resolved_at, d.died_at) limit sweep_dead."limit"
        for update skip locked);
    if cardinality(v_tids) < sweep_dead."limit" then
        v_tids := v_tids || array(
            select f.ctid from postrow.dead_of_groups() o cross join lateral (
                select d.ctid from postrow.dead_letter d
                where d.queue = o.queue and d.tenant = o.tenant and d.resolved_at is null and d.died_at < v_old
                    and d.group_key is not null
                order by d.died_at limit sweep_dead."limit" - cardinality(v_tids)
                for update skip locked) f
            where (postrow.consumer_of(o.queue, o.tenant)).on_dead is distinct from 'block'
            limit sweep_dead."limit" - cardinality(v_tids));
    end if;
    delete from postrow.dead_letter d where d.ctid = any (v_tids);
    return cardinality(v_tids);
end
$$

-- next
-- One call is one transaction and one step of the sweep; `step` null runs each once. Steps: leases, expired, targets,
-- groups, seen, history, dead, workers. Gives what was done and whether there may be more. A transaction-level lock makes it one sweeper at a time: a call that does not get it
-- gives no rows and returns at once. Who calls it: any worker, `postrow sweep`, or pg_cron. Bounded by "limit" rows.
-- Locks rows with skip locked. Raises PW003.
create or replace function postrow.sweep(step text default null, "limit" int default 1000)
returns setof postrow.swept
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := postrow.clock();
    v_step   text;
    v_done   int;
    v_more   boolean;
    v_limit  int := sweep."limit";
begin
    perform postrow.check_limit('limit', sweep."limit");
    if (sweep.step in ('leases', 'expired', 'targets', 'groups', 'seen', 'history', 'dead', 'workers')) is false then
        perform postrow.refuse(format('step is %L', sweep.step),
            'Give leases, expired, targets, groups, seen, history, dead or workers; leave it out for all.');
    end if;
    if not pg_try_advisory_xact_lock(1886613364, 1) then  -- 'prow' in ASCII; 1: the sweep, 2: migrations
        return;
    end if;
    foreach v_step in array array['leases', 'expired', 'targets', 'groups', 'seen', 'history', 'dead', 'workers'] loop
        continue when v_step <> sweep.step;
        if v_step = 'groups' then
            select g.done, g.more into v_done, v_more from postrow.sweep_groups(v_limit, v_now) g;
        else
            v_done := case v_step
                when 'leases' then postrow.sweep_leases(v_limit, v_now)
                when 'expired' then postrow.sweep_expired(v_limit, v_now)
                when 'targets' then postrow.sweep_targets(v_limit, v_now)
                when 'seen' then postrow.sweep_seen(v_limit, v_now)
                when 'history' then postrow.sweep_history(v_limit, v_now)
                when 'dead' then postrow.sweep_dead(v_limit, v_now)
                else postrow.sweep_workers(v_limit, v_now) end;
            v_more := case when v_step = 'history' then v_done > 0 else v_done >= v_limit end;
        end if;
        return next (v_step, v_done, v_more)::postrow.swept;
    end loop;
end
$$

-- next
-- Whether it is this worker's turn to sweep: it had the last one, or that was more than 2.5 s ago. One of a fleet sweeps each second,
-- and the others only ask now and then; the sweep itself costs 200 idle workers more than all else that they do. Two that
-- ask at the same moment may both be told so, until one asks again: that is harmless. Who had the last turn stands in a memory
-- cell as those of taps do (30_tap.sql): 41 bits of milliseconds, 21 of the worker's id. Who calls it: workers. Locks nothing.
create or replace function postrow.sweep_turn(worker uuid) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_last  bigint := pg_sequence_last_value('postrow.sweeper'::regclass);
    v_now   bigint := (date_part('epoch', clock_timestamp()) * 1000)::bigint;
    v_mine  bigint := hashtext(sweep_turn.worker::text) & 2097151;
begin
    if v_last & 2097151 <> v_mine and v_now - (v_last >> 21) between 0 and 2500 then
        return false;
    end if;
    perform setval('postrow.sweeper'::regclass, (v_now << 21) | v_mine);
    return true;
end
$$
