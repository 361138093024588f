-- In the contract, and not built in this version: refused with PW004, so that callers learn it from the name.

create or replace function postrow.publish(
    topic text, payload jsonb, tenant text default 'default', priority int default 0, delay interval default null,
    available_at timestamptz default null, max_attempts int default null, subject text default null,
    group_key text default null, expires_at timestamptz default null, headers jsonb default null,
    id uuid default null
) returns table (subscriber_queue text, message_id uuid)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    perform postrow.not_yet('publish');
end
$$
