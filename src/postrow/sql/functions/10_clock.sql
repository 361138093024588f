-- The one clock. clock_timestamp() and not now(), which is frozen inside the caller's transaction.
-- Tests replace it; read it once a call, into a variable: in a `where` it would be a filter, not a range.
create or replace function postrow.clock() returns timestamptz
language sql volatile parallel safe
as 'select pg_catalog.clock_timestamp()'

-- next
-- The UUIDv7 (RFC 9562, section 5.7) of a moment, given in microseconds since 1970: 48 bits of milliseconds,
-- 12 bits of their fraction, 62 random bits, taken from `random`. Microseconds in order give ids in order.
-- A list of messages shares one random part: a strong random number a row would cost more than its parsing. Internal.
create or replace function postrow.uuid7_at(us bigint, random uuid) returns uuid
language sql immutable parallel safe
as $$
select (pg_catalog.lpad(pg_catalog.to_hex(((us / 1000) << 16) | 28672  -- 28672: version 7
    | ((us % 1000) * 4096 / 1000)), 16, '0') || pg_catalog.right(random::text, 17))::uuid
$$

-- next
-- A new id, made by the database. Native from Postgres 18 on; below it the same layout by uuid7_at, or ids
-- of one transaction would come out of order. With a variable uuid7_at becomes part of the expression: 4 us, not 6.
do $$
begin
    if current_setting('server_version_num')::int >= 180000 then
        create or replace function postrow.uuid7() returns uuid
        language sql volatile parallel safe
        as 'select pg_catalog.uuidv7()';
    else
        create or replace function postrow.uuid7() returns uuid
        language plpgsql volatile parallel safe
        as 'declare
            v_us bigint := (pg_catalog.date_part(''epoch'', pg_catalog.clock_timestamp()) * 1000000)::bigint;
        begin
            return postrow.uuid7_at(v_us, pg_catalog.gen_random_uuid());
        end';
    end if;
end
$$
