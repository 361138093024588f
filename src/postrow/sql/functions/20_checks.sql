-- Checks of what callers give; the only place where names and ranges are judged. All internal.

-- Names are values, never identifiers: 200 characters, this grammar, compared byte by byte.
create or replace function postrow.valid_name(value text) returns boolean
language sql immutable parallel safe
as $$
select pg_catalog.length(value) <= 200 and value collate "C" ~ '^[A-Za-z0-9][A-Za-z0-9._:-]*$'
$$

-- next
-- Refuses a name outside the grammar, with PW002. `what` is the parameter's name.
create or replace function postrow.check_name(what text, value text) returns void
language plpgsql immutable parallel safe
as $$
begin
    if postrow.valid_name(value) is not true then
        raise exception using errcode = 'PW002',
            message = case
                when value is null then format('%s is null: give it a name', what)
                when length(value) > 200 then format('%s has %s characters: 200 are allowed', what, length(value))
                else format('%s %L is not a valid name', what, value) end,
            hint = 'Use letters A-Z a-z, digits and . _ : - , and start with a letter or a digit.';
    end if;
end
$$

-- next
-- Refuses with PW003, the code of every value outside its range.
create or replace function postrow.refuse(message text, hint text default null) returns void
language plpgsql immutable parallel safe
as $$
begin
    if refuse.hint is null then
        raise exception using errcode = 'PW003', message = refuse.message;
    end if;
    raise exception using errcode = 'PW003', message = refuse.message, hint = refuse.hint;
end
$$

-- next
-- A free text that is a key or a label: 1 to 200 characters when given.
create or replace function postrow.check_label(what text, value text) returns void
language plpgsql immutable parallel safe
as $$
begin
    if value = '' then
        perform postrow.refuse(format('%s is an empty text', what), 'Leave it out (null) or give it a value.');
    elsif length(value) > 200 then
        perform postrow.refuse(format('%s has %s characters: 200 are allowed', what, length(value)));
    end if;
end
$$

-- next
-- A key of the ledger: 1 to 500 characters of any kind.
create or replace function postrow.check_key(what text, value text) returns void
language plpgsql immutable parallel safe
as $$
begin
    if value is null or value = '' then
        perform postrow.refuse(format('%s is empty', what), 'Give a text that names the thing.');
    elsif length(value) > 500 then
        perform postrow.refuse(format('%s has %s characters: 500 are allowed', what, length(value)),
            'Give a hash of it.');
    end if;
end
$$

-- next
-- How long a key is kept: longer than nothing.
create or replace function postrow.check_period(what text, value interval) returns void
language plpgsql immutable parallel safe
as $$
begin
    if value is null or value <= interval '0' then
        perform postrow.refuse(format('%s is %s', what, coalesce(value::text, 'null')), 'Give a duration longer than 0.');
    end if;
    perform postrow.check_duration(what, value);
end
$$

-- next
-- A duration that is added to a clock: from 0 to 1,000 years, so that the sum is a timestamp.
create or replace function postrow.check_duration(what text, value interval) returns void
language plpgsql immutable parallel safe
as $$
begin
    if value < interval '0' then
        perform postrow.refuse(format('%s is negative (%s)', what, value), 'Give a duration of 0 or more.');
    elsif value > interval '1000 years' then
        perform postrow.refuse(format('%s is over 1000 years (%s)', what, value));
    end if;
end
$$

-- next
-- Null for null: a lease that the consumer's stands for.
create or replace function postrow.valid_lease(lease interval) returns boolean
language sql immutable parallel safe
as $$
select lease > interval '0' and lease <= interval '366 days'
$$

-- next
-- A lease: longer than nothing, a year at most. Null is the consumer's.
create or replace function postrow.check_lease(lease interval) returns void
language plpgsql immutable parallel safe
as $$
begin
    if not postrow.valid_lease(lease) then
        perform postrow.refuse(format('lease is %s', lease), 'Give a lease longer than 0 and of a year at most.');
    end if;
end
$$

-- next
create or replace function postrow.check_limit(what text, value bigint) returns void
language plpgsql immutable parallel safe
as $$
begin
    if value is null or value < 1 then
        perform postrow.refuse(format('%s is %s', what, coalesce(value::text, 'null')), 'Give 1 or more.');
    end if;
end
$$

-- next
-- The limits of a consumer, or of each tenant in it: a number in flight, and a rate with its period, null for none.
create or replace function postrow.check_limits(what text, in_flight int, rate_is text, rate int, period interval) returns void
language plpgsql immutable parallel safe
as $$
begin
    if in_flight is not null then
        perform postrow.check_limit(what, in_flight);
    end if;
    if rate is not null then
        perform postrow.check_limit(rate_is, rate);
        if (date_part('epoch', period) between 0.001 and 31622400) is not true then
            perform postrow.refuse(format('%s_period is %s', rate_is, coalesce(period::text, 'null')),
                'Give a time from a millisecond to 366 days.');
        end if;
    end if;
end
$$

-- next
-- How many published messages led to one: from 0 on, and not beyond what its column holds.
create or replace function postrow.check_hops(hops int) returns void
language plpgsql immutable parallel safe
as $$
begin
    if (hops between 0 and 32000) is not true then
        perform postrow.refuse(format('hops is %s', coalesce(hops::text, 'null')), 'Give a number from 0 to 32000.');
    end if;
end
$$

