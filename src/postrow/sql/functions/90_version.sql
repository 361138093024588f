-- The version of this schema, "major.minor": a client refuses another major and an older minor than it needs. A new
-- minor for every change of a migration or a function file; a new major where a meaning changes.
create or replace function postrow.schema_version() returns text
language sql immutable parallel safe
as $$
select '1.1'
$$
