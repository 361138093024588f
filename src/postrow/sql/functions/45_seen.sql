-- The ledger of what was seen: postrow.seen. Ids that callers bring, keys of deduplication, and keys of `once` stand in it,
-- each in a scope of its own: 'id', 'for <queue>', 'while <queue>', 'once <scope>'. All lookups are by its key or by a
-- message's; with sequential scans switched off no plan that was made on empty tables can read full ones.

-- The first sight of a key, in the caller's transaction. `fresh`: this transaction is the first, and the row
-- is its own until it ends. Otherwise the message that the key stands for. A rival that has not ended is
-- waited for: it commits, and its message is the present one; it rolls back, and this one is fresh. In
-- REPEATABLE READ and above a rival that committed meanwhile is 40001, by `on conflict do nothing` itself.
-- Never `do update ... where`: that locks the row even where its condition is false. Internal.
create or replace function postrow.first_sight(
    tenant text, scope text, key text, queue text, message_id uuid, until timestamptz, now timestamptz,
    out fresh boolean, out present_id uuid, out present_queue text
)
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_until  timestamptz;
begin
    loop
        insert into postrow.seen (tenant, scope, key, queue, message_id, until)
        values (first_sight.tenant, first_sight.scope, first_sight.key, first_sight.queue,
            first_sight.message_id, first_sight.until)
        on conflict do nothing;
        if found then
            fresh := true;
            return;
        end if;
        select s.message_id, s.queue, s.until into present_id, present_queue, v_until
        from postrow.seen s
        where s.tenant = first_sight.tenant and s.scope = first_sight.scope and s.key = first_sight.key;
        continue when not found;  -- swept since the insert
        if v_until > first_sight.now then
            fresh := false;
            return;
        end if;
        update postrow.seen s
        set queue = first_sight.queue, message_id = first_sight.message_id, until = first_sight.until
        where s.tenant = first_sight.tenant and s.scope = first_sight.scope and s.key = first_sight.key
            and s.until <= first_sight.now;
        if found then
            fresh := true;
            return;
        end if;
    end loop;
end
$$

