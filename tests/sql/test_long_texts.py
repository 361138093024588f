"""Payloads and headers whose jsonb is small and whose text is huge: a claim could not give them, nor what is behind."""

import psycopg
import pytest


def numbers(count):
    """An array of jsonb, in SQL: each of its numbers takes 16 bytes, and has 131,072 digits."""
    return f"(select jsonb_agg(1e131071) from generate_series(1, {count}))"


BOMB = numbers(4_200)  # 67 kB, and 550 MB
INSIDE = f"jsonb_build_object('x', {BOMB})"
HEADERS = f"headers => {INSIDE}"


def refused(pg, call):
    with pytest.raises(psycopg.Error) as caught, pg.conn.transaction():
        pg.query(f"select * from postrow.{call}")
    assert (caught.value.sqlstate, caught.value.diag.message_hint) == (
        "PW003",
        "Store the content elsewhere and enqueue a reference to it.",
    )
    return caught.value.diag.message_primary


ENTRIES = {
    "enqueue": (f"enqueue('q', {BOMB})", "payload"),
    "enqueue's headers": (f"enqueue('q', '1', {HEADERS})", "headers"),
    "enqueue_many": (
        f"enqueue_many('q', jsonb_build_array('{{\"payload\": 1}}'::jsonb, jsonb_build_object('payload', {BOMB})))",
        "payload of message 2",
    ),
    "headers in enqueue_many": (
        f"enqueue_many('q', jsonb_build_array('{{\"payload\": 1}}'::jsonb || jsonb_build_object('headers', {INSIDE})))",
        "headers of message 1",
    ),
    "enqueue_many's headers": (
        f"enqueue_many('q', '[{{\"payload\": 1}}]', {HEADERS})",
        "headers",
    ),
    "enqueue_lines": ("enqueue_lines('q', '1' || E'\\n[' || repeat('1e131071,', 4200) || '1]')", "payload of line 2"),
    "enqueue_lines' headers": (f"enqueue_lines('q', '1', {HEADERS})", "headers"),
    "publish": (f"publish('t', {BOMB})", "payload"),
    "put_schedule": (f"put_schedule('s', 'q', {BOMB}, 'every', '300', now())", "payload"),
}


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
def test_what_nobody_could_read_is_refused(pg, entry):
    call, what = ENTRIES[entry]
    most = 256 if "headers" in what else 512
    assert refused(pg, call) == f"the text of {what} is over {most} MB"
    assert pg.query("select from postrow.message") == []


@pytest.mark.slow
def test_a_payload_over_a_gigabyte_is_refused_and_its_lane_goes_on(pg):
    """Postgres fails to write it out. It comes from a table, compressed to less than is looked at in others."""
    pg.query(f"create temporary table source on commit drop as select {numbers(10_000)} as payload")
    assert pg.query("select pg_column_size(payload) < 8000 as small from source") == [(True,)]
    assert "over 512 MB" in refused(pg, "enqueue('q', (select payload from pg_temp.source))")
    pg.put(payload="next")
    assert [row.payload for row in pg.take(10)] == ["next"]


def test_the_longest_text_that_is_not_looked_at_is_within_the_limits(pg):
    longest = "(select jsonb_agg(round(1e131071, 16383)) from generate_series(1, 1535))"
    assert pg.query(f"select postrow.may_be_long({longest}) as may, pg_column_size({longest}) as size") == [
        (False, 24_566)
    ]
    pg.query(f"select postrow.check_text('it', {longest}, 256)")
    line = "'[' || repeat('1e131071,', 1820) || '1]'"
    assert pg.query(f"select octet_length({line}) as size, octet_length(({line})::jsonb::text) / 1048576 as most") == [
        (16_383, 227)
    ]


def test_what_is_long_and_not_too_long_goes_through(pg):
    text = "x" * 300_000
    pg.put(payload=text, headers={"x": text})
    pg.rows("enqueue_many", queue="q", messages=[{"payload": text, "headers": {"x": text}}])
    pg.rows("enqueue_lines", queue="q", payloads=f'"{text}"\n1\n[1, 2]')
    assert [row.payload for row in pg.take(10)] == [text, text, text, 1, [1, 2]]
