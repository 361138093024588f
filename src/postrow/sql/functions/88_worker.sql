-- A worker says that it lives, and what time it is by its clock; its row is its own. `tenants` says of each of its queues whose
-- consumer it is, '*' for all; a queue that it has for two stands there twice. Gives how many live that have a queue
-- of its queues, with it. Who calls it: the worker's heartbeat, every few seconds. Raises PW002, PW003.
create or replace function postrow.beat(
    id uuid, name text, host text, pid int, queues text[], version text, clock timestamptz default null,
    tenants text[] default null
) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now  timestamptz := postrow.clock();
begin
    perform postrow.check_name('name', beat.name);
    if cardinality(beat.tenants) <> cardinality(beat.queues) then
        perform postrow.refuse('queues and tenants are not of one length',
            'Give a tenant for each queue: whose consumer it is, * for all.');
    end if;
    insert into postrow.worker (id, name, host, pid, queues, tenants, version, started_at, beat_at, skew)
    values (beat.id, beat.name, beat.host, beat.pid, beat.queues, beat.tenants, beat.version, v_now, v_now,
        beat.clock - v_now)
    on conflict (id) do update
    set beat_at = excluded.beat_at, queues = excluded.queues, tenants = excluded.tenants, skew = excluded.skew;
    return (select count(*) from postrow.worker w where w.beat_at > v_now - interval '1 min' and w.queues && beat.queues);
end
$$

-- next
-- How many workers handle a queue for its consumer of this tenant ('*': of all; null: there is none), of those that were heard of
-- in the last minute. Internal.
create or replace function postrow.living(queue text, consumer text, now timestamptz) returns bigint
language sql stable
as $$
select count(*) from postrow.worker w
where w.beat_at > living.now - interval '1 minute' and living.queue = any (w.queues) and exists (
    select from unnest(w.queues, w.tenants) u(queue, tenant)
    where u.queue = living.queue and (u.tenant = living.consumer) is not false)
$$

-- next
-- A worker says that it has stopped. If it was its turn to sweep, another one has it now.
create or replace function postrow.leave(id uuid) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    delete from postrow.worker w where w.id = leave.id;
    if pg_sequence_last_value('postrow.sweeper'::regclass) & 2097151 = hashtext(leave.id::text) & 2097151 then
        perform setval('postrow.sweeper'::regclass, 0);
    end if;
end
$$
