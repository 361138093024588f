-- Pausing a queue, a tenant, or a tenant's queue: nothing of it is claimed until it is resumed. Enqueue goes on, and what
-- runs goes on to its end.

-- Pauses a queue of all tenants, a tenant in all queues, or (both given) a tenant's queue. True when it was not paused.
-- Who calls it: admins. Locks its one row, which claims only read. Raises PW002, PW003.
create or replace function postrow.pause(
    queue text default null, tenant text default null, reason text default null
) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform postrow.check_pause(pause.queue, pause.tenant);
    insert into postrow.pause (tenant, queue, reason, paused_by, paused_at)
    values (coalesce(pause.tenant, '*'), coalesce(pause.queue, '*'), postrow.cut(pause.reason, 800), postrow.caller(),
        postrow.clock())
    on conflict do nothing;
    return found;
end
$$

-- next
-- Ends a pause that was made with the same arguments. True when there was one. Taps. Raises PW002, PW003.
create or replace function postrow.resume(queue text default null, tenant text default null) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform postrow.check_pause(resume.queue, resume.tenant);
    delete from postrow.pause p
    where p.tenant = coalesce(resume.tenant, '*') and p.queue = coalesce(resume.queue, '*');
    if found then
        perform postrow.tap(coalesce(resume.queue, '*'), coalesce(resume.tenant, '*'));  -- a worker looks everywhere then
        return true;
    end if;
    return false;
end
$$

-- next
-- Refuses a pause of nothing in particular. Internal. Raises PW002, PW003.
create or replace function postrow.check_pause(queue text, tenant text) returns void
language plpgsql immutable
as $$
begin
    if queue is null and tenant is null then
        perform postrow.refuse('neither a queue nor a tenant is given', 'Give queue => ''...'', tenant => ''...'', or both.');
    end if;
    if queue is not null then
        perform postrow.check_name('queue', queue);
    end if;
    if tenant is not null then
        perform postrow.check_name('tenant', tenant);
    end if;
end
$$

-- next
-- The pauses, '*' for all tenants or queues.
create or replace function postrow.pauses() returns setof postrow.pause
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
select p.* from postrow.pause p order by p.queue, p.tenant
$$

-- next
-- Deletes messages of a queue that nobody holds, of one tenant or of all: ready and scheduled ones, at most "limit". They are
-- gone: not in the history, no dead letters. Gives how many; call it until it gives less than the limit. Who calls it:
-- admins. Locks its rows with skip locked. Raises PW002, PW003.
create or replace function postrow.purge(queue text, tenant text default null, "limit" int default 10000) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_tids     tid[];
    v_done     bigint;
    v_tenants  text[];
    v_keys     text[];
begin
    perform postrow.check_name('queue', purge.queue);
    if purge.tenant is not null then
        perform postrow.check_name('tenant', purge.tenant);
    end if;
    perform postrow.check_limit('limit', purge."limit");
    -- three looks: there is an index for those of nobody in particular, one for targeted ones, one for those behind others
    v_tids := array(select m.ctid from postrow.message m
        where m.queue = purge.queue and (purge.tenant is null or m.tenant = purge.tenant)
            and m.claim_token is null and m.target is null and not m.behind
        limit purge."limit" for update skip locked);
    if cardinality(v_tids) < purge."limit" then
        v_tids := v_tids || array(select m.ctid from postrow.message m
            where m.queue = purge.queue and (purge.tenant is null or m.tenant = purge.tenant)
                and m.claim_token is null and m.target is not null and not m.behind
            limit purge."limit" - cardinality(v_tids) for update skip locked);
    end if;
    if cardinality(v_tids) < purge."limit" then
        v_tids := v_tids || array(select m.ctid from postrow.message m
            where m.queue = purge.queue and (purge.tenant is null or m.tenant = purge.tenant)
                and m.claim_token is null and m.behind
            limit purge."limit" - cardinality(v_tids) for update skip locked);
    end if;
    with gone as (
        delete from postrow.message m where m.ctid = any (v_tids) returning m.tenant, m.group_key
    )
    select count(*), array_agg(g.tenant) filter (where g.group_key is not null),
            array_agg(g.group_key) filter (where g.group_key is not null)
        into v_done, v_tenants, v_keys
    from gone g;
    perform postrow.promote(array_fill(purge.queue, array[coalesce(cardinality(v_keys), 0)]), v_tenants, v_keys, postrow.clock());
    return v_done;
end
$$