-- next
-- Takes a caller's own id for one message of one queue. Gives null when it is new, else the id of the present message, the
-- same as a rule, also after that was settled. Keeps the id's row in `seen` until `until`. Where that row is new, or past
-- its time, a live message or an open dead letter still counts; no rival can race for that look, since all who bring ids
-- go through `seen`. Under SERIALIZABLE a new row is followed by the look for a dead letter alone: two producers who read
-- where the other writes would be 40001 for no reason, and no producer writes there. (What is left then, an id that the
-- database made itself, is 23505. Such a one whose message died after this transaction's snapshot is not seen.)
-- Raises PW006 when the id belongs to another queue. Internal.
create or replace function postrow.take_id(
    tenant text, id uuid, queue text, until timestamptz, now timestamptz
) returns uuid
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_sight    record;
    v_present  text;
begin
    v_sight := postrow.first_sight(take_id.tenant, 'id', take_id.id::text, take_id.queue, take_id.id,
        take_id.until, take_id.now);
    if v_sight.fresh then
        if v_sight.present_id is not null or current_setting('transaction_isolation') <> 'serializable' then
            select m.queue into v_present from postrow.message m
            where m.tenant = take_id.tenant and m.id = take_id.id;
        end if;
        if v_present is null then
            select d.queue into v_present from postrow.dead_letter d
            where d.tenant = take_id.tenant and d.id = take_id.id and d.resolved_at is null;
        end if;
        if not found then
            return null;
        end if;
        v_sight.present_id := take_id.id;
    else
        v_present := v_sight.present_queue;
    end if;
    if v_present <> take_id.queue then
        raise exception using errcode = 'PW006',
            message = format('id %s is a message of queue %s, not %s', take_id.id, v_present, take_id.queue),
            hint = 'An id names one message of one queue for seven days: use another id.';
    end if;
    return v_sight.present_id;
end
$$

-- next
-- Takes a key of deduplication for a new message `id`. Gives null when the message shall be enqueued, else the id of the one
-- that stands for it. Keys with `dedup_for` and keys with `dedup_while` are apart.
-- `dedup_for`: one message in that time, whatever became of it. `dedup_while`, null is `waiting`: the key's row names its
-- last message; while that waits, unclaimed, it stands for this one too, and `for key share` keeps it from being claimed
-- before the caller commits, so that its run sees what he did. Locked by another: it counts as claimed. `alive`: while
-- it is unfinished. Else the row is pointed at this message; who comes second there waits for the first to end, and looks again.
-- In REPEATABLE READ and above a rival that committed meanwhile is 40001. Locks the key's row; no other row is waited for.
-- A row of `dedup_while` means nothing once its message has ended, and the sweep keeps it while that lives: so an hour. Internal.
create or replace function postrow.take_key(
    tenant text, queue text, key text, dedup_for interval, dedup_while text, id uuid, due timestamptz, now timestamptz
) returns uuid
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_scope    text := 'while ' || take_key.queue;
    v_sight    record;
    v_present  uuid;
begin
    if take_key.dedup_for is not null then
        v_sight := postrow.first_sight(take_key.tenant, 'for ' || take_key.queue, take_key.key, take_key.queue,
            take_key.id, take_key.now + take_key.dedup_for, take_key.now);
        return case when not v_sight.fresh then v_sight.present_id end;
    end if;
    loop
        insert into postrow.seen (tenant, scope, key, queue, message_id, until)
        values (take_key.tenant, v_scope, take_key.key, take_key.queue, take_key.id,
            take_key.due + interval '1 hour')
        on conflict do nothing;
        if found then
            return null;
        end if;
        select s.message_id into v_present from postrow.seen s
        where s.tenant = take_key.tenant and s.scope = v_scope and s.key = take_key.key;
        continue when not found;  -- swept since the insert
        if take_key.dedup_while = 'alive' then
            if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
                -- a snapshot may be older than its end: the attempt to lock it says 40001 then
                perform from postrow.message m where m.tenant = take_key.tenant and m.id = v_present
                for key share skip locked;
            end if;
            perform from postrow.message m
            where m.tenant = take_key.tenant and m.id = v_present
                and (m.claim_token is not null or m.expires_at is null or m.expires_at > take_key.now);
        else
            perform from postrow.message m
            where m.tenant = take_key.tenant and m.id = v_present
                and m.claim_token is null and (m.expires_at is null or m.expires_at > take_key.now)
            for key share skip locked;
        end if;
        if found then
            return v_present;
        end if;
        update postrow.seen s set message_id = take_key.id, until = take_key.due + interval '1 hour'
        where s.tenant = take_key.tenant and s.scope = v_scope and s.key = take_key.key
            and s.message_id = v_present;
        if found then
            return null;
        end if;
    end loop;
end
$$

-- next
-- Points an id's row at the message that stands for it, after a key said so: a repeat of the id then says the same. The
-- row is the caller's own, of this transaction. Internal.
create or replace function postrow.point_id(tenant text, id uuid, present uuid) returns void
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    update postrow.seen s set message_id = point_id.present
    where s.tenant = point_id.tenant and s.scope = 'id' and s.key = point_id.id::text;
end
$$

-- next
-- Whether this is the first transaction that brings the key: true for the first one that commits, false after that, until
-- `keep` has passed. For effects that must happen once, such as a webhook's event id, whatever the queue. A rival that
-- has not ended is waited for: it commits, and this is false; it rolls back, and this is true. Who calls it: producers
-- and handlers, in the transaction of the effect. Raises PW002, PW003, 40001 (in REPEATABLE READ and above).
create or replace function postrow.once(
    key text, scope text default '', tenant text default 'default', keep interval default '30 days'
) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now  timestamptz := postrow.clock();
begin
    perform postrow.check_name('tenant', once.tenant);
    perform postrow.check_key('key', once.key);
    if once.scope is null or length(once.scope) > 200 then
        perform postrow.refuse('scope is null, or longer than 200 characters', 'Leave it out, or give a short text.');
    end if;
    perform postrow.check_period('keep', once.keep);
    return (postrow.first_sight(once.tenant, 'once ' || once.scope, once.key, null, null, v_now + once.keep, v_now)).fresh;
end
$$
