"""How a worker ends: stop(), and what it leaves behind. Signals are in test_signals."""

import asyncio
import gc
import os
import threading
import time

import psycopg
import pytest


def sockets():
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def ours():
    """The threads that a worker has made."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("postrow", "asyncio"))]


def test_a_worker_starts_and_stops_five_times_and_leaves_nothing_behind(app, db, start, wait_for, lines):
    seen = []

    @app.queue("a").consumer()
    async def in_the_loop(message):
        seen.append(message.payload)

    @app.queue("b").consumer()
    def in_a_thread(message):
        seen.append(message.payload)

    from postrow.worker import Worker

    worker = Worker(app, name="w1", poll_interval=0.2)
    before = sockets()
    gc.disable()  # what only the collector would close stays open
    try:
        for n in range(5):
            thread = threading.Thread(target=worker.run)
            thread.start()
            db.put("a", n)
            db.put("b", n)
            wait_for(lambda n=n: db.done() == 2 * n + 2)
            worker.stop()
            thread.join(20)
            assert not thread.is_alive()
            wait_for(lambda: not ours(), what="the worker's threads to end")
            assert sockets() <= before
    finally:
        gc.enable()
    assert sorted(seen) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert db.rows("select 1 from postrow.worker") == []
    assert lines("", level=30) == []


def test_a_stop_at_any_moment_of_the_start_leaves_nothing_behind(app, db, start, wait_for):
    @app.queue("q").consumer()
    async def handle(_message):
        pass

    before = sockets()
    gc.disable()
    try:
        for n in range(12):
            running = start()
            time.sleep(0.004 * n)  # a moment of the start, not a wait for something
            assert running.stop() < 5
            assert sockets() <= before
    finally:
        gc.enable()
    wait_for(lambda: not ours())


def test_stop_before_run_lets_it_return_at_once_and_the_next_run_works(app, db, wait_for):
    from postrow.worker import Worker

    @app.queue("q").consumer()
    async def handle(_message):
        pass

    worker = Worker(app)
    worker.stop()
    assert worker.run() == 0
    thread = threading.Thread(target=worker.run)
    thread.start()
    id_ = db.put()
    wait_for(lambda: db.history(id_))
    worker.stop()
    thread.join(20)


async def test_serve_runs_in_a_loop_of_the_callers_and_leaves_no_task(app, db, wait_for):
    from postrow.worker import Worker

    @app.queue("q").consumer()
    async def handle(_message):
        pass

    worker = Worker(app)
    id_ = db.put()
    for _ in range(2):
        task = asyncio.create_task(worker.serve())
        await asyncio.to_thread(wait_for, lambda: db.history(id_))
        worker.stop()
        assert await task == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
        id_ = db.put()


def test_running_handlers_may_finish_and_nothing_more_is_claimed(app, db, start, wait_for):
    inside, may_end, seen = threading.Semaphore(0), threading.Event(), []

    @app.queue("q").consumer(concurrency=2)
    async def handle(message):
        seen.append(message.payload)
        inside.release()
        while not may_end.is_set():
            await asyncio.sleep(0.005)

    db.put_many(range(5))
    running = start(grace=20)
    for _ in range(2):
        assert inside.acquire(timeout=20)
    running.worker.stop()
    wait_for(lambda: not db.backends("claimer"))
    may_end.set()
    running.stop()
    assert len(seen) == 2
    assert db.done() == 2
    assert db.value("select count(*) from postrow.message where attempt = 0 and claim_token is null") == 3


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_after_the_grace_a_running_message_is_given_back_with_its_attempt(app, db, start, wait_for, lines, kind):
    inside, may_end = threading.Event(), threading.Event()
    if kind == "async":

        @app.queue("q").consumer(lease=60)
        async def handle(_message):
            inside.set()
            while not may_end.is_set():
                await asyncio.sleep(0.01)

    else:

        @app.queue("q").consumer(lease=60)
        def handle(_message):
            inside.set()
            may_end.wait(20)

    id_ = db.put()
    running = start(grace=0.2)
    assert inside.wait(20)
    assert running.stop() < 5
    message = db.message(id_)
    assert (message.claim_token, message.attempt, message.failures) == (None, 0, None)
    assert lines("1 handlers did not finish within the grace")
    may_end.set()
    wait_for(lambda: not ours())
    start(name="w2")
    wait_for(lambda: db.history(id_))
    assert (db.history(id_).attempt, db.history(id_).claimed_by) == (1, "w2")


def test_a_handler_that_swallows_its_cancellation_keeps_neither_the_message_nor_the_worker(
    app, db, start, wait_for, monkeypatch
):
    from postrow.worker import worker

    monkeypatch.setattr(worker, "CANCEL_BOUND", 0.2)
    inside = threading.Event()

    @app.queue("q").consumer(lease=60)
    async def stubborn(_message):
        inside.set()
        for _ in range(10):
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                pass

    id_ = db.put()
    running = start(grace=0.1)
    assert inside.wait(20)
    assert running.stop() < 10
    assert (db.message(id_).claim_token, db.message(id_).attempt) == (None, 0)


def test_a_handler_that_finishes_while_it_is_cancelled_is_done(app, db, start, wait_for):
    inside = threading.Event()

    @app.queue("q").consumer(lease=60)
    async def careful(_message):
        inside.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            pass  # it had nothing more to do

    id_ = db.put()
    running = start(grace=0.1)
    assert inside.wait(20)
    running.stop()
    assert db.history(id_).outcome == "done"


def test_heartbeats_go_on_until_the_last_handler_has_ended(app, db, start, wait_for):
    inside, may_end, starts = threading.Event(), threading.Event(), []

    @app.queue("q").consumer(lease=0.5)
    async def long(message):
        starts.append(message.payload)
        inside.set()
        while not may_end.is_set():
            await asyncio.sleep(0.01)

    id_ = db.put()
    running = start(name="w1", grace=30)
    assert inside.wait(20)
    start(name="w2")
    running.worker.stop()
    wait_for(lambda: db.value("select postrow.clock() - claimed_at > interval '1.5 s' from postrow.message"))
    may_end.set()
    running.stop()
    assert starts == [1]
    assert (db.history(id_).claimed_by, db.history(id_).attempt) == ("w1", 1)


@pytest.mark.usefixtures("impatient")
def test_a_stop_in_an_outage_ends_and_says_what_it_could_not_write(app, db, start, wait_for, lines, monkeypatch):
    from postrow.worker import worker

    monkeypatch.setattr(worker, "STOP_BOUND", 0.3)
    inside, may_end = threading.Event(), threading.Event()

    @app.queue("q").consumer(lease=60)
    async def handle(_message):
        inside.set()
        while not may_end.is_set():
            await asyncio.sleep(0.005)

    db.put()
    running = start()
    assert inside.wait(20)
    with db.away():
        may_end.set()
        assert running.stop() < 10
    assert lines("1 outcomes could not be written")


@pytest.mark.usefixtures("impatient")
def test_an_idle_worker_in_an_outage_stops_at_once(app, db, start, wait_for, lines):
    @app.queue("q").consumer()
    async def handle(_message):
        pass

    running = start()
    wait_for(lambda: db.backends("acker"))
    with db.away():
        wait_for(lambda: lines("database trouble"))
        assert running.stop() < 5
    assert lines("could not be written") == []


@pytest.mark.usefixtures("impatient")
def test_an_outage_during_the_grace_does_not_lose_the_last_outcome(app, db, start, wait_for, troubled):
    inside, may_end, starts = threading.Event(), threading.Event(), []

    @app.queue("q").consumer(lease=60)
    async def handle(message):
        starts.append(message.payload)
        inside.set()
        while not may_end.is_set():
            await asyncio.sleep(0.005)

    id_ = db.put()
    running = start(grace=20)
    assert inside.wait(20)
    running.worker.stop()
    with db.away():
        may_end.set()
        wait_for(lambda: "acker" in troubled)
    running.stop()
    assert starts == [1]
    assert db.history(id_).attempt == 1


def test_what_a_claim_took_while_the_worker_stopped_is_given_back(app, db, start, wait_for):
    """The claim waits for a lock, as a slow one would; the stop cuts it off, and no lease has to end first."""

    @app.queue("q").consumer(lease=60)
    async def handle(_message):
        pass

    running = start(poll_interval=0.05)
    wait_for(lambda: db.backends("claimer"))
    with psycopg.connect(db.dsn) as conn:
        conn.execute("lock table postrow.message in share row exclusive mode")  # readers go on, claims wait
        conn.execute("select postrow.enqueue('q', '1')")
        conn.execute("set local postrow.tap = off")
        other = psycopg.connect(db.dsn, autocommit=True)
        other.close()
        running.worker.stop()
        conn.commit()
    running.stop()
    assert db.value("select count(*) from postrow.message where claim_token is not null") == 0
