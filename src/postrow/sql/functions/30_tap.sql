-- A tap on the shoulder of the workers, sent at the caller's commit: NOTIFY postrow, '<queue> <tenant>'.
-- It carries nothing worth trusting and may be lost. NOTIFY takes one lock of the whole server through the commit's WAL
-- flush, so commits with taps wait for each other: taps of a queue are few, about one in 10 ms of all sessions and
-- tenants together. Who keeps its tap back relies on another one that is on its way, or was heard a moment ago: a worker that
-- heard one looks again when what relied on it can be there (worker/second_look.py).
--
-- The last tap of a queue stands in a memory cell that all sessions see at once: an unlogged sequence, set and never
-- counted up. 32 cells; two queues that share one only tap more. From the high bits to the low ones: 26 of milliseconds when
-- it was asked for, 18 of the queue's hash, 16 of the transaction's number, 1 `busy`, 2 of a count. The rules, by what
-- became of that transaction, in milliseconds since it asked:
--   committed: rely on it for 10; then send one, which is `busy`: that one in turn was relied on until a moment ago.
--   in progress: rely on it for 40 where it is `busy`, or three of the time since are on their way (any of them will do);
--     else send one, and count it.
--   rolled back, older, another queue's, or nothing: send one.
-- So where little happens every message taps at once, also beside a transaction that stays open or rolls back.
-- What is left: a tap that went with a savepoint, its transaction committed without one, and nobody has tapped since; and
-- three that all stay open. That costs what a lost tap costs, a poll interval.
--
-- A message may be committed long after its tap was kept back. So that transaction holds a shared advisory lock of
-- the cell, taken before the clock is read for the last time: while it is held, workers go on looking (postrow.taps_kept_back).
-- None is sent with `set postrow.tap = off` (two-phase commit refuses NOTIFY), none while the notify queue is half full:
-- a hint must never fail a commit. Internal.
create or replace function postrow.tap(queue text, tenant text) returns void
language plpgsql volatile
as $$
declare
    v_hash   int := hashtext(tap.queue);
    v_cell   regclass;
    v_mark   bigint := (v_hash >> 5) & 262143;
    v_now    bigint;
    v_last   bigint;
    v_age    bigint;
    v_seen   pg_snapshot;
    v_next   bigint;
    v_mine   bigint;
    v_xid    bigint;
    v_state  text;
    v_rely   int;  -- until this age
    v_new    bigint;  -- the low three bits of the new value: busy, count
begin
    if current_setting('postrow.tap', true) = 'off' then
        return;
    end if;
    v_cell := ('postrow.tap_' || (v_hash & 31))::regclass;
    v_last := pg_sequence_last_value(v_cell);
    v_now := (date_part('epoch', clock_timestamp()) * 1000)::bigint & 67108863;
    v_age := (v_now - (v_last >> 37)) & 67108863;
    v_mine := pg_current_xact_id()::text::bigint;
    v_new := 1;
    if v_age <= 100 and (v_last >> 19) & 262143 = v_mark then
        v_seen := pg_current_snapshot();
        v_next := pg_snapshot_xmax(v_seen)::text::bigint;
        v_xid := greatest(v_next + ((((v_last >> 3) & 65535) - v_next + 32768) & 65535) - 32768, 0);
        v_state := case when v_xid = v_mine then 'mine'
            -- a number of the future, were there one, would be an error of pg_xact_status
            when pg_visible_in_snapshot(v_xid::text::xid8, v_seen) then pg_xact_status(v_xid::text::xid8)
            else 'in progress' end;
        if v_state = 'committed' then
            v_rely := 9;
            v_new := 5;
        elsif v_state = 'in progress' and v_age <= 40 then
            if v_last & 4 = 4 or v_last & 3 = 3 then
                v_rely := 40;
            end if;
            v_new := null;  -- the count alone
        elsif v_state = 'mine' then
            v_new := null;
        end if;
    end if;
    if v_age <= v_rely and pg_try_advisory_xact_lock_shared(1886613367, v_hash & 31)
        and ((date_part('epoch', clock_timestamp()) * 1000)::bigint - (v_last >> 37)) & 67108863 <= v_rely then
        return;
    end if;
    if pg_notification_queue_usage() >= 0.5 then
        return;
    end if;
    perform pg_notify('postrow', tap.queue || ' ' || tap.tenant);
    if v_new is not null then
        perform setval(v_cell, (v_now << 37) | (v_mark << 19) | ((v_mine & 65535) << 3) | v_new);
    elsif v_state = 'in progress' and v_last & 3 < 3 then
        perform setval(v_cell, v_last + 1);
    end if;
end
$$

-- next
-- Whether a transaction that is open now may have kept a tap of this queue back: it is true for a moment too often, never too
-- seldom. Who calls it: a worker, before it looks. In a transaction of its own: it holds the lock until its end, and
-- meanwhile everybody taps.
create or replace function postrow.taps_kept_back(queue text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return not pg_try_advisory_xact_lock(1886613367, hashtext(taps_kept_back.queue) & 31);
end
$$
