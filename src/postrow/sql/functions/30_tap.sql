-- A tap on the shoulder of the workers, sent at the caller's commit: NOTIFY postrow, '<queue> <tenant>'.
-- It carries nothing worth trusting and may be lost. NOTIFY takes one lock of the whole database through the
-- commit's WAL flush, so taps are few: one in 20 ms for each backend, queue and tenant, remembered in the
-- session setting postrow.taps as lines of `queue tenant milliseconds`. A transaction older than that window
-- taps anyway, since its workers have looked already. None with `set postrow.tap = off` (two-phase commit
-- refuses NOTIFY), none while the notify queue is half full: a hint must never fail a commit. Internal.
create or replace function postrow.tap(queue text, tenant text) returns void
language plpgsql volatile
as $$
declare
    v_now   timestamptz := clock_timestamp();
    v_ms    text := ((date_part('epoch', v_now) * 1000)::bigint)::text;  -- 13 digits until the year 2286
    v_key   text := E'\n' || tap.queue || ' ' || tap.tenant || ' ';
    v_taps  text;
    v_at    int;
    v_last  text;
begin
    if current_setting('postrow.tap', true) = 'off' then
        return;
    end if;
    v_taps := coalesce(current_setting('postrow.taps', true), '');
    v_at := position(v_key in v_taps);
    if v_at > 0 then
        v_last := substr(v_taps, v_at + length(v_key), 13);
        if v_last ~ '^[0-9]{13}$' then
            if v_ms::bigint - v_last::bigint between 0 and 19
                and v_now - transaction_timestamp() < interval '20 ms' then
                return;
            end if;
        else
            v_at := 0;  -- somebody else's text: begin anew
            v_taps := '';
        end if;
    end if;
    if pg_notification_queue_usage() >= 0.5 then
        return;
    end if;
    perform pg_notify('postrow', tap.queue || ' ' || tap.tenant);
    perform set_config('postrow.taps', case
        when v_at > 0 then overlay(v_taps placing v_ms from v_at + length(v_key))
        when length(v_taps) > 4000 then v_key || v_ms  -- 100 names or so: enough for what one backend sends in 20 ms
        else v_taps || v_key || v_ms end, false);
end
$$
