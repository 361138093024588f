-- The value of a setting of the schema.
create or replace function postrow.setting(name text) returns text
language sql stable
as $$
select s.value from postrow.setting s where s.name = setting.name
$$

-- next
-- Changes a setting of the schema. history_days: how many days finished messages are kept, 1 to 36500 (7). max_hops: how
-- many handlers in a row may publish in turn, 1 to 1000 (8). dead_letter_days: how many days dead letters are kept after their
-- death, or the decision about them, 0 to 36500 (0: for ever).
-- Raises PW003.
create or replace function postrow.configure(name text, value text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    if (configure.name in ('history_days', 'max_hops', 'dead_letter_days')) is not true then
        perform postrow.refuse(format('there is no setting %L', configure.name), 'Settings: history_days, max_hops, dead_letter_days.');
    elsif (configure.value ~ '^[0-9]{1,5}$' and configure.value::int between
            case configure.name when 'dead_letter_days' then 0 else 1 end
            and case configure.name when 'max_hops' then 1000 else 36500 end) is not true then
        perform postrow.refuse(format('%s is %L', configure.name, configure.value), case configure.name
            when 'max_hops' then 'Give a number of handlers in a row from 1 to 1000.'
            when 'dead_letter_days' then 'Give a number of days from 1 to 36500, or 0: for ever.'
            else 'Give a number of days from 1 to 36500.' end);
    end if;
    update postrow.setting s set value = configure.value where s.name = configure.name;
end
$$

-- next
-- How many unfinished messages a queue has, exactly: ready, scheduled and claimed.
create or replace function postrow.depth(queue text, tenant text default null) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
begin
    perform postrow.check_name('queue', depth.queue);
    return (
        select count(*) from postrow.message m where m.queue = depth.queue
            and (depth.tenant is null or m.tenant = depth.tenant) and m.claim_token is null and m.target is null
            and not m.behind
    ) + (
        select count(*) from postrow.message m where m.queue = depth.queue
            and (depth.tenant is null or m.tenant = depth.tenant) and m.claim_token is null and m.target is not null
            and not m.behind
    ) + (
        select count(*) from postrow.message m where m.queue = depth.queue
            and (depth.tenant is null or m.tenant = depth.tenant) and m.claim_token is null and m.behind
    ) + (
        select count(*) from postrow.message m where m.queue = depth.queue
            and (depth.tenant is null or m.tenant = depth.tenant) and m.claim_token is not null
    );
end
$$

-- next
-- How many messages of a queue are ready now, exactly: due, free and not expired;
-- of a group, also those that wait for the one in front of them.
create or replace function postrow.depth_pending(queue text, tenant text default null) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
    v_now  timestamptz := postrow.clock();
begin
    perform postrow.check_name('queue', depth_pending.queue);
    return (
        select count(*) from postrow.message m where m.queue = depth_pending.queue
            and (depth_pending.tenant is null or m.tenant = depth_pending.tenant)
            and m.claim_token is null and m.target is null and not m.behind
            and m.available_at <= v_now and (m.expires_at is null or m.expires_at > v_now)
    ) + (
        select count(*) from postrow.message m where m.queue = depth_pending.queue
            and (depth_pending.tenant is null or m.tenant = depth_pending.tenant)
            and m.claim_token is null and m.behind
            and m.available_at <= v_now and (m.expires_at is null or m.expires_at > v_now)
    ) + (
        select count(*) from postrow.message m where m.queue = depth_pending.queue
            and (depth_pending.tenant is null or m.tenant = depth_pending.tenant)
            and m.claim_token is null and m.target is not null and not m.behind
            and m.available_at <= v_now and (m.expires_at is null or m.expires_at > v_now)
    );
end
$$

-- next
-- When the next free message of a queue is due (in the past: now), but for what is paused; null when there is none.
create or replace function postrow.next_due(queue text) returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
    v_paused  text[];
begin
    perform postrow.check_name('queue', next_due.queue);
    v_paused := (postrow.claim_rules(next_due.queue)).paused;
    return least((select min(l.next_due) from postrow.lanes(next_due.queue) l),
        (select min(m.available_at) from postrow.message m
         where m.queue = next_due.queue and m.claim_token is null and m.target is not null and not m.behind
            and (v_paused is null or not (m.tenant = any (v_paused) or '*' = any (v_paused)))));
end
$$

-- next
-- Every queue and tenant that has unfinished messages, open dead letters or a consumer: how many are in which
-- state, when the oldest ready one was due, who consumes it (workers: heard of in the last minute), and whether it is paused.
-- Who calls it: the command line and the dashboard. Counts all unfinished messages.
create or replace function postrow.status()
returns table (queue text, tenant text, ready bigint, scheduled bigint, claimed bigint, dead bigint,
    oldest_ready timestamptz, handler text, workers bigint, paused boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now  timestamptz := postrow.clock();
begin
    return query
    with live as (
        select m.queue, m.tenant,
            count(*) filter (where m.claim_token is null and m.available_at <= v_now) as ready,
            count(*) filter (where m.claim_token is null and m.available_at > v_now) as scheduled,
            count(*) filter (where m.claim_token is not null) as claimed,
            min(m.available_at) filter (where m.claim_token is null and m.available_at <= v_now) as oldest
        from postrow.message m group by m.queue, m.tenant
    ), dead as (
        select d.queue, d.tenant, count(*) as dead from postrow.dead_letter d
        where d.resolved_at is null group by d.queue, d.tenant
    ), named as (
        select l.queue, l.tenant from live l union select d.queue, d.tenant from dead d
        union select c.queue, c.tenant from postrow.consumer c
        where c.tenant <> '*' or not exists (select from live l where l.queue = c.queue)
            and not exists (select from dead d where d.queue = c.queue)
    )
    select n.queue, n.tenant, coalesce(l.ready, 0), coalesce(l.scheduled, 0), coalesce(l.claimed, 0),
        coalesce(d.dead, 0), l.oldest, c.handler,
        postrow.living(n.queue, c.tenant, v_now),
        exists (select from postrow.pause p
            where p.queue in (n.queue, '*') and p.tenant in (n.tenant, '*'))
    from named n
    left join live l on l.queue = n.queue and l.tenant = n.tenant
    left join dead d on d.queue = n.queue and d.tenant = n.tenant
    left join lateral postrow.consumer_of(n.queue, n.tenant) c on true
    order by n.queue, n.tenant;
end
$$

-- next
-- The whole life of a message, wherever it is now: one JSON object for each place that has the id (a message, a dead
-- letter, history), with `state` ready | scheduled | claimed | dead | done | unrouted, the row's columns, and
-- `redriven_from` where it was a dead letter before.
create or replace function postrow.show(id uuid, tenant text default null) returns setof jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now  timestamptz := postrow.clock();
begin
    return query
    select jsonb_build_object('state', found.state, 'redriven_from',
        (select d.id from postrow.dead_letter d where d.redriven_as = show.id
            and d.tenant = found.row ->> 'tenant')) || found.row
    from (
        select case when m.claim_token is not null then 'claimed' when m.available_at > v_now then 'scheduled'
            else 'ready' end as state, to_jsonb(m) as row
        from postrow.message m where m.id = show.id and (show.tenant is null or m.tenant = show.tenant)
        union all
        select 'dead', to_jsonb(d) from postrow.dead_letter d
        where d.id = show.id and (show.tenant is null or d.tenant = show.tenant)
        union all
        select h.outcome, to_jsonb(h) from postrow.history h
        where h.id = show.id and (show.tenant is null or h.tenant = show.tenant)
    ) found;
end
$$

-- next
-- The first messages of a queue as a claim would take them, without claiming: free ones by lane and due time.
create or replace function postrow.peek(queue text, tenant text default null, "limit" int default 10)
returns setof postrow.message
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
begin
    perform postrow.check_name('queue', peek.queue);
    perform postrow.check_limit('limit', peek."limit");
    return query
    select m.* from postrow.message m
    where m.queue = peek.queue and (peek.tenant is null or m.tenant = peek.tenant) and m.claim_token is null
    order by m.tenant, m.priority, m.available_at limit peek."limit";
end
$$
