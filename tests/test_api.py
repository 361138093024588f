"""The functions that take the transaction first, on one handle: what goes in is stored, or is refused by name."""

import enum
import pickle
import threading
import tracemalloc
from datetime import UTC, datetime, timedelta, timezone
from itertools import permutations
from uuid import UUID, uuid4

import psycopg
import pytest
from pgbouncer import PSYCOPG
from psycopg.rows import namedtuple_row

import postrow
from postrow.api import PLAIN
from postrow.errors import BadArgumentError, BadNameError, IdTakenError, PayloadError, PostrowError
from postrow.ops import produce

SOON = datetime(2090, 1, 1, tzinfo=UTC)


class Colour(enum.StrEnum):
    RED = "red"


def row(conn, message_id):
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute("select * from postrow.message where id = %s", [message_id]).fetchone()


def test_every_option_is_stored(conn):
    chosen = uuid4()
    options = {
        "tenant": "acme",
        "priority": -5,
        "available_at": SOON,
        "max_attempts": 7,
        "target": "laptop-1",
        "target_for": timedelta(hours=1),
        "subject": "order:17",
        "group_key": "g",
        "expires_at": SOON + timedelta(days=1),
        "headers": {"trace": "00-1", "n": [1, None]},
    }
    assert set(options) | {"delay", "dedup_key", "dedup_for", "dedup_while"} == set(produce.Options.__annotations__)
    assert postrow.enqueue(conn, "q", {"a": 1}, id=chosen, **options) == postrow.Enqueued(chosen, deduplicated=False)
    (many,) = postrow.enqueue_many(conn, "q", [{"a": 1}], **options)
    for found in (row(conn, chosen), row(conn, many.id)):
        assert found.queue == "q"
        assert found.payload == {"a": 1}
        for name in set(options) - {"target_for"}:
            assert getattr(found, name) == options[name], name
        assert found.target_until == SOON + timedelta(hours=1)


@pytest.mark.parametrize("rule", [{}, {"dedup_while": "alive"}, {"dedup_for": 60}, {"dedup_for": timedelta(hours=1)}])
def test_a_key_finds_the_message_that_stands_for_another(conn, rule):
    first = postrow.enqueue(conn, "q", 1, dedup_key="k", **rule)
    assert first.deduplicated is False
    assert postrow.enqueue(conn, "q", 2, dedup_key="k", **rule) == (first.id, True)
    sent = postrow.enqueue_many(
        conn, "q", [{"key": "k"}, {"key": None}, {"key": "new"}] * 2, dedup_key=lambda p: p["key"], **rule
    )
    assert [s.deduplicated for s in sent] == [True, False, False, True, False, True]
    assert (sent[0].id, sent[5].id) == (first.id, sent[2].id)
    assert [row(conn, s.id).dedup_key for s in sent] == ["k", None, "new", "k", None, "new"]


@pytest.mark.parametrize("key", ["", 7, "x" * 501, "nul\0"], ids=repr)
def test_a_bad_key_of_one_of_many_is_refused(conn, key):
    with pytest.raises(BadArgumentError, match="dedup_key"):
        postrow.enqueue_many(conn, "q", ["good", key], dedup_key=lambda payload: payload)


def test_long_lists_with_the_same_keys_in_opposite_order_do_not_deadlock(committed, wait_for):
    keys = [f"k{n}" for n in range(4_000)]
    answers, connections = {}, [psycopg.connect(committed, **PSYCOPG) for _ in range(2)]
    pids = [conn.execute("select pg_backend_pid()").fetchone()[0] for conn in connections]  # begins a transaction

    def send(conn, name, payloads):
        with conn:
            answers[name] = postrow.enqueue_many(conn, "q", payloads, dedup_key=str)

    with psycopg.connect(committed) as holder:
        postrow.enqueue(holder, "q", 0, dedup_key=keys[2_000])
        threads = [
            threading.Thread(target=send, args=[conn, name, payloads])
            for conn, name, payloads in zip(connections, "ab", (keys, keys[::-1]), strict=True)
        ]
        for thread in threads:
            thread.start()
        waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and pid = any(%s)"
        with psycopg.connect(committed, autocommit=True) as monitor:
            wait_for(lambda: monitor.execute(waiting, [pids]).fetchone() == (2,), what="both to wait")
        holder.rollback()
    for thread in threads:
        thread.join(30)
    assert sorted(answers) == ["a", "b"]
    assert sorted(sum(s.deduplicated for s in answer) for answer in answers.values()) == [0, 4_000]


