-- What postrow.doctor() finds in the server: vacuum and what holds it up, the notify queue, indexes, privileges. One
-- function a check, all internal: a level (ok, warning, problem), what was found, and what to do (null where nothing is).
-- They only read, so that they work on a standby too.

-- An age in one unit, rounded down: 4 s, 3 min, 3 h, 2 d. Internal.
create or replace function postrow.said(age interval) returns text
language sql immutable strict
as $$
select case
    when e.s >= 86400 then pg_catalog.floor(e.s / 86400) || ' d'
    when e.s >= 3600 then pg_catalog.floor(e.s / 3600) || ' h'
    when e.s >= 60 then pg_catalog.floor(e.s / 60) || ' min'
    else pg_catalog.floor(greatest(e.s, 0)) || ' s' end
from (select extract(epoch from said.age)) e(s)
$$

-- next
-- A list for a sentence, its first ten: a name has 200 characters at most, and there may be any number of them. Internal.
create or replace function postrow.listed(names text[]) returns text
language sql immutable
as $$
select pg_catalog.array_to_string(names[1:10], ', ')
    || case when pg_catalog.cardinality(names) > 10
        then pg_catalog.format(' and %s more', pg_catalog.cardinality(names) - 10) else '' end
$$

-- next
-- A name, and whose it is where that is not the default tenant's. Internal.
create or replace function postrow.whose(name text, tenant text) returns text
language sql immutable
as $$
select whose.name || case when whose.tenant <> 'default' then ' of tenant ' || whose.tenant else '' end
$$

-- next
-- How bad something is that has gone on for a time. Internal.
create or replace function postrow.grade(age interval, warning interval, problem interval) returns text
language sql immutable
as $$
select case when age > problem then 'problem' when age > warning then 'warning' else 'ok' end
$$

-- next
-- What holds back the oldest snapshot: vacuum removes nothing that died since. Only what counts for our tables: sessions and
-- prepared transactions of this database, and of replication the xmin (not catalog_xmin). What has no time is graded by
-- transactions: from 100,000 on, a minute or less of a busy queue. A query is shown to those who may see it anyway. Internal.
create or replace function postrow.doctor_snapshot(now timestamptz, out level text, out detail text, out advice text)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_sees    boolean := pg_has_role(session_user, 'pg_read_all_stats', 'usage');
    v_holder  record;
begin
    select h.*, count(*) over () as holders into v_holder from (
        select postrow.grade(doctor_snapshot.now - a.xact_start, '1 min', '10 min') as level,
            doctor_snapshot.now - a.xact_start as age,
            format('the session with pid %s (%s, role %s) has had a transaction open for %s%s', a.pid,
                coalesce(nullif(a.application_name, ''), 'no application name'), a.usename,
                postrow.said(doctor_snapshot.now - a.xact_start),
                case when a.state like 'idle%' then ', and is idle in it' else '' end)
                || case when v_sees or a.usename = session_user
                    then format(': %s', left(regexp_replace(a.query, '\s+', ' ', 'g'), 80)) else '' end as detail,
            format('End it where it comes from, or: select pg_terminate_backend(%s);', a.pid) as advice
        from pg_catalog.pg_stat_activity a
        where a.pid <> pg_backend_pid() and a.datname = current_database()
            and (a.backend_xmin is not null or a.backend_xid is not null)
            and a.backend_type not in ('autovacuum worker', 'parallel worker')
            and coalesce(a.query, '') !~* '^\s*vacuum'  -- its snapshot holds nothing back
        union all
        select postrow.grade(doctor_snapshot.now - p.prepared, '1 min', '10 min'), doctor_snapshot.now - p.prepared,
            format('the prepared transaction %L of role %s has been open for %s', p.gid, p.owner,
                postrow.said(doctor_snapshot.now - p.prepared)),
            format('Its coordinator has to end it; or by hand: rollback prepared %L; (or commit prepared).', p.gid)
        from pg_catalog.pg_prepared_xacts p where p.database = current_database()
        union all
        select case when age(s.xmin) > 10000000 or age(s.xmin) > 100000 and not s.active then 'problem'
                when age(s.xmin) > 100000 then 'warning' else 'ok' end, null,
            format('the replication slot %s (%s) holds back %s transactions', s.slot_name,
                case when s.active then 'in use' else 'not in use' end, age(s.xmin)),
            case when s.active then 'End the long query on the standby, or switch hot_standby_feedback off there.'
                else format('Bring its standby back, or: select pg_drop_replication_slot(%L);', s.slot_name) end
        from pg_catalog.pg_replication_slots s
        where s.xmin is not null and coalesce(s.database, current_database()) = current_database()
        union all
        select case when age(a.backend_xmin) > 10000000 then 'problem' when age(a.backend_xmin) > 100000 then 'warning'
                else 'ok' end, null,
            format('the standby %s holds back %s transactions',
                coalesce(nullif(a.application_name, ''), a.client_addr::text), age(a.backend_xmin)),
            'End the long query on the standby, or switch hot_standby_feedback off there.'
        from pg_catalog.pg_stat_activity a where a.backend_type = 'walsender' and a.backend_xmin is not null
    ) h
    order by array_position(array['problem', 'warning', 'ok'], h.level), h.age desc nulls last limit 1;
    if v_holder.level <> 'ok' then
        level := v_holder.level;
        detail := v_holder.detail;
        advice := 'Vacuum can remove nothing that died since, and every queue gets slower. ' || v_holder.advice;
        return;
    end if;
    level := 'ok';
    detail := case when v_holder.age is null then 'no other transaction is open'
        else format('the oldest transaction has been open for %s', postrow.said(v_holder.age)) end;
    if exists (select from pg_catalog.pg_stat_activity a
            where a.datname = current_database() and a.query = '<insufficient privilege>') then
        detail := detail || format('; of other roles'' sessions nothing is seen until: grant pg_read_all_stats to %I',
            current_user);
    end if;
