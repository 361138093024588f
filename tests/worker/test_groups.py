"""Groups in a worker: one after the other, in order, across retries, workers and deaths; side by side with the rest."""

import asyncio
import contextvars
import random
import threading
import time
from collections import Counter, defaultdict

import pytest

import postrow

pytestmark = pytest.mark.slow


class Record:
    """What handlers ran, by group: each is in its group alone, or it is noted."""

    def __init__(self):
        self._lock = threading.Lock()
        self._inside = Counter()
        self.together = []
        self.tried = defaultdict(list)
        self.done = defaultdict(list)

    def enter(self, message):
        with self._lock:
            self.tried[message.group_key].append(message.payload)
            self._inside[message.group_key] += 1
            if self._inside[message.group_key] > 1:
                self.together.append(message.payload)

    def leave(self, message, *, done):
        with self._lock:
            self._inside[message.group_key] -= 1
            if done:
                self.done[message.group_key].append(message.payload)


@pytest.fixture
def record():
    return Record()


def put(db, payloads, group="g", **options):
    return [db.put(payload=payload, group_key=group, **options) for payload in payloads]


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_each_group_is_handled_in_order_by_two_workers_with_failures_between(app, db, start, wait_for, record, kind):
    def failing(message):
        return message.attempt == 1 and random.random() < 0.2

    async def in_the_loop(message):
        record.enter(message)
        await asyncio.sleep(0)
        record.leave(message, done=not (failed := failing(message)))
        if failed:
            raise postrow.Retry(after=0.01)

    def in_a_thread(message):
        record.enter(message)
        record.leave(message, done=not (failed := failing(message)))
        if failed:
            raise postrow.Retry(after=0.01)

    app.queue("q").consumer(concurrency=8, name="handler")(in_the_loop if kind == "async" else in_a_thread)
    groups = [f"g{n}" for n in range(12)]
    for n in range(10):  # one by one, and in lists
        for group in groups:
            put(db, [n], group)
    for group in groups:
        db.put_many(range(10, 20), group_key=group)
    start(name="w1", sweep=False)
    start(name="w2", sweep=False)
    wait_for(lambda: db.live() == 0)

    assert record.together == []
    assert record.done == {group: list(range(20)) for group in groups}


def test_a_run_takes_one_place_and_the_others_go_on_beside_it(app, db, start, wait_for, reached, until, record):
    inside, opened = reached(), threading.Event()

    @app.queue("q").consumer(concurrency=2)
    async def handle(message):
        record.enter(message)
        if message.payload == "g0":
            inside.come()
            await until(opened)
        record.leave(message, done=True)

    put(db, [f"g{n}" for n in range(5)])
    start()
    inside.wait()
    put(db, ["x1", "x2", "x3"], group=None)
    put(db, ["h1", "h2"], group="h")
    wait_for(lambda: db.done() == 5)
    assert record.tried["g"] == ["g0"]
    opened.set()
    wait_for(lambda: db.live() == 0)
    assert record.done["g"] == [f"g{n}" for n in range(5)]


def test_when_one_of_a_run_fails_the_rest_is_given_back_and_comes_after_it(app, db, start, wait_for, record, soon):
    @app.queue("q").consumer(retry=soon)
    async def handle(message):
        record.enter(message)
        record.leave(message, done=(message.payload, message.attempt) != ("b", 1))
        if (message.payload, message.attempt) == ("b", 1):
            raise RuntimeError("no")

    ids = put(db, ["a", "b", "c", "d"])
    start()
    wait_for(lambda: db.live() == 0)
    assert record.tried["g"] == ["a", "b", "b", "c", "d"]
    assert [db.history(id_).attempt for id_ in ids] == [1, 2, 1, 1]


@pytest.mark.parametrize("on_dead", ["continue", "block"])
def test_a_dead_head_lets_its_group_go_on_or_blocks_it(app, db, start, wait_for, record, on_dead):
    @app.queue("q").consumer(max_attempts=1, on_dead=on_dead)
    async def handle(message):
        record.enter(message)
        record.leave(message, done=message.payload != "a")
        if message.payload == "a":
            raise postrow.Bury("no")

    (a, _) = put(db, ["a", "b"])
    put(db, ["other"], group="h")
    start()
    wait_for(lambda: db.dead(a) and db.done() == (2 if on_dead == "continue" else 1))
    if on_dead == "block":
        put(db, ["other"], group="h")
        wait_for(lambda: db.done() == 2)
        assert record.done["g"] == []
        db.rows("select postrow.resolve(%s, 'default', 'ignored', 'a test')", [a])
        wait_for(lambda: db.live() == 0)
    assert record.done["g"] == ["b"]


def test_a_stop_gives_what_waits_back_at_once_and_lets_the_running_one_finish(
    app, db, start, wait_for, reached, until, record
):
    inside, opened = reached(), threading.Event()

    @app.queue("q").consumer()
    async def handle(message):
        record.enter(message)
        inside.come()
        await until(opened)
        record.leave(message, done=True)

    ids = put(db, ["a", "b", "c"])
    running = start()
    inside.wait()
    running.worker.stop()
    wait_for(lambda: all(db.message(id_).claim_token is None for id_ in ids[1:]))
    assert db.message(ids[0]).claim_token is not None
    opened.set()
    running.stop()
    assert record.done["g"] == ["a"]
    assert [(db.message(id_).attempt, db.message(id_).failures) for id_ in ids[1:]] == [(0, None), (0, None)]