def test_one_key_for_many_is_refused_with_what_to_give(conn):
    with pytest.raises(BadArgumentError, match="one key for many") as caught:
        postrow.enqueue_many(conn, "q", [1, 2], dedup_key="k")
    assert "lambda" in caught.value.hint
    with pytest.raises(BadArgumentError, match="without dedup_key"):
        postrow.enqueue_many(conn, "q", [1, 2], dedup_for=60)


def test_once_is_true_the_first_time(conn):
    assert [postrow.once(conn, "evt_1", scope="stripe", tenant="acme", keep=60) for _ in range(2)] == [True, False]
    assert postrow.once(conn, "evt_1")
    with pytest.raises(BadArgumentError, match="keep"):
        postrow.once(conn, "evt_2", keep=0)


def test_without_options_a_message_has_the_defaults(conn):
    sent = postrow.enqueue(conn, "q", None)
    found = row(conn, sent.id)
    assert (found.tenant, found.priority, found.attempt, found.hops) == ("default", 0, 0, 0)
    assert found.available_at == found.enqueued_at
    for name in ("max_attempts", "target", "target_until", "subject", "expires_at", "headers", "claim_token"):
        assert getattr(found, name) is None
    assert sent.id.version == 7


@pytest.mark.parametrize("delay", [60, 60.0, timedelta(minutes=1)])
def test_a_delay_is_seconds_or_a_timedelta(conn, delay):
    for sent in [postrow.enqueue(conn, "q", 1, delay=delay), *postrow.enqueue_many(conn, "q", [1], delay=delay)]:
        found = row(conn, sent.id)
        assert found.available_at - found.enqueued_at == timedelta(minutes=1)


def test_a_moment_is_the_same_in_every_time_zone(conn):
    there = SOON.astimezone(timezone(timedelta(hours=-9, minutes=-30)))
    assert row(conn, postrow.enqueue(conn, "q", 1, available_at=there).id).available_at == SOON


def test_a_member_of_an_enum_of_texts_is_its_value(conn):
    sent = postrow.enqueue(conn, Colour.RED, Colour.RED, tenant=Colour.RED, subject=Colour.RED, target=Colour.RED)
    found = row(conn, sent.id)
    assert {found.queue, found.payload, found.tenant, found.subject, found.target} == {"red"}


def test_an_id_is_one_message_of_one_queue(conn):
    chosen = uuid4()
    assert not postrow.enqueue(conn, "q", 1, id=chosen).deduplicated
    assert postrow.enqueue(conn, "q", "other", id=chosen) == postrow.Enqueued(chosen, deduplicated=True)
    assert not postrow.enqueue(conn, "q", 1, id=chosen, tenant="acme").deduplicated
    assert postrow.depth(conn, "q") == 2
    with pytest.raises(IdTakenError, match="is a message of queue q, not other"):
        postrow.enqueue(conn, "other", 1, id=chosen)


AN_ID = UUID("0192f3a0-0000-7000-8000-000000000000")  # ids of tests are the same in every process
EMPTY = ["", " ", 0, False, b"0", [], {}, b"x", 2**63 + 1, AN_ID, 1j]
# which of these a parameter takes; all else is refused. None where an option is left out by it.
TAKES = {
    "priority": [0],
    "delay": [0],
    "target_for": [0],
    "headers": [{}],
}
OPTIONAL = {"id", *produce.Options.__annotations__} - {"tenant", "priority"}
WITH = {"target_for": {"target": "w"}, "dedup_for": {"dedup_key": "k"}, "dedup_while": {"dedup_key": "k"}}


def is_taken(name, value):
    if name in {"subject", "dedup_key", "group_key"}:
        return value == " " and isinstance(value, str)
    if name == "id":
        return isinstance(value, UUID)
    return any(value == taken and type(value) is type(taken) for taken in TAKES.get(name, []))


