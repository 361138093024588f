-- Roles are of the whole cluster, and the migrating role may not be allowed to make them: then a notice
-- gives the SQL. Two databases may migrate at the same time, hence duplicate_object and unique_violation.
do $$
declare
    v_role text;
begin
    foreach v_role in array array['postrow_producer', 'postrow_worker', 'postrow_admin', 'postrow_reader'] loop
        if not exists (select from pg_catalog.pg_roles where rolname = v_role) then
            begin
                execute format('create role %I nologin', v_role);
            exception
                when insufficient_privilege then
                    raise notice 'postrow: could not create role %; a role that may can run: create role % nologin; then run postrow migrate again', v_role, v_role;
                when duplicate_object or unique_violation then
                    null;
            end;
        end if;
    end loop;
end
$$