-- next
-- Whether a jsonb may be over 256 MB as text. That may be much longer: a number of 16 bytes has up to 147,456 digits. Of 24 kB
-- it never is; how much a compressed value is cannot be told. Asked with each message, so it is inlined. Internal.
create or replace function postrow.may_be_long(value jsonb) returns boolean
language sql stable parallel safe
as $$
select pg_catalog.pg_column_size(value) > 24576 or pg_catalog.pg_column_compression(value) is not null
$$

-- next
-- Refuses what is over so many MB as text: at 1 GB nobody could claim it, or what is behind it in its lane. Writes it out, so
-- ask may_be_long first. Internal. Raises PW003.
create or replace function postrow.check_text(what text, value jsonb, most int) returns void
language plpgsql stable parallel safe
as $$
declare
    v_long  boolean;
begin
    begin
        v_long := octet_length(value::text) > most * 1048576::bigint;
    exception when program_limit_exceeded then  -- over 1 GB
        v_long := true;
    end;
    if v_long then
        perform postrow.refuse(format('the text of %s is over %s MB', what, most),
            'Store the content elsewhere and enqueue a reference to it.');
    end if;
end
$$

-- next
-- Refuses a payload that is null, or over 512 MB as text. True. Internal. Raises PW003.
create or replace function postrow.check_payload(payload jsonb) returns boolean
language plpgsql stable parallel safe
as $$
begin
    if payload is null then
        perform postrow.refuse('payload is null', 'Give a JSON value; ''null''::jsonb is one.');
    elsif postrow.may_be_long(payload) then
        perform postrow.check_text('payload', payload, 512);
    end if;
    return true;
end
$$

-- next
-- A line of enqueue_lines as jsonb, one that is long enough for its text to be too long. Internal. Raises PW003.
create or replace function postrow.long_line(line text, n bigint) returns jsonb
language plpgsql stable parallel safe
as $$
declare
    v_payload  jsonb := line;
begin
    perform postrow.check_text(format('payload of line %s', n), v_payload, 512);
    return v_payload;
end
$$

-- next
-- Every option of a message, for all that enqueue. True: as an expression it costs enqueue half of what `perform` takes,
-- which is a query. Raises PW002, PW003.
create or replace function postrow.check_message(
    queue text, tenant text, priority int, delay interval, available_at timestamptz, max_attempts int,
    target text, target_for interval, subject text, group_key text, dedup_key text, dedup_for interval,
    dedup_while text, expires_at timestamptz, headers jsonb
) returns boolean
language plpgsql immutable parallel safe
as $$
begin
    -- A plain message passes at once: each expression below would be made ready anew in each transaction.
    if num_nonnulls(delay, available_at, max_attempts, target, target_for, subject, group_key, dedup_key, dedup_for,
            dedup_while, expires_at, headers) = 0
        and priority between -32768 and 32767 and postrow.valid_name(queue) and postrow.valid_name(tenant) then
        return true;
    end if;
    if postrow.valid_name(queue) is not true then
        perform postrow.check_name('queue', queue);
    end if;
    if postrow.valid_name(tenant) is not true then
        perform postrow.check_name('tenant', tenant);
    end if;
    if priority is null or priority not between -32768 and 32767 then
        perform postrow.refuse(format('priority is %s', coalesce(priority::text, 'null')),
            'Give a number from -32768 to 32767; lower is claimed first.');
    end if;
    if delay is not null then
        if available_at is not null then
            perform postrow.refuse('both delay and available_at are given', 'Give one of them.');
        end if;
        perform postrow.check_duration('delay', delay);
    end if;
    if not isfinite(available_at) or not isfinite(expires_at)
        or greatest(available_at, expires_at) > '3000-01-01 00:00:00+00' then
        perform postrow.refuse('available_at and expires_at have to be finite moments before the year 3000');
    end if;
    if max_attempts < 1 then
        perform postrow.refuse(format('max_attempts is %s', max_attempts), 'Give 1 or more.');
    end if;
    if target is not null or target_for is not null then
        if target is null then
            perform postrow.refuse('target_for is given without target', 'Give the target, or leave both out.');
        end if;
        perform postrow.check_name('target', target);
        perform postrow.check_duration('target_for', target_for);
    end if;
    if subject is not null then
        perform postrow.check_label('subject', subject);
    end if;
    if headers is not null then
        if jsonb_typeof(headers) <> 'object' then
            perform postrow.refuse('headers have to be a JSON object');
        elsif postrow.may_be_long(headers) then
            perform postrow.check_text('headers', headers, 256);
        end if;
    end if;
    if group_key is not null then
        perform postrow.check_label('group_key', group_key);
    end if;
    if dedup_key is not null then
        perform postrow.check_key('dedup_key', dedup_key);
        if dedup_for is not null and dedup_while is not null then
            perform postrow.refuse('both dedup_for and dedup_while are given', 'Give one of them.');
        end if;
        perform postrow.check_period('dedup_for', coalesce(dedup_for, interval '1 day'));
        if dedup_while not in ('waiting', 'alive') then
            perform postrow.refuse(format('dedup_while is %L', dedup_while),
                'Give waiting (until it is claimed) or alive (until it is finished).');
        end if;
    elsif dedup_for is not null or dedup_while is not null then
        perform postrow.refuse('dedup_for or dedup_while is given without dedup_key', 'Give the key, or leave both out.');
    end if;
    return true;
end
$$
