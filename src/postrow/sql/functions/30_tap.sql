-- A tap on the shoulder of the workers, sent at the caller's commit: NOTIFY postrow, '<queue> <tenant>'.
-- It carries nothing worth trusting and may be lost. NOTIFY takes one lock of the whole server through the commit's WAL
-- flush, so commits with taps wait for each other: taps of a queue are few, about one in 16 ms of all sessions and
-- tenants together. Who keeps its tap back relies on another one that is on its way, or was sent a moment ago: a worker that
-- heard one looks again when what relied on it can be there (worker/second_look.py).
--
-- The last tap of a queue stands in a memory cell that all sessions see at once: an unlogged sequence, set and never
-- counted up. 32 cells; two queues that share one only tap more. The rules, by what became of that tap's transaction, in
-- milliseconds since it asked:
--   committed: rely on it for 8, or for 16 where another did within 4; then send one, which is `busy`.
--   in progress: rely on it for 40 where it is `busy` (the one before it was sent), or three of the time since are on
--     their way (any of them will do); else send one, and count it.
--   rolled back, older than 100, another queue's, or nothing: send one.
-- (32 and 92 where a tap is relied on for 8: its time is kept as if it had asked 8 sooner.)
-- So where little happens every message taps at once, also beside a transaction that stays open or rolls back.
-- What is left: a tap that went with a savepoint, its transaction committed without one, and nobody has tapped since; and
-- three that all stay open. That costs what a lost tap costs, a poll interval.
--
-- A message may be committed long after its tap was kept back. So its transaction holds a shared advisory lock of
-- the cell, taken before the clock is read: while somebody holds it, workers go on looking (postrow.taps_kept_back).
-- None is sent with `set postrow.tap = off` (two-phase commit refuses NOTIFY), none while the notify queue is half full:
-- a hint must never fail a commit.
--
-- A cell's bits, from the high ones: 1 unused, so that nothing overflows; 17 of the queue's hash; 1 `known`: committed, as somebody has found out; 26 of milliseconds,
-- until when it is relied on when committed; 15 of the transaction's number; 1 unused; 1 `busy`; 2 of the count. So one subtraction
-- compares hash, known and time. Most calls end there: plpgsql sets up each operator anew in each transaction, and with
-- twice as many this took a tenth of an enqueue. Internal.
create or replace function postrow.tap(queue text, tenant text) returns void
language plpgsql volatile
as $$
declare
    v_last   bigint;
    v_cell   regclass;
    v_mark   bigint;
    v_now    bigint;
    v_age    bigint;  -- of the last tap, and 8 more where it is relied on for 8; null: none of this queue
    v_mine   bigint;
    v_seen   pg_snapshot;
    v_next   bigint;
    v_xid    bigint;
    v_state  text;
    v_new    bigint := 1;  -- the low bits of the new value: busy, count; null: the old value stays
begin
    if current_setting('postrow.tap', true) = 'off' then
        return;
    end if;
    v_last := pg_sequence_last_value(('postrow.tap_' || (hashtext(tap.queue) & 31))::regclass);
    if pg_try_advisory_xact_lock_shared(1886613367, hashtext(tap.queue) & 31)
        and ((v_last # ((hashtext(tap.queue) >> 15)::bigint << 46))
            - (((date_part('epoch', clock_timestamp()) * 1000)::bigint & 67108863) << 19)) >> 23 = 4194304
    then
        return;
    end if;

    v_cell := ('postrow.tap_' || (hashtext(tap.queue) & 31))::regclass;
    v_mark := (hashtext(tap.queue) >> 15)::bigint;
    v_now := (date_part('epoch', clock_timestamp()) * 1000)::bigint & 67108863;
    v_mine := pg_current_xact_id()::text::bigint;
    if v_last >> 46 = v_mark then
        v_age := (v_now + 15 - (v_last >> 19)) & 67108863;
    end if;
    if v_age <= 100 then
        v_seen := pg_current_snapshot();
        v_next := pg_snapshot_xmax(v_seen)::text::bigint;
        v_xid := greatest(v_next + ((((v_last >> 4) & 32767) - v_next + 16384) & 32767) - 16384, 0);
        v_state := case when v_xid = v_mine then 'mine'
            when (v_last >> 45) & 1 = 1 then 'committed'
            -- a number of the future, were there one, would be an error of pg_xact_status
            when pg_visible_in_snapshot(v_xid::text::xid8, v_seen) then pg_xact_status(v_xid::text::xid8)
            else 'in progress' end;
        if v_state = 'committed' then
            if v_age <= 15 and pg_try_advisory_xact_lock_shared(1886613367, hashtext(tap.queue) & 31) then
                -- over a newer one, perhaps: that costs a tap
                perform setval(v_cell, v_last & ~(67108863::bigint << 19) | (1::bigint << 45)
                    | (((v_last >> 19) + case when v_age <= 12 then 8 else 0 end & 67108863) << 19));
                return;
            end if;
            v_new := 5;
        elsif v_state = 'in progress' and v_age <= 40 then
            if (v_last & 4 = 4 or v_last & 3 = 3)
                and pg_try_advisory_xact_lock_shared(1886613367, hashtext(tap.queue) & 31) then
                return;
            end if;
            v_new := null;
        elsif v_state = 'mine' then
            v_new := null;
        end if;
    end if;
    if pg_notification_queue_usage() >= 0.5 then
        return;
    end if;
    perform pg_notify('postrow', tap.queue || ' ' || tap.tenant);
    if v_new is not null then
        perform setval(v_cell, (v_mark << 46) | (((v_now + 7) & 67108863) << 19) | ((v_mine & 32767) << 4) | v_new);
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
