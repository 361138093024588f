"""Many messages that differ in their payloads alone: one JSON value a line."""

from datetime import timedelta
from uuid import UUID

import pytest


def payloads(pg):
    return [row.payload for row in pg.query("select payload from postrow.message order by id")]


def test_each_line_is_a_message_in_order(pg, clock):
    lines = '{"a": "\\n"}\n[1, 2]\n"},{"\nnull'
    sent = pg.row("enqueue_lines", queue="q", payloads=lines)
    assert sent.messages == 4
    found = pg.query("select id, payload, enqueued_at, available_at from postrow.message order by id")
    assert [row.id for row in found] == [UUID(int=sent.first_id.int + n) for n in range(4)]
    assert {(row.id.version, row.id.variant) for row in found} == {(7, sent.first_id.variant)}
    assert [row.payload for row in found] == [{"a": "\n"}, [1, 2], "},{", None]
    assert [row.enqueued_at - clock.now for row in found] == [timedelta(microseconds=n) for n in (1, 2, 3, 4)]
    assert all(row.available_at == row.enqueued_at for row in found)


def test_the_options_are_those_of_all(pg):
    options = {
        "tenant": "acme",
        "priority": 3,
        "max_attempts": 2,
        "target": "w1",
        "target_for": timedelta(hours=1),
        "subject": "order:1",
        "headers": {"trace": "x"},
    }
    pg.rows("enqueue_lines", queue="q", payloads="1\n2", delay=timedelta(minutes=5), **options)
    for row in pg.query("select * from postrow.message"):
        assert {name: getattr(row, name) for name in options if name != "target_for"} == {
            name: value for name, value in options.items() if name != "target_for"
        }
        assert row.available_at - row.enqueued_at == timedelta(minutes=5)
        assert row.target_until - row.available_at == timedelta(hours=1)
        assert row.enqueued_by


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_a_line_feed_at_the_end_is_no_message(pg, end):
    assert pg.row("enqueue_lines", queue="q", payloads=f"1\r\n2{end}").messages == 2
    assert payloads(pg) == [1, 2]


@pytest.mark.parametrize("nothing", ["", "\n"])
def test_no_lines_are_no_messages(pg, nothing):
    assert pg.row("enqueue_lines", queue="q", payloads=nothing) == (None, 0)
    assert payloads(pg) == []


def test_ids_of_many_calls_come_in_order_and_none_comes_twice(pg):
    """The last eight digits of a list's ids count up, from where is random; they never reach their end."""
    for _ in range(50):
        pg.row("enqueue_lines", queue="q", payloads="\n".join(["1"] * 20))
    ids = [row.id for row in pg.query("select id from postrow.message order by enqueued_at")]
    assert len(set(ids)) == 1000
    starts = ids[::20]
    assert starts == sorted(starts)
    assert {f"{id_}"[28] for id_ in ids} <= set("12345678")


@pytest.mark.parametrize("lines", ["1\n\n2", "1\n{", "1 2"])
def test_a_line_that_is_no_json_is_refused_and_nothing_is_enqueued(pg, lines):
    assert pg.refused("enqueue_lines", queue="q", payloads=lines).sqlstate == "22P02"
    assert payloads(pg) == []


def test_bad_options_are_refused(pg):
    assert pg.refused("enqueue_lines", queue="no good", payloads="1").sqlstate == "PW002"
    assert pg.refused("enqueue_lines", queue="q", payloads="1", priority=99_999).sqlstate == "PW003"
    assert pg.refused("enqueue_lines", queue="q", payloads=None).sqlstate == "PW003"


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_encoding_of_the_client_is_no_matter(pg, end):
    pg.query("set client_encoding = 'latin1'")
    pg.rows("enqueue_lines", queue="q", payloads=f'"é"\n"ü"{end}')
    pg.query("select count(*) from postrow.enqueue_lines('q', '\"' || chr(8364) || '\"')")
    pg.query("set client_encoding = 'utf8'")
    assert sorted(payloads(pg)) == ["é", "ü", "€"]