end
$$

-- next
-- Whether autovacuum is on, and comes: a table with ten times the dead rows that call for it, and none for ten minutes. Not by
-- the dead rows alone, since a busy queue makes a million of them between two rounds. And what a spike has left: more than
-- a page of the heap for each row. Partitions of the history are written once. Internal.
create or replace function postrow.doctor_vacuum(now timestamptz, out level text, out detail text, out advice text)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_off    text[];
    v_table  record;
begin
    if current_setting('autovacuum')::boolean is not true or current_setting('track_counts')::boolean is not true then
        level := 'problem';
        detail := 'autovacuum is switched off for the whole server';
        advice := 'Switch it on (autovacuum = on, track_counts = on), and reload. Until then: vacuum postrow.message;';
        return;
    end if;
    select array_agg(c.relname::text order by c.relname) into v_off
    from pg_catalog.pg_class c cross join lateral pg_catalog.pg_options_to_table(c.reloptions) o
    where c.relnamespace = 'postrow'::regnamespace and o.option_name = 'autovacuum_enabled'
        and o.option_value::boolean is not true;
    if v_off is not null then
        level := 'problem';
        detail := format('autovacuum is switched off for %s', postrow.listed(v_off));
        advice := format('Switch it on: alter table postrow.%I reset (autovacuum_enabled);', v_off[1]);
        return;
    end if;
    select t.*, postrow.grade(doctor_vacuum.now - t.vacuumed, '10 min', '1 hour') as level into v_table
    from (
        select c.relname, s.n_live_tup, s.n_dead_tup,
            -- the statistics begin anew after a crash
            coalesce(greatest(s.last_vacuum, s.last_autovacuum), greatest((select min(m.applied_at) from postrow.migration m),
                (select b.stats_reset from pg_catalog.pg_stat_bgwriter b))) as vacuumed,
            pg_relation_size(c.oid) as heap, pg_total_relation_size(c.oid) as size,
            s.n_dead_tup > 10 * (o.base + o.share * s.n_live_tup) as dead,
            pg_relation_size(c.oid) > 268435456  -- 256 MB
                -- the counters are lost in a crash, and are not on a standby
                and pg_relation_size(c.oid) > 8192 * greatest(s.n_live_tup + s.n_dead_tup, c.reltuples) as hollow
        from pg_catalog.pg_class c
        join pg_catalog.pg_stat_user_tables s on s.relid = c.oid
        cross join lateral (
            select coalesce(max(o.option_value) filter (where o.option_name = 'autovacuum_vacuum_threshold'),
                    current_setting('autovacuum_vacuum_threshold'))::float8 as base,
                coalesce(max(o.option_value) filter (where o.option_name = 'autovacuum_vacuum_scale_factor'),
                    current_setting('autovacuum_vacuum_scale_factor'))::float8 as share
            from pg_catalog.pg_options_to_table(c.reloptions) o) o
        where c.relnamespace = 'postrow'::regnamespace and c.relkind = 'r'
            and not (c.relispartition and c.relname <> 'history_default')
    ) t
    order by t.dead and doctor_vacuum.now - t.vacuumed > interval '10 min' desc, t.hollow desc,
        t.relname <> 'message', t.n_dead_tup desc limit 1;
    detail := format('%s has %s dead rows beside %s, and takes %s', v_table.relname, v_table.n_dead_tup,
        v_table.n_live_tup, pg_size_pretty(v_table.size));
    if v_table.dead and v_table.level <> 'ok' then
        level := v_table.level;
        detail := detail || format('; no vacuum has ended in %s', postrow.said(doctor_vacuum.now - v_table.vacuumed));
        advice := format('Find out what autovacuum does (pg_stat_progress_vacuum; autovacuum_max_workers). Now: vacuum '
            'postrow.%I;', v_table.relname);
    elsif v_table.hollow then
        level := 'warning';
        detail := detail || ': space that a spike has left';
        advice := format('It is used again. To give it back: vacuum full postrow.%I; which locks the table meanwhile.',
            v_table.relname);
    else
        level := 'ok';
    end if;
