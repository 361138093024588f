"""One handler's open transaction: it holds up nobody but the one who asks to wait for it."""

from datetime import timedelta

import pytest

LEASE = timedelta(seconds=60)
SETTLEMENTS = {
    "ack": lambda n: {},
    "release": lambda n: {},
    "fail": lambda n: {"errors": ["x"] * n},
    "bury": lambda n: {"reasons": ["x"] * n},
}
ALL = pytest.mark.parametrize("function", SETTLEMENTS)


@pytest.fixture
def handler_open(actors):
    """A worker with three claims, and a handler that has acked the second in a transaction of its own, still open."""
    worker, handler = actors("worker"), actors("handler")
    for _ in range(3):
        worker.put()
    rows = worker.take(3, worker="w1", lease=LEASE)
    handler.begin()
    assert handler.settle("ack", rows[1:2]) == ["accepted"]
    return worker, handler, rows


def test_extend_does_not_wait_and_says_busy_for_the_handlers_own(handler_open):
    worker, handler, rows = handler_open
    worker.impatient()
    assert worker.settle("extend", rows, lease=2 * LEASE) == ["accepted", "busy", "accepted"]
    leases = {row.id: row.available_at - row.claimed_at for row in worker.query("select * from postrow.message")}
    assert [leases[row.id] > LEASE * 1.5 for row in rows] == [True, False, True]

    handler.commit()
    assert worker.settle("extend", rows, lease=LEASE) == ["accepted", "unknown", "accepted"]


def test_after_the_handler_rolled_back_its_claim_can_be_extended(handler_open):
    worker, handler, rows = handler_open
    handler.rollback()

    assert worker.settle("extend", rows, lease=LEASE) == ["accepted"] * 3


@ALL
def test_without_waiting_a_locked_row_is_busy_and_the_others_are_accepted(handler_open, function):
    worker, handler, rows = handler_open
    worker.impatient()
    found = worker.settle(function, rows, wait=False, **SETTLEMENTS[function](3))
    assert found == ["accepted", "busy", "accepted"]

    handler.rollback()
    assert worker.settle(function, rows[1:2], wait=False, **SETTLEMENTS[function](1)) == ["accepted"]


@ALL
@pytest.mark.parametrize(("end", "last"), [("commit", "unknown"), ("rollback", "accepted")])
def test_with_waiting_the_batch_waits_and_learns_what_became_of_the_row(handler_open, function, end, last):
    worker, handler, rows = handler_open
    waiting = worker.start_settle(function, rows, **SETTLEMENTS[function](3)).wait_until_blocked()
    getattr(handler, end)()

    found = {row.id: row.outcome for row in waiting.result()}
    assert [found[row.id] for row in rows] == ["accepted", last, "accepted"]


def test_the_handler_may_ack_again_and_fail_after_its_own_ack_and_nothing_is_doubled(handler_open):
    _, handler, rows = handler_open
    mine = rows[1:2]
    assert handler.settle("ack", mine) == ["unknown"]
    assert handler.settle("fail", mine, errors=["x"]) == ["unknown"]
    handler.commit()

    assert handler.find("history", mine[0].id)
    assert handler.find("dead_letter", mine[0].id) is None


def test_a_claim_skips_a_locked_message(actors):
    holder, worker = actors("holder"), actors("worker")
    first, second = holder.put(), holder.put()
    holder.begin()
    holder.query("select from postrow.message where id = %s for update", [first])
    worker.impatient()
    assert [row.id for row in worker.take(10)] == [second]
    holder.rollback()

    assert [row.id for row in worker.take(10)] == [first]


def test_claim_lanes_skips_a_locked_message_too(actors):
    holder, worker = actors("holder"), actors("worker")
    first, second = holder.put(tenant="a"), holder.put(tenant="b")
    holder.begin()
    holder.query("select from postrow.message where id = %s for update", [first])
    rows = worker.impatient().rows(
        "claim_lanes", queue="q", tenants=["a", "b"], priorities=[0, 0], afters=[None, None], per_lane=5, limit=5
    )

    assert [(row.lane, row.id) for row in rows] == [(2, second), (1, None)]


def test_expired_and_late_targets_that_are_locked_are_left_for_the_next_sweep(actors):
    holder, sweeper = actors("holder"), actors("sweeper")
    expired = [holder.put(expires_at="2900-01-01") for _ in range(2)]
    late = [holder.put(target="w1", target_for=LEASE) for _ in range(2)]
    holder.query("update postrow.message set expires_at = postrow.clock() where expires_at is not null")
    holder.query("update postrow.message set target_until = postrow.clock() where target_until is not null")
    holder.begin()
    holder.query("select from postrow.message where id = any (%s) for update", [[expired[0], late[0]]])
    sweeper.impatient()
    assert [sweeper.row("sweep", step=step).done for step in ("expired", "targets")] == [1, 1]
    holder.rollback()

    assert [sweeper.row("sweep", step=step).done for step in ("expired", "targets")] == [1, 1]


@ALL
def test_batches_with_the_same_messages_in_opposite_order_do_not_deadlock(actors, function):
    holder, one, two = actors("holder"), actors("one"), actors("two")
    for _ in range(2):
        holder.put()
    rows = sorted(holder.take(2), key=lambda row: row.id)
    holder.begin()
    holder.query("select from postrow.message where id = %s for update", [rows[0].id])
    # unsorted, `two` would hold the second row by now and wait for the first, which `one` gets and holds
    first = one.start_settle(function, rows, **SETTLEMENTS[function](2)).wait_until_blocked()
    second = two.start_settle(function, rows[::-1], **SETTLEMENTS[function](2)).wait_until_blocked()
    holder.rollback()

    found = sorted([row.outcome for row in running.result()] for running in (first, second))
    assert found[0] == ["accepted", "accepted"]
    assert found[1] in (["unknown", "unknown"], ["stale", "stale"])
