"""The heartbeat, timeouts, and leases that are lost."""

import asyncio
import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest

import postrow
from postrow import App
from postrow.drivers.psycopg3 import execute_async
from postrow.ops import claims
from postrow.ops.op import Op, nothing, single
from postrow.worker import heartbeat as heartbeat_module
from postrow.worker.connections import Database, Weather
from postrow.worker.slots import Slot, Slots

pytestmark = pytest.mark.slow  # each waits for real time to pass

LEASE = 0.6  # seconds


@pytest.fixture
def looks(monkeypatch):
    """How often heartbeats have looked at their event loops."""
    made = []
    original = heartbeat_module.Heartbeat._watch_loop

    def watch(self):
        original(self)
        made.append(None)

    monkeypatch.setattr(heartbeat_module.Heartbeat, "_watch_loop", watch)
    return made


@pytest.mark.parametrize("kind", ["async", "blocking the loop", "sync"])
def test_a_handler_that_runs_for_several_leases_is_started_once(app, db, clock, start, wait_for, until, kind):
    starts, may_end = [], threading.Event()
    if kind == "async":

        @app.queue("q").consumer(lease=LEASE, name="h")
        async def handle(message):
            starts.append(message.payload)
            await until(may_end)

    elif kind == "blocking the loop":

        @app.queue("q").consumer(lease=LEASE, name="h")
        async def handle(message):
            starts.append(message.payload)
            may_end.wait(20)  # what must not be done

    else:

        @app.queue("q").consumer(lease=LEASE, name="h")
        def handle(message):
            starts.append(message.payload)
            may_end.wait(20)

    start(sweep=False)
    id_ = db.put()
    wait_for(lambda: starts)
    start(name="w2", sweep=False)
    clock.leases_pass(3, lease=LEASE, held=1)
    may_end.set()
    wait_for(lambda: db.history(id_))
    assert starts == [1]
    assert db.history(id_).attempt == 1


async def test_a_lease_is_due_after_a_third_of_it_and_looked_at_several_times_in_a_third():
    """So the renewals that other tests wait for come in time."""
    app = App("postgresql://x")
    app.queue("q").consumer(lease=60, name="h")(lambda message: None)
    (consumer,) = app.consumers.values()
    slot = Slot(SimpleNamespace(tenant="default", id=uuid4()), uuid4(), consumer, 100.0)
    assert [slot.due(now) for now in (119.9, 120.1)] == [False, True]
    none = dict.fromkeys(("lost", "beat", "farewell"))
    heartbeat = heartbeat_module.Heartbeat(None, Slots(), None, **none, shortest=timedelta(seconds=LEASE))
    assert heartbeat._tick <= LEASE / 3 / 4


def test_renewals_that_are_slow_to_be_answered_are_in_time(app, db, clock, start, wait_for, until, monkeypatch):
    original, answered = heartbeat_module.execute, []

    def slow(conn, op, **options):
        if "extend(" not in op.sql:
            return original(conn, op, **options)
        clock.advance(LEASE / 4)
        answers = original(conn, op, **options)
        answered.append(len(answers))
        return answers

    monkeypatch.setattr(heartbeat_module, "execute", slow)
    starts, may_end = [], threading.Event()

    @app.queue("q").consumer(lease=LEASE)
    async def handle(message):
        starts.append(message.payload)
        await until(may_end)

    db.put_many(range(10))
    clock.advance(0.001)  # each of a list is due a microsecond after the one before it
    start(sweep=False)
    wait_for(lambda: len(starts) == 10)
    start(name="w2", sweep=False)
    for _ in range(6):
        before = len(answered)
        clock.advance(LEASE / 3)  # until the next are sent
        wait_for(lambda before=before: len(answered) > before)
        clock.sweep()
    may_end.set()
    wait_for(lambda: db.done() == 10)
    assert sorted(starts) == list(range(10))


def test_a_blocked_event_loop_is_said_once_and_seen_by_nobody_else(
    app, db, clock, start, lines, wait_for, looks, monkeypatch
):
    monkeypatch.setattr(heartbeat_module, "BLOCKED", 0.3)
    said = "event loop has been blocked"

    @app.queue("q").consumer(lease=LEASE)
    async def blocks(_message):  # what must not be done
        wait_for(lambda: lines(said))
        seen = len(looks)
        wait_for(lambda: len(looks) > seen + 10)

    id_ = db.put()
    start()
    wait_for(lambda: db.history(id_))
    (line,) = lines(said)
    assert "plain def" in line