def test_when_the_lease_of_the_running_one_is_lost_the_next_is_not_started(
    app, db, clock, start, wait_for, reached, until, record, lines
):
    inside = reached()

    @app.queue("q").consumer(lease=0.6)
    async def handle(message):
        record.enter(message)
        inside.come()
        await until(threading.Event())

    ids = put(db, ["a", "b"])
    start()
    inside.wait()
    db.take_away(ids[0])
    wait_for(lambda: lines("lost the lease"))
    wait_for(lambda: db.message(ids[1]).claim_token is None)
    assert record.tried["g"] == ["a"]


def test_a_message_of_a_run_that_was_taken_away_is_not_started(app, db, clock, start, wait_for, reached, until, record):
    inside, opened = reached(), threading.Event()

    @app.queue("q").consumer(lease=0.6)
    async def handle(message):
        record.enter(message)
        inside.come()
        await until(opened)
        record.leave(message, done=True)

    ids = put(db, ["a", "b", "c"])
    start()
    inside.wait()
    db.take_away(ids[1])
    clock.renewed(ids[2])  # in one call with the one that was lost: so that was seen
    opened.set()
    wait_for(lambda: db.history(ids[0]) and db.message(ids[2]).claim_token is None)
    assert record.tried["g"] == ["a"]


def test_handlers_that_acknowledge_in_their_own_transaction_keep_the_order(app, db, start, wait_for, record):
    @app.queue("q").consumer()
    async def handle(message):
        record.enter(message)
        async with message.transaction() as tx:
            await tx.execute("select 1")
        record.leave(message, done=True)

    put(db, range(10))
    start()
    wait_for(lambda: len(record.done["g"]) == 10)
    assert record.done["g"] == list(range(10))


@pytest.mark.parametrize("transport", ["tap", "poll"])
def test_a_busy_group_is_never_left_to_the_sweep(app, db, start, wait_for, record, transport):
    """Each is enqueued while another of the group is claimed, handled or acknowledged; and nobody sweeps."""

    @app.queue("q").consumer()
    async def handle(message):
        record.enter(message)
        await asyncio.sleep(random.random() / 200)
        record.leave(message, done=True)

    start(name="w1", transport=transport, sweep=False)
    start(name="w2", transport=transport, sweep=False)
    for n in range(150):
        put(db, [n])
    wait_for(lambda: db.live() == 0)
    assert record.together == []
    assert record.done["g"] == list(range(150))


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_own_transactions_of_some_messages_leave_no_group_behind(app, db, start, wait_for, record, kind):
    """Their commits meet the acks that the worker writes for the others, and nobody sweeps."""

    async def in_the_loop(message):
        record.enter(message)
        if message.payload % 2:
            async with message.transaction() as tx:
                await tx.execute("select 1")
                record.leave(message, done=True)  # with the commit the next may start
        else:
            record.leave(message, done=True)

    def in_a_thread(message):
        record.enter(message)
        if message.payload % 2:
            with message.transaction() as tx:
                tx.execute("select 1")
                record.leave(message, done=True)
        else:
            record.leave(message, done=True)

    app.queue("q").consumer(name="handler")(in_the_loop if kind == "async" else in_a_thread)
    for group in range(10):
        db.put_many(range(30), group_key=f"g{group}")
    start(name="w1", sweep=False)
    start(name="w2", sweep=False)
    wait_for(lambda: db.live() == 0)
    assert record.together == []
    assert all(done == list(range(30)) for done in record.done.values())


def test_a_sync_handler_that_hangs_past_its_timeout_does_not_keep_its_group(
    app, db, clock, start, wait_for, reached, record
):
    inside, release = reached(), threading.Event()

    @app.queue("q").consumer(name="handler", lease=0.6, timeout=0.3, max_attempts=1)
    def handle(message):
        record.enter(message)
        if message.payload == "a1":
            inside.come()
            release.wait(20)
        record.leave(message, done=True)

    first, *_ = put(db, ["a1", "a2", "a3"])
    running = start(sweep=False)
    inside.wait()
    try:
        clock.leases_end(lambda: db.dead(first), lease=0.6)
        wait_for(lambda: record.done["g"] == ["a2", "a3"])
        held = running.worker._parts.slots
        wait_for(lambda: not any(slot.holds(time.monotonic()) for slot in held.all()), what="the worker's own clock")
    finally:
        release.set()
    wait_for(lambda: "a1" in record.done["g"])
    running.stop()
    assert record.tried["g"] == ["a1", "a2", "a3"], "what it held behind a1 is not its own any more"


def test_no_handler_sees_the_context_of_the_one_before_it(app, db, start, wait_for):
    mark = contextvars.ContextVar("mark", default=None)
    seen = []

    @app.queue("q").consumer()
    async def handle(message):
        seen.append(mark.get())
        mark.set(message.payload)

    put(db, ["a1", "a2", "a3"])
    start()
    wait_for(lambda: len(seen) == 3)
    assert seen == [None] * 3
