-- Refuses a dead letter that is not there or has been decided. Locks its row. Internal. Raises PW009.
create or replace function postrow.open_dead_letter(id uuid, tenant text) returns postrow.dead_letter
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_dead  postrow.dead_letter;
begin
    select d.* into v_dead from postrow.dead_letter d
    where d.tenant = open_dead_letter.tenant and d.id = open_dead_letter.id for update;
    if not found then
        raise exception using errcode = 'PW009',
            message = format('there is no dead letter %s of tenant %s', open_dead_letter.id, open_dead_letter.tenant),
            hint = 'Look with `postrow dead list` or select from postrow.dead_letter.';
    elsif v_dead.resolved_at is not null then
        raise exception using errcode = 'PW009',
            message = format('dead letter %s was %s at %s by %s%s', v_dead.id, v_dead.resolution,
                v_dead.resolved_at, v_dead.resolved_by,
                case when v_dead.redriven_as is null then '' else format(', as %s', v_dead.redriven_as) end),
            hint = 'Each dead letter is decided once.';
    end if;
    return v_dead;
end
$$

-- next
-- The queues and tenants that have open dead letters of groups, by a loose index scan, however many those are. Internal.
create or replace function postrow.dead_of_groups() returns table (queue text, tenant text)
language plpgsql stable set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
begin
    return query
    with recursive own as (
        (select d.queue, d.tenant from postrow.dead_letter d
         where d.group_key is not null and d.resolved_at is null
         order by d.queue, d.tenant, d.group_key limit 1)
        union all
        select n.* from own o cross join lateral (
            select d.queue, d.tenant from postrow.dead_letter d
            where d.group_key is not null and d.resolved_at is null and (d.queue, d.tenant) > (o.queue, o.tenant)
            order by d.queue, d.tenant, d.group_key limit 1) n
    )
    select o.queue, o.tenant from own o;
end
$$

-- next
-- Sends a dead letter again, as a new message: a new id, attempt 0, due now, with its failures and lineage; an
-- expires_at that has passed is dropped. In a group it keeps its place (its enqueued_at), and is next. The dead letter stays, resolved, and names the new id. Taps.
-- Gives the new id. Locks the dead letter's row. Raises PW009.
create or replace function postrow.redrive(id uuid, tenant text) returns uuid
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now   timestamptz := postrow.clock();
    v_new   uuid := postrow.uuid7();
    v_dead  postrow.dead_letter := postrow.open_dead_letter(redrive.id, redrive.tenant);
begin
    insert into postrow.message (tenant, id, queue, priority, payload, headers, enqueued_at, enqueued_by, available_at,
        max_attempts, subject, group_key, dedup_key, expires_at, topic, parent_id, hops, failures)
    values (v_dead.tenant, v_new, v_dead.queue, v_dead.priority, v_dead.payload, v_dead.headers,
        case when v_dead.group_key is null then v_now else v_dead.enqueued_at end, postrow.caller(), v_now, v_dead.max_attempts, v_dead.subject, v_dead.group_key, v_dead.dedup_key,
        case when v_dead.expires_at > v_now then v_dead.expires_at end, v_dead.topic, v_dead.parent_id, v_dead.hops,
        v_dead.failures);
    -- if the dead message is its key's last one, the new message is now
    update postrow.seen s set message_id = v_new, until = v_now + interval '1 hour'
    where s.tenant = v_dead.tenant and s.scope = 'while ' || v_dead.queue and s.key = v_dead.dedup_key
        and s.message_id = v_dead.id;
    update postrow.dead_letter d
    set resolved_at = v_now, resolution = 'redriven', resolved_by = postrow.caller(), redriven_as = v_new
    where d.tenant = v_dead.tenant and d.id = v_dead.id;
    perform postrow.promote(array[v_dead.queue], array[v_dead.tenant], array[v_dead.group_key], v_now);
    perform postrow.tap(v_dead.queue, v_dead.tenant);
    return v_new;
end
$$

-- next
-- Decides a dead letter without sending it again: resolution `ignored` or `handled`, and a reason for the record.
-- Its group goes on, if that was what it waited for. Locks its row. Raises PW003, PW009.
create or replace function postrow.resolve(id uuid, tenant text, resolution text, reason text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_dead  postrow.dead_letter;
begin
    if (resolve.resolution in ('ignored', 'handled')) is not true then
        perform postrow.refuse(format('resolution is %L', resolve.resolution), 'Give ignored or handled.');
    elsif coalesce(resolve.reason, '') = '' then
        perform postrow.refuse('reason is empty', 'Say why, for who looks later.');
    end if;
    v_dead := postrow.open_dead_letter(resolve.id, resolve.tenant);
    update postrow.dead_letter d
    set resolved_at = postrow.clock(), resolution = resolve.resolution, resolved_by = postrow.caller(),
        resolution_reason = postrow.cut(resolve.reason, 800)
    where d.tenant = resolve.tenant and d.id = resolve.id;
    perform postrow.promote(array[v_dead.queue], array[v_dead.tenant], array[v_dead.group_key], postrow.clock());
end
$$