@pytest.mark.parametrize("value", [*EMPTY, None], ids=repr)
@pytest.mark.parametrize("name", ["queue", "id", *produce.Options.__annotations__])
def test_a_falsy_or_wrong_value_is_refused_by_the_parameters_name(conn, name, value):
    arguments = {"queue": "q", **WITH.get(name, {}), name: value}
    if is_taken(name, value) or (value is None and name in OPTIONAL):
        postrow.enqueue(conn, payload=1, **arguments)
        return
    with pytest.raises((BadArgumentError, BadNameError), match=name):
        postrow.enqueue(conn, payload=1, **arguments)
    conn.rollback()
    if name != "id":
        if name != "dedup_key" and "dedup_key" in arguments:
            arguments["dedup_key"] = str
        with pytest.raises((BadArgumentError, BadNameError), match=name):
            postrow.enqueue_many(conn, arguments.pop("queue"), [1], **arguments)
        conn.rollback()


@pytest.mark.parametrize("value", [2.5, "3", 2**31, -1, 0], ids=repr)
def test_attempts_outside_their_range_are_refused_with_the_range(conn, value):
    with pytest.raises(BadArgumentError, match="max_attempts is") as caught:
        postrow.enqueue(conn, "q", 1, max_attempts=value)
    assert "from 1 to 2147483647" in caught.value.hint


def test_an_unknown_option_is_refused_with_those_that_are_known(conn):
    for call in (
        lambda: postrow.enqueue(conn, "q", 1, dely=5),
        lambda: postrow.enqueue_many(conn, "q", [1], dely=5),
        lambda: postrow.enqueue_many(conn, "q", [1], id=uuid4()),
    ):
        with pytest.raises(BadArgumentError, match="unknown option") as caught:
            call()
        assert "delay" in caught.value.hint


@pytest.mark.parametrize("name", ["available_at", "expires_at"])
def test_a_moment_without_a_zone_is_refused(conn, name):
    with pytest.raises(BadArgumentError, match=f"{name} has no time zone"):
        postrow.enqueue(conn, "q", 1, **{name: datetime(2090, 1, 1)})  # noqa: DTZ001  # that is the case


def test_a_delay_and_a_moment_together_are_refused(conn):
    with pytest.raises(BadArgumentError, match="both delay and available_at"):
        postrow.enqueue(conn, "q", 1, delay=1, available_at=SOON)


@pytest.mark.parametrize("headers", [[("a", 1)], "a", {1: 2}, {"a": float("nan")}])
def test_headers_are_a_mapping_of_names_to_json(conn, headers):
    with pytest.raises(PostrowError, match="headers"):
        postrow.enqueue(conn, "q", 1, headers=headers)


@pytest.mark.parametrize("look", [postrow.depth, postrow.depth_pending])
@pytest.mark.parametrize("queue", ["", "no good", "q\0", None, 0, b"q"], ids=repr)
def test_a_depth_of_no_queue_is_refused(conn, look, queue):
    with pytest.raises((BadArgumentError, BadNameError), match="queue"):
        look(conn, queue)
    conn.rollback()


# what looks alike and is not: both of a pair are their own message, whatever came first
ALIKE = [
    [{}, {"a": 1}],
    [{"a": 1}, {"a": 1, "b": 2}],
    [{"a": {"x": 1}}, {"a": {"x": 2}}],
    [{"a": 1}, {"a": 1.0}, {"a": "1"}, {"a": True}],
    [{"a": None}, {}],
    [[1, 2], [2, 1]],
    ["\u00e9", "e\u0301"],
]


@pytest.mark.parametrize("pair", [pair for group in ALIKE for pair in permutations(group, 2)], ids=repr)
def test_what_looks_alike_is_never_taken_for_the_same(conn, pair):
    sent = [postrow.enqueue(conn, "q", payload) for payload in pair]
    assert not any(s.deduplicated for s in sent)
    assert [row(conn, s.id).payload for s in sent] == list(pair)
    chosen = uuid4()  # only the id says what is the same, and it never asks the payload
    assert not postrow.enqueue(conn, "q", pair[0], id=chosen).deduplicated
    assert postrow.enqueue(conn, "q", pair[1], id=chosen).deduplicated