@pytest.mark.session("it looks for the sessions of a worker's parts")
def test_a_busy_database_is_not_taken_for_a_blocked_loop(
    app, db, start, lines, wait_for, looks, monkeypatch, sessions_on
):
    now = [time.monotonic()]  # the heartbeat's own clock
    monkeypatch.setattr(heartbeat_module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    @app.queue("q").consumer(lease=LEASE)
    async def handle(_message):
        pass

    running = start()
    wait_for(lambda: db.rows("select 1 from postrow.worker"))
    blocker = sessions_on(db.dsn)
    blocker.execute("lock table postrow.worker in access exclusive mode")
    monkeypatch.setattr(heartbeat_module, "BLOCKED", heartbeat_module.IDLE_BEAT_EVERY * 2)
    now[0] += heartbeat_module.IDLE_BEAT_EVERY + 1  # its next sign of life waits for the lock
    (pid,) = db.backends("heartbeat")
    waits = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
    wait_for(lambda: db.value(waits, [pid]), what="the heartbeat to wait for the lock")
    wait_for(lambda: running.worker._parts.heartbeat._asked_loop is None, what="the turn that the loop owes")
    now[0] += 10 * heartbeat_module.BLOCKED
    seen = len(looks)
    blocker.rollback()
    wait_for(lambda: len(looks) > seen + 2, what="the heartbeat to look again")
    assert lines("blocked") == []


def test_an_async_handler_that_takes_longer_than_its_timeout_is_cancelled_and_fails(app, db, start, soon, wait_for):
    cancelled = []

    @app.queue("q").consumer(timeout=0.1, max_attempts=2, retry=soon)
    async def slow(message):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(message.attempt)
            raise

    id_ = db.put()
    start()
    dead = wait_for(lambda: db.dead(id_))
    assert cancelled == [1, 2]
    assert dead.reason == "attempts"
    assert [(f["type"], f["message"]) for f in dead.failures] == [
        ("TimeoutError", "the handler took longer than its timeout of 0.1 s")
    ] * 2


def test_a_timeout_of_the_handlers_own_is_told_from_ours(app, db, start, wait_for):
    @app.queue("q").consumer(timeout=10, max_attempts=1)
    async def slow(_message):
        async with asyncio.timeout(0.01):
            await asyncio.sleep(30)

    id_ = db.put()
    start()
    dead = wait_for(lambda: db.dead(id_))
    assert dead.failures[0]["type"] == "TimeoutError"
    assert "longer than its timeout" not in dead.failures[0]["message"]


def test_a_sync_handler_past_its_timeout_loses_its_lease_and_its_late_outcome_is_refused(
    app, db, clock, start, soon, wait_for, lines
):
    first_may_end, ran = threading.Event(), []

    @app.queue("q").consumer(lease=LEASE, timeout=0.2, retry=soon, concurrency=1)
    def slow(message):
        ran.append(message.attempt)
        if message.attempt == 1:
            first_may_end.wait(20)

    id_ = db.put()
    start(name="w1", sweep=False)
    wait_for(lambda: ran == [1])
    start(name="w2", sweep=False)
    clock.leases_end(lambda: db.message(id_).failures, lease=LEASE)
    clock.advance(0.1)  # until the retry
    wait_for(lambda: db.history(id_))
    assert ran == [1, 2]
    assert (db.history(id_).claimed_by, db.history(id_).attempt) == ("w2", 2)
    assert "lease of worker w1" in db.history(id_).failures[0]["message"]
    first_may_end.set()
    again = db.put(payload=2)
    wait_for(lambda: db.history(again))
    assert db.value("select count(*) from postrow.history where id = %s", [id_]) == 1


def test_a_late_outcome_of_a_message_that_another_holds_is_refused_and_said(app, db, start, wait_for, lines, reached):
    at, may_end = reached(), threading.Event()

    @app.queue("q").consumer(lease=60)
    def slow(_message):
        at.come()
        may_end.wait(20)

    id_ = db.put()
    start()
    at.wait()
    db.take_away(id_)
    token = db.message(id_).claim_token
    may_end.set()
    wait_for(lambda: lines("was refused: another worker holds the message"))
    assert db.message(id_).claim_token == token


def test_a_lost_lease_cancels_an_async_handler_and_nothing_is_reported(app, db, clock, start, wait_for, lines, reached):
    at, cancelled = reached(), reached()

    @app.queue("q").consumer(lease=LEASE)
    async def slow(_message):
        at.come()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.come()
            raise

    id_ = db.put()
    start()
    at.wait()
    db.take_away(id_)
    cancelled.wait()
    assert len(lines("lost the lease")) == 1
    assert db.message(id_).claimed_by == "other"
    assert db.message(id_).failures is None


def test_a_lost_lease_leaves_a_sync_handler_and_drops_its_outcome(app, db, clock, start, wait_for, lines, reached):
    at, may_end = reached(), threading.Event()

    @app.queue("q").consumer(lease=LEASE, concurrency=1)
    def slow(message):
        if message.payload == 1:
            at.come()
            may_end.wait(20)

    id_ = db.put()
    start()
    at.wait()
    db.take_away(id_)
    wait_for(lambda: lines("cannot be stopped"))
    may_end.set()
    after = db.put(payload=2)
    wait_for(lambda: db.history(after))
    assert db.message(id_).claimed_by == "other"


def test_a_lease_that_is_lost_just_as_its_handler_ends_is_said(
    app, db, clock, start, wait_for, lines, reached, monkeypatch
):
    """The heartbeat's word comes after the handler's end, since the handler does not let go of the event loop."""
    at, noticed = reached(), threading.Event()
    original = heartbeat_module.Heartbeat._renew

    def renew(self, conn, due, lease):
        answers = original(self, conn, due, lease)
        if "stale" in answers.values():
            noticed.set()
        return answers

    monkeypatch.setattr(heartbeat_module.Heartbeat, "_renew", renew)

    @app.queue("q").consumer(lease=LEASE)
    async def blocks(_message):
        at.come()
        noticed.wait(20)

    id_ = db.put()
    start()
    at.wait()
    db.take_away(id_)
    wait_for(lambda: lines("was refused: another worker holds the message"))
    assert not lines("lost the lease")
    assert db.message(id_).claimed_by == "other"


def test_a_retry_signal_after_a_lost_lease_changes_nothing(app, db, start, wait_for, lines, reached):
    at, may_end = reached(), threading.Event()

    @app.queue("q").consumer(lease=60)
    def handle(message):
        if message.payload == 1:
            at.come()
            may_end.wait(20)
            raise postrow.Retry(after=0)

    id_ = db.put()
    start()
    at.wait()
    db.take_away(id_)
    may_end.set()
    wait_for(lambda: lines("the outcome (fail)"))
    assert (db.message(id_).attempt, db.message(id_).failures) == (1, None)


def test_of_two_claims_of_one_message_the_last_is_renewed_and_the_first_is_lost(app, db):
    """The first lease ended unnoticed, and the same worker claimed again: an extend of both is refused as a whole."""

    @app.queue("q").consumer(lease=30)
    async def handle(_message):
        pass

    (consumer,) = app.consumers.values()
    for _ in range(2):
        db.put()

    async def main():
        database, slots, lost = Database(db.dsn), Slots(), []
        heartbeat = heartbeat_module.Heartbeat(
            database,
            slots,
            Weather(),
            lost=lost.append,
            beat=lambda: Op("select 1", (), single),
            farewell=Op("select 1", (), nothing),
            shortest=timedelta(seconds=30),
        )
        async with await database.connect("test") as conn:
            claims_of = [uuid4(), uuid4()]
            rows = []
            for token in claims_of:
                await execute_async(conn, claims.release_claim(claims_of[0], "q"))
                op = claims.claim_lanes(
                    "q",
                    [("default", 0, None)],
                    per_lane=2,
                    limit=2,
                    lease=None,
                    worker="w",
                    token=token,
                    max_bytes=None,
                )
                rows.append([(row, token) for row in (await execute_async(conn, op)).messages])
        now = time.monotonic()
        first = Slot(*rows[0][0], consumer, now - 25)
        second = [Slot(row, token, consumer, now - 20) for row, token in rows[1]]
        slots.add([first, *second])
        heartbeat.start()
        while not all(slot.renewed > now for slot in second):  # noqa: ASYNC110  # a thread does it
            await asyncio.sleep(0.01)
        heartbeat.stop()
        while heartbeat.alive:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert lost == [first]
        assert first.gone

    asyncio.run(asyncio.wait_for(main(), 20))
