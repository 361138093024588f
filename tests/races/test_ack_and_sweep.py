"""The fence: who settles a message that the sweep is taking, or has taken, changes nothing."""

from datetime import timedelta
from uuid import uuid4

import pytest

LEASE = timedelta(seconds=60)
LATE_CALLS = {  # what the old owner may try, with what each needs beside the fence
    "ack": ("ack", {}),
    "fail": ("fail", {"errors": ["late"]}),
    "release": ("release", {}),
    "snooze": ("release", {"until": ["2900-01-01"]}),
    "extend": ("extend", {"lease": LEASE}),
    "bury": ("bury", {"reasons": ["late"]}),
}
EACH = pytest.mark.parametrize("call", LATE_CALLS)
WAITING = pytest.mark.parametrize("call", [call for call in LATE_CALLS if call != "extend"])  # extend never waits


@pytest.fixture
def expired(actors):
    """A worker, a sweeper, and the worker's claim of a message whose lease has ended."""
    worker, sweeper = actors("worker"), actors("sweeper")
    worker.put(payload={"a": 1})
    rows = worker.take(worker="w1", lease=LEASE)
    worker.expire(rows[0].id)
    return worker, sweeper, rows


def outcomes(running):
    return [row.outcome for row in running.result()]


@EACH
def test_after_the_sweep_the_old_token_is_stale_and_changes_no_column(expired, call):
    worker, sweeper, rows = expired
    assert sweeper.row("sweep", step="leases").done == 1
    before = sweeper.find("message", rows[0].id)
    function, options = LATE_CALLS[call]

    assert worker.settle(function, rows, **options) == ["stale"]
    assert sweeper.find("message", rows[0].id) == before


@EACH
def test_the_old_owner_disturbs_neither_the_new_owner_nor_a_third(expired, call):
    old, sweeper, rows = expired
    sweeper.rows("sweep", step="leases")
    sweeper.query("update postrow.message set available_at = postrow.clock()")
    new = sweeper.take(worker="w2", lease=LEASE)
    before = sweeper.find("message", rows[0].id)
    function, options = LATE_CALLS[call]

    assert old.settle(function, rows, **options) == ["stale"]
    assert sweeper.find("message", rows[0].id) == before
    assert old.take(worker="w3") == []
    assert sweeper.settle("ack", new) == ["accepted"]
    assert old.settle(function, rows, **options) == ["unknown"]


@WAITING
def test_a_call_that_waits_for_the_sweep_loses_when_it_commits(expired, call):
    worker, sweeper, rows = expired
    sweeper.begin()
    sweeper.rows("sweep", step="leases")
    swept = sweeper.find("message", rows[0].id)
    function, options = LATE_CALLS[call]
    waiting = worker.start_settle(function, rows, **options).wait_until_blocked()
    sweeper.commit()

    assert outcomes(waiting) == ["stale"]
    assert worker.find("message", rows[0].id) == swept
    assert worker.find("history", rows[0].id) is None


@WAITING
def test_a_call_that_waits_for_the_sweep_is_accepted_when_it_rolls_back(expired, call):
    worker, sweeper, rows = expired
    sweeper.begin()
    sweeper.rows("sweep", step="leases")
    function, options = LATE_CALLS[call]
    waiting = worker.start_settle(function, rows, **options).wait_until_blocked()
    sweeper.rollback()

    assert outcomes(waiting) == ["accepted"]


def test_an_ack_that_waits_while_the_sweep_dead_letters_the_message_is_unknown(actors):
    worker, sweeper = actors("worker"), actors("sweeper")
    worker.put(max_attempts=1)
    rows = worker.take()
    worker.expire(rows[0].id)
    sweeper.begin()
    sweeper.rows("sweep", step="leases")
    waiting = worker.start_settle("ack", rows).wait_until_blocked()
    sweeper.commit()

    assert outcomes(waiting) == ["unknown"]
    assert worker.find("history", rows[0].id) is None
    assert worker.find("dead_letter", rows[0].id).reason == "lease"


def test_the_sweep_leaves_a_message_whose_ack_is_not_committed(expired):
    worker, sweeper, rows = expired
    worker.begin()
    assert worker.settle("ack", rows) == ["accepted"]
    assert sweeper.impatient().row("sweep", step="leases").done == 0
    worker.commit()

    assert sweeper.row("sweep", step="leases").done == 0
    assert sweeper.find("history", rows[0].id)
    assert sweeper.query("select id from postrow.dead_letter") == []


def test_the_sweep_finds_a_message_again_that_it_skipped_as_locked(expired):
    worker, sweeper, rows = expired
    late = worker.put()
    worker.expire(worker.take()[0].id, ago=0.5)
    worker.begin()
    worker.settle("ack", rows)
    assert sweeper.row("sweep", step="leases").done == 1  # the other one, which expired later
    assert sweeper.find("message", late).claim_token is None
    worker.rollback()

    # the same session, whose frontier must not have passed the locked row
    assert sweeper.row("sweep", step="leases").done == 1
    assert sweeper.find("message", rows[0].id).claim_token is None


def test_an_overlapping_older_attempt_cannot_bring_a_dead_message_back(actors):
    old, new = actors("old"), actors("new")
    old.put(max_attempts=2)
    first = old.take(worker="w1")
    old.expire(first[0].id)
    new.rows("sweep", step="leases")
    new.query("update postrow.message set available_at = postrow.clock()")
    second = new.take(worker="w2")
    assert new.settle("fail", second, errors=["newest"]) == ["accepted"]
    dead = new.find("dead_letter", second[0].id)

    assert old.settle("fail", first, errors=["older"]) == ["unknown"]
    assert new.find("message", first[0].id) is None
    assert new.find("dead_letter", first[0].id) == dead
    assert dead.attempt == 2


def test_a_claim_given_back_by_its_token_leaves_what_the_sweep_took(expired):
    worker, sweeper, rows = expired
    sweeper.rows("sweep", step="leases")
    before = sweeper.find("message", rows[0].id)

    assert worker.value("release_claim", token=rows[0].claim_token) == 0
    assert worker.find("message", rows[0].id) == before


def test_two_sweeps_at_once_one_works_and_the_other_returns_at_once(expired):
    worker, sweeper, _ = expired
    sweeper.begin()
    assert sweeper.row("sweep", step="leases").done == 1
    assert worker.impatient().rows("sweep") == []
    assert worker.rows("sweep", step="workers") == []  # one sweeper at a time, whatever the step
    sweeper.commit()

    assert [row.done for row in worker.rows("sweep")] == [0] * 8


def test_a_sweeper_that_died_holds_no_lock(actors, wait_for):
    dead, alive = actors("dead"), actors("alive")
    dead.begin()
    dead.rows("sweep")
    dead.conn.close()

    assert wait_for(lambda: alive.rows("sweep", step="workers"), what="the lock of a session that is gone")


def test_the_ledger_does_not_lose_a_key_that_a_producer_takes_over_meanwhile(actors):
    producer, sweeper = actors("producer"), actors("sweeper")
    mine = producer.put(id=uuid4())
    producer.settle("ack", producer.take())
    producer.query("update postrow.seen set until = postrow.clock() - interval '1 s'")
    producer.begin()
    assert not producer.row("enqueue", queue="q", payload=2, id=mine).deduplicated
    assert sweeper.impatient().row("sweep", step="seen").done == 0
    producer.commit()

    assert sweeper.row("enqueue", queue="q", payload=3, id=mine).deduplicated