# 65,535 parameters hold 7,281 rows of nine; the longest is only committed, to save time
@pytest.mark.parametrize(("count", "finishes"), [(1, "rc"), (7_281, "rc"), (7_282, "r"), (65_536, "c")])
def test_a_list_of_any_length_commits_or_rolls_back_whole(committed, count, finishes):
    with psycopg.connect(committed) as conn, psycopg.connect(committed, autocommit=True) as other:
        for finish in finishes:
            sent = postrow.enqueue_many(conn, "q", ({"n": n} for n in range(count)))
            assert len({s.id for s in sent}) == count
            assert [s.id for s in sent] == sorted(s.id for s in sent)
            assert other.execute("select postrow.depth('q')").fetchone() == (0,)
            if finish == "r":
                conn.rollback()
                assert other.execute("select postrow.depth('q')").fetchone() == (0,)
            else:
                conn.commit()
                assert other.execute("select postrow.depth('q')").fetchone() == (count,)
                last = "select payload from postrow.message where id = %s"
                assert other.execute(last, [sent[-1].id]).fetchone() == ({"n": count - 1},)


def test_ids_of_a_list_are_uuids_like_any_other(conn):
    sent = postrow.enqueue_many(conn, "q", ["a", "b", "c"])
    stored = conn.execute("select id, payload from postrow.message order by id").fetchall()
    assert stored == [(s.id, payload) for s, payload in zip(sent, "abc", strict=True)]
    for id_ in [s.id for s in sent]:
        same = UUID(int=id_.int)
        assert (id_, hash(id_), str(id_), id_.version, id_.is_safe) == (same, hash(same), str(same), 7, same.is_safe)
        assert pickle.loads(pickle.dumps(id_)) == same
    assert [s.deduplicated for s in sent] == [False] * 3


@pytest.mark.parametrize(
    ("count", "statements"),
    [(2_000, [2_000]), (2_001, [250, 500, 1_000, 251]), (6_000, [250, 500, 1_000, 2_000, 2_000, 250])],
)
def test_the_first_statements_of_a_long_list_are_small_so_that_the_server_begins_early(count, statements, monkeypatch):
    monkeypatch.setattr(produce, "TOGETHER_MESSAGES", 1)  # else a statement may hold a few more
    payloads = list(range(count))
    ops = produce.enqueue_many("q", produce.batches(payloads, PLAIN, {}), {}, count=count)
    assert [op.params[1].count("\n") + 1 for op in ops] == statements


def test_a_long_list_is_read_as_it_is_sent(conn, monkeypatch):
    """A million payloads do not have to fit into memory."""
    monkeypatch.setattr(produce, "CHUNK_BYTES", 1_000_000)
    tracemalloc.start()
    try:
        assert len(postrow.enqueue_many(conn, "q", ("x" * 1_000_000 for _ in range(12)))) == 12
        assert tracemalloc.get_traced_memory()[1] < 10_000_000  # all at once would be 12 MB, and more in copies
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "payloads", ["text", b"bytes", {"a": 1}, 7, None, type("P", (), {"model_fields": {}})(), produce], ids=type
)
def test_one_payload_where_a_list_belongs_is_refused(conn, payloads):
    with pytest.raises(BadArgumentError, match="payloads is one") as caught:
        postrow.enqueue_many(conn, "q", payloads)
    assert "Give a list" in caught.value.hint


@pytest.mark.parametrize("megabytes", [1, 60])
def test_a_large_payload_is_carried(conn, megabytes):
    sent = postrow.enqueue(conn, "q", {"text": "x" * (megabytes * 1_000_000)})
    length = "select length(payload ->> 'text') from postrow.message where id = %s"
    assert conn.execute(length, [sent.id]).fetchone() == (megabytes * 1_000_000,)


def test_a_payload_that_jsonb_cannot_hold_is_refused_with_its_size(conn, monkeypatch):
    monkeypatch.setattr("postrow.payload.plain.MAX_BYTES", 1_000_000)
    for call in (
        lambda: postrow.enqueue(conn, "q", "x" * 1_000_000),
        lambda: postrow.enqueue_many(conn, "q", ["x" * 1_000_000]),
    ):
        with pytest.raises(PayloadError, match="1,000,002 bytes") as caught:
            call()
        assert "enqueue a reference" in caught.value.hint
    postrow.enqueue(conn, "q", "x" * 999_998)
