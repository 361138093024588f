-- Who may do what. `public` may execute nothing; the roles are there if the migrating role could make them (0002).
-- Functions that cross a privilege run as their owner, with search_path = pg_catalog, pg_temp: an empty one would
-- search the caller's temporary schema first, and a domain there called `text` runs its check as our owner. Internal
-- functions are granted to nobody. consumer_of and setting run as the caller, for roles that may read the tables.
revoke all on all functions in schema postrow from public

-- next
revoke all on schema postrow from public

-- next
do $$
declare
    v_grant  record;
    v_role   text;
    v_name   text;
begin
    for v_grant in select * from (values
        (array['postrow_producer', 'postrow_worker', 'postrow_admin'],
            array['enqueue', 'enqueue_many', 'enqueue_lines', 'publish', 'once']),
        (array['postrow_worker', 'postrow_admin'],
            array['claim', 'claim_lanes', 'claim_turn', 'lanes', 'lanes_ahead', 'taps_kept_back', 'release_claim', 'free_groups',
                'ack', 'ack_at', 'fail', 'release', 'bury', 'extend',
                'register_consumer', 'subscribe', 'beat', 'leave', 'refuse_copy', 'sweep', 'sweep_turn', 'put_schedule', 'due_schedules', 'fire']),
        (array['postrow_worker', 'postrow_admin', 'postrow_reader'],
            array['depth', 'depth_pending', 'next_due', 'status', 'consumers', 'subscriptions', 'pauses', 'schedules',
                'next_schedule', 'copied_from', 'doctor']),
        (array['postrow_admin', 'postrow_reader'], array['show', 'peek', 'consumer_of', 'setting']),
        (array['postrow_admin'], array['redrive', 'resolve', 'configure', 'unregister_consumer', 'unsubscribe', 'pause', 'resume', 'purge', 'drop_schedule',
                'pause_schedule', 'adopt']),
        (array['postrow_producer', 'postrow_worker', 'postrow_admin', 'postrow_reader'],
            array['clock', 'schema_version'])
    ) g(roles, functions) loop
        foreach v_role in array v_grant.roles loop
            continue when not exists (select from pg_catalog.pg_roles where rolname = v_role);
            execute format('grant usage on schema postrow to %I', v_role);
            foreach v_name in array v_grant.functions loop
                execute (select string_agg(format('grant execute on function %s to %I', p.oid::regprocedure, v_role), '; ')
                    from pg_catalog.pg_proc p
                    where p.pronamespace = 'postrow'::regnamespace and p.proname = v_name);
            end loop;
        end loop;
    end loop;
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('postrow_admin', 'postrow_reader') loop
        execute format('grant select on all tables in schema postrow to %I', v_role);
    end loop;
end
$$
