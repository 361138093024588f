-- A copy of a database has the messages of its original, and a worker there would handle them a second time: send the
-- e-mail again. So the database that workers work on is remembered, by its server's system identifier and its own oid, in
-- postrow.home: when the first worker starts, not when the schema is made, so that templates can be copied. A dump carries
-- the row along, and so does `create database ... template`. What has both numbers in common cannot be told apart: a standby
-- that was promoted, which must not be refused; and a base backup or a snapshot of the disks.

-- The server's number, made by initdb; null where the schema's owner may not read it, as public may by default. Internal.
create or replace function postrow.system_identifier() returns bigint
language plpgsql stable
as $$
begin
    if has_function_privilege('pg_catalog.pg_control_system()', 'execute') then
        return (select c.system_identifier from pg_catalog.pg_control_system() c);
    end if;
    return null;
end
$$

-- next
-- Where this database was copied from, or moved, in words; null when it is the one that workers work on, or none has
-- started. Who calls it: `postrow adopt`, doctor.
create or replace function postrow.copied_from() returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_home    postrow.home;
    v_server  bigint;
begin
    select h.* into v_home from postrow.home h;
    if not found then
        return null;
    end if;
    v_server := postrow.system_identifier();
    if v_home.system_identifier <> v_server then
        return format('database %s of another server', v_home.database_name);
    elsif v_home.database_oid <> (select d.oid from pg_catalog.pg_database d where d.datname = current_database()) then
        return format('database %s of this server', v_home.database_name);
    end if;
    return null;
end
$$

-- next
-- Makes this database the one that workers work on, whatever it was copied from. True when it was not. Who calls it: admins.
-- Locks the one row of home.
create or replace function postrow.adopt() returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    if postrow.copied_from() is null and exists (select from postrow.home) then
        return false;
    end if;
    insert into postrow.home (system_identifier, database_oid, database_name, adopted_by, adopted_at)
    select postrow.system_identifier(), d.oid, d.datname, postrow.caller(), postrow.clock()
    from pg_catalog.pg_database d where d.datname = current_database()
    on conflict (one) do update set system_identifier = excluded.system_identifier, database_oid = excluded.database_oid,
        database_name = excluded.database_name, adopted_by = excluded.adopted_by, adopted_at = excluded.adopted_at;
    return true;
end
$$

-- next
-- Refuses to work on a copy; adopts the database if workers have worked on none yet. Who calls it: a worker when it
-- starts, and again on each new connection that claims, since the database behind a DSN may be replaced meanwhile.
-- Raises PW010.
create or replace function postrow.refuse_copy() returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_from  text := postrow.copied_from();
begin
    if v_from is not null then
        raise exception using errcode = 'PW010',
            message = format('this database (%s) has the messages of %s, and a worker would handle them again',
                current_database(), v_from),
            hint = 'If they are to be handled here (it was moved, upgraded, or restored for good), run: postrow adopt';
    elsif not exists (select from postrow.home) then
        perform postrow.adopt();
    end if;
end
$$
