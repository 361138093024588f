"""`ack_at` beside others that have the same message in hand: it waits for nobody, and a place is never believed."""

from datetime import timedelta

import psycopg
import pytest
from settling import ack_at, lists

LEASE = timedelta(seconds=60)
REPEATABLE = "isolation level repeatable read"


def waits(running):
    """Whether a statement waits for a lock before it ends."""
    while not running.done:
        if running.session.blocked():
            return True
    return False


@pytest.fixture
def held(actors):
    """A worker, another session, and the worker's claim of two messages."""
    worker, other = actors("worker"), actors("other")
    for _ in range(2):
        worker.put()
    return worker, other, worker.take(2, worker="w1", lease=LEASE)


@pytest.fixture(params=["at their places", "elsewhere"])
def expired(request, held):
    """The same after the end of the first one's lease, as its place says, or as it said before that."""
    worker, other, rows = held
    worker.expire(rows[0].id)
    if request.param == "at their places":
        (found,) = worker.query("select ctid from postrow.message where id = %s", [rows[0].id])
        rows[0] = rows[0]._replace(place=found.ctid)
    return worker, other, rows


SWEEP = pytest.param(lambda other, rows: other.row("sweep", step="leases"), id="the sweep")
EXTEND = pytest.param(lambda other, rows: other.settle("extend", rows[:1], lease=LEASE), id="extend")
ACK_AT = pytest.param(lambda other, rows: ack_at(other, rows[:1]), id="another ack_at")
ACK = pytest.param(lambda other, rows: other.settle("ack", rows[:1]), id="ack")
FAIL = pytest.param(lambda other, rows: other.settle("fail", rows[:1], errors=["x"]), id="fail")
RIVALS = pytest.mark.parametrize("rival", [SWEEP, EXTEND, ACK_AT, ACK, FAIL])


@RIVALS
def test_what_another_has_in_hand_is_busy_and_nothing_waits(expired, rival):
    worker, other, rows = expired
    other.begin()
    rival(other, rows)
    running = worker.start("ack_at", **lists(rows))
    waited = waits(running)
    other.rollback()

    assert [(row.id, row.outcome) for row in running.result()] == [(rows[0].id, "busy")]
    assert not waited
    assert worker.find("history", rows[1].id)
    assert ack_at(worker, rows[:1]) == ["accepted"], "the other was rolled back"


@pytest.mark.parametrize(
    ("rival", "outcome"),
    [
        pytest.param(*SWEEP.values, "stale", id="the sweep"),
        pytest.param(*FAIL.values, "stale", id="fail"),
        pytest.param(*EXTEND.values, "accepted", id="extend"),
        pytest.param(*ACK_AT.values, "unknown", id="another ack_at"),
        pytest.param(*ACK.values, "unknown", id="ack"),
    ],
)
def test_when_the_other_has_committed_its_word_holds(expired, rival, outcome):
    worker, other, rows = expired
    other.begin()
    rival(other, rows)
    assert ack_at(worker, rows[:1]) == ["busy"]
    other.commit()

    assert ack_at(worker, rows[:1]) == [outcome]
    assert len(worker.query("select id from postrow.history where id = %s", [rows[0].id])) == (outcome != "stale")


def test_a_message_that_the_sweep_has_given_to_another_is_stale_at_its_old_place_and_at_its_new_one(held):
    worker, other, rows = held
    worker.expire(rows[0].id)
    other.rows("sweep", step="leases")
    other.query("update postrow.message set available_at = postrow.clock() where claim_token is null")
    (new,) = other.take(worker="w2")

    assert ack_at(worker, rows[:1]) == ["stale"]
    assert ack_at(worker, [rows[0]._replace(place=new.place)]) == ["stale"]
    assert ack_at(other, [new]) == ["accepted"]


def test_nobody_takes_what_an_ack_at_has_that_is_not_committed(expired):
    worker, other, rows = expired
    worker.begin()
    assert ack_at(worker, rows) == ["accepted", "accepted"]
    other.impatient()
    assert other.row("sweep", step="leases").done == 0
    assert other.settle("extend", rows, lease=LEASE) == ["busy", "busy"]
    assert ack_at(other, rows) == ["busy", "busy"]
    assert other.take(2) == []
    worker.commit()

    assert ack_at(other, rows) == ["unknown", "unknown"]
    assert len(other.query("select id from postrow.history")) == 2


def test_an_ack_waits_for_an_ack_at_and_is_unknown(held):
    worker, other, rows = held
    worker.begin()
    ack_at(worker, rows)
    waiting = other.start_settle("ack", rows).wait_until_blocked()
    worker.commit()

    assert [row.outcome for row in waiting.result()] == ["unknown", "unknown"]


def test_two_with_the_same_messages_in_opposite_order_do_not_deadlock(held):
    worker, other, rows = held
    worker.begin()
    assert ack_at(worker, rows[:1]) == ["accepted"]
    other.begin()
    assert ack_at(other.impatient(), rows[::-1]) == ["accepted", "busy"]
    assert ack_at(worker.impatient(), rows[1:]) == ["busy"]
    worker.commit()
    other.commit()

    assert len(worker.query("select id from postrow.history")) == 2


@pytest.mark.parametrize("call", ["ack", "ack_at"])
def test_in_a_transaction_that_cannot_see_that_the_message_moved_it_is_a_serialization_failure(held, call):
    worker, other, rows = held
    worker.begin(REPEATABLE)
    worker.query("select id from postrow.message")
    other.settle("extend", rows[:1], lease=LEASE)
    with pytest.raises(psycopg.errors.SerializationFailure):
        ack_at(worker, rows[:1]) if call == "ack_at" else worker.settle("ack", rows[:1])
    worker.rollback()

    assert ack_at(worker, rows) == ["accepted", "accepted"]