end
$$

-- next
-- How full the notify queue is, of the whole server: it empties when the slowest listener has read it. Full, every commit with
-- a NOTIFY fails; ours stop at the half. Internal.
create or replace function postrow.doctor_taps(out level text, out detail text, out advice text)
language plpgsql volatile
as $$
declare
    v_usage  numeric := round(pg_notification_queue_usage()::numeric * 100, 1);
begin
    level := case when v_usage > 50 then 'problem' when v_usage > 10 then 'warning' else 'ok' end;
    detail := format('the notify queue is %s %% full', v_usage);
    if level <> 'ok' then
        detail := detail || case when v_usage > 50 then ': workers get no taps, and only poll' else '' end;
        advice := 'A session that listens has been in a transaction for long: end it. See pg_stat_activity, state '
            '''idle in transaction'', the oldest xact_start first, in every database of the server.';
    end if;
end
$$

-- next
-- How far transaction ids (and multixact ids) have gone since our tables were frozen. Autovacuum freezes at
-- autovacuum_freeze_max_age, so that is no alarm; a tenth more is, and so is half of what there is. Internal.
create or replace function postrow.doctor_freeze(out level text, out detail text, out advice text)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_most  record;
begin
    select a.*, a.age / current_setting(a.setting)::float8 as share into v_most
    from (
        select format('database %s', d.datname) as what, 'transactions' as kind, age(d.datfrozenxid) as age,
            'autovacuum_freeze_max_age' as setting, 'vacuum (freeze);' as vacuum
        from pg_catalog.pg_database d where d.datname = current_database()
        union all
        select format('database %s', d.datname), 'multixacts', mxid_age(d.datminmxid),
            'autovacuum_multixact_freeze_max_age', 'vacuum (freeze);'
        from pg_catalog.pg_database d where d.datname = current_database()
        union all
        select format('table %s', c.relname), x.kind, x.age, x.setting, format('vacuum (freeze) postrow.%I;', c.relname)
        from pg_catalog.pg_class c left join pg_catalog.pg_class t on t.oid = c.reltoastrelid
        cross join lateral (values
            ('transactions', greatest(age(c.relfrozenxid), age(t.relfrozenxid)), 'autovacuum_freeze_max_age'),
            ('multixacts', greatest(mxid_age(c.relminmxid), mxid_age(t.relminmxid)), 'autovacuum_multixact_freeze_max_age')
        ) x(kind, age, setting)
        where c.relnamespace = 'postrow'::regnamespace and c.relkind = 'r'
    ) a
    order by a.age / current_setting(a.setting)::float8 desc, a.what like 'database%' limit 1;
    level := case when v_most.age > 1000000000 then 'problem' when v_most.share > 1.1 then 'warning' else 'ok' end;
    detail := format('%s was frozen %s %s ago; autovacuum does it at %s', v_most.what, v_most.age, v_most.kind,
        current_setting(v_most.setting));
    if level <> 'ok' then
        advice := 'It is overdue, and at 2 billion Postgres takes no writes: see what holds vacuum up (the check snapshot), '
            'then: ' || v_most.vacuum;
    end if;
end
$$

-- next
-- Indexes that are missing or invalid: claims are right without them, and slow. Internal.
create or replace function postrow.doctor_indexes(out level text, out detail text, out advice text)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_wanted   text[] := array['message_pkey', 'message_ready', 'message_targeted', 'message_leased', 'message_subject',
        'message_expires', 'message_target_until', 'message_group', 'message_behind', 'history_id', 'history_subject',
        'history_default_finished',
        'dead_letter_pkey', 'dead_letter_open', 'dead_letter_group', 'dead_letter_old', 'dead_letter_redriven',
        'seen_pkey', 'seen_until', 'subscription_pkey', 'pause_pkey', 'schedule_pkey', 'schedule_next',
        'consumer_pkey', 'consumer_limited', 'bucket_pkey', 'worker_pkey', 'setting_pkey', 'home_pkey', 'migration_pkey',
        'function_file_pkey'];
    v_missing  text[];
    v_invalid  text[];
begin
    select array_agg(w.name order by w.n) into v_missing
    from unnest(v_wanted) with ordinality w(name, n)
    where not exists (select from pg_catalog.pg_class c
        where c.relnamespace = 'postrow'::regnamespace and c.relkind in ('i', 'I') and c.relname = w.name);
    select array_agg(c.relname::text order by c.relname) into v_invalid
    from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indexrelid
    where c.relnamespace = 'postrow'::regnamespace and not (i.indisvalid and i.indisready);
    level := 'problem';
    if v_missing is not null then
        detail := format('missing: %s', postrow.listed(v_missing))
            || coalesce('; invalid: ' || postrow.listed(v_invalid), '');
        advice := case when v_missing[1] like '%\_pkey' then format('Make it again, with the columns that `postrow migrate --sql` '
                'prints: alter table postrow.%I add primary key (...);', left(v_missing[1], -5))
            when v_missing[1] like 'history%' then 'Make it again as `postrow migrate --sql` prints it. It locks the history meanwhile.'
            else 'Make it again as `postrow migrate --sql` prints it, with `create index concurrently`.' end;
    elsif v_invalid is not null then
        detail := format('invalid: %s', postrow.listed(v_invalid));
        advice := case when v_invalid[1] ~ '_cc(new|old)[0-9]*$'  -- of a reindex that was interrupted
            then format('Drop it: drop index concurrently postrow.%I;', v_invalid[1])
            else format('Make it again: reindex index concurrently postrow.%I;', v_invalid[1]) end;
    else
        level := 'ok';
        detail := format('all %s are there', cardinality(v_wanted));
    end if;
end
$$

-- next
-- Whether our roles may do what they are for, by the one call that each lives on, the connected role is one of them, and
-- everything has one owner, which the functions run as. A role that is not there at all is nobody's trouble. Internal.
create or replace function postrow.doctor_privileges(out level text, out detail text, out advice text)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_ours    text[];
    v_wrong   text[];
    v_owners  text[];
begin
    select array_agg(distinct o.owner) into v_owners
    from (
        select pg_get_userbyid(n.nspowner)::text from pg_catalog.pg_namespace n where n.nspname = 'postrow'
        union all
        select pg_get_userbyid(c.relowner)::text from pg_catalog.pg_class c
        where c.relnamespace = 'postrow'::regnamespace and c.relkind in ('r', 'p')
        union all
        select pg_get_userbyid(p.proowner)::text from pg_catalog.pg_proc p where p.pronamespace = 'postrow'::regnamespace
    ) o(owner);
    select array_agg(format('%s may not %s', w.role, w.what) order by w.role, w.what) into v_wrong
    from (
        select r.rolname as role, case when not has_schema_privilege(r.oid, 'postrow', 'usage') then 'use the schema'
            else format('call %s', p.proname) end as what
        from (values ('postrow_producer', 'enqueue'), ('postrow_worker', 'claim'), ('postrow_worker', 'ack'),
            ('postrow_admin', 'redrive'), ('postrow_reader', 'status')) k(role, function)
        join pg_catalog.pg_roles r on r.rolname = k.role
        join pg_catalog.pg_proc p on p.pronamespace = 'postrow'::regnamespace and p.proname = k.function
        where not has_schema_privilege(r.oid, 'postrow', 'usage') or not has_function_privilege(r.oid, p.oid, 'execute')
        union
        select r.rolname, 'read postrow.message'
        from pg_catalog.pg_roles r
        where r.rolname in ('postrow_admin', 'postrow_reader') and not has_table_privilege(r.oid, 'postrow.message', 'select')
    ) w;
    select array_agg(r.rolname::text order by r.rolname) into v_ours from pg_catalog.pg_roles r
    where r.rolname in ('postrow_producer', 'postrow_worker', 'postrow_admin', 'postrow_reader')
        and pg_has_role(session_user, r.oid, 'usage');
    level := 'problem';
    if cardinality(v_owners) > 1 then
        detail := format('the schema, its tables and its functions belong to different roles: %s', postrow.listed(v_owners));
        advice := format('Functions run as their owner, so give all to one: reassign owned by %I to %I; in a database where '
            'they own nothing else.', v_owners[2], v_owners[1]);
    elsif v_wrong is not null then
        detail := postrow.listed(v_wrong);
        advice := 'The grants were lost, as in a dump without privileges. Give them again: delete from '
            'postrow.function_file; then postrow migrate.';
    elsif v_ours is null and session_user::text <> v_owners[1] then
        detail := format('role %s is a member of none of our roles', session_user);
        advice := format('grant postrow_worker (or _producer, _admin, _reader) to %I;', session_user);
    else
        level := 'ok';
        detail := format('role %s %s', session_user, case when session_user::text = v_owners[1] then 'owns the schema'
            when v_ours is null then 'may do everything' else 'has ' || array_to_string(v_ours, ', ') end);
    end if;
end
$$
