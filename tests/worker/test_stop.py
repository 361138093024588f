"""How a worker ends: stop(), and what it leaves behind. Signals are in test_signals."""

import asyncio
import contextlib
import gc
import threading
import time
from pathlib import Path

import psycopg
import pytest
from pgbouncer import POOLED

pytestmark = pytest.mark.slow


def sockets():
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one by which the folder is read
            found.add(str(link.readlink()))
    return {target for target in found if target.startswith("socket:")}


def ours():
    """The threads that a worker has made."""
    names = [thread.name for thread in threading.enumerate()]
    return [n for n in names if n.startswith(("postrow-handler", "postrow-heartbeat", "postrow-health", "asyncio"))]


def test_a_worker_starts_and_stops_five_times_and_leaves_nothing_behind(app, db, direct, wait_for, lines):
    seen = []

    @app.queue("a").consumer()
    async def in_the_loop(message):
        seen.append(message.payload)

    @app.queue("b").consumer()
    def in_a_thread(message):
        seen.append(message.payload)

    from postrow.worker import Worker

    worker = Worker(app, name="w1", poll_interval=0.2, listen_dsn=direct(db.dsn) if POOLED else None)
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
        await asyncio.to_thread(wait_for, lambda id_=id_: db.history(id_))
        worker.stop()
        assert await task == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
        id_ = db.put()


async def test_a_serve_that_is_cancelled_gives_back_what_runs_and_leaves_no_task(app, db, wait_for):
    from postrow.worker import Worker

    inside = threading.Event()

    @app.queue("q").consumer(lease=600)
    async def handle(_message):
        inside.set()
        await asyncio.sleep(600)

    id_ = db.put()
    task = asyncio.create_task(Worker(app).serve())
    await asyncio.to_thread(wait_for, inside.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert (db.message(id_).claim_token, db.message(id_).attempt) == (None, 0)


async def test_a_serve_that_is_cancelled_while_it_waits_for_its_database_leaves_no_task(wait_for, lines):
    from postrow import App
    from postrow.worker import Worker

    app = App("postgresql://127.0.0.1:1/nowhere")

    @app.queue("q").consumer()
    async def handle(_message):
        pass

    task = asyncio.create_task(Worker(app).serve())
    await asyncio.to_thread(wait_for, lambda: lines("database trouble in start"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.session("it looks for the sessions of a worker's parts")
def test_running_handlers_may_finish_and_nothing_more_is_claimed(app, db, start, wait_for, until):
    inside, may_end, seen = threading.Semaphore(0), threading.Event(), []

    @app.queue("q").consumer(concurrency=2)
    async def handle(message):
        seen.append(message.payload)
        inside.release()
        await until(may_end)

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
def test_after_the_grace_a_running_message_is_given_back_with_its_attempt(app, db, start, wait_for, until, lines, kind):
    inside, may_end = threading.Event(), threading.Event()
    if kind == "async":

        @app.queue("q").consumer(lease=60)
        async def handle(_message):
            inside.set()
            await until(may_end)

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
    from postrow.worker import parts

    monkeypatch.setattr(parts, "CANCEL_BOUND", 0.2)
    inside = threading.Event()

    @app.queue("q").consumer(lease=60)
    async def stubborn(_message):
        inside.set()
        for _ in range(10):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(30)

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
        with contextlib.suppress(asyncio.CancelledError):  # it had nothing more to do
            await asyncio.sleep(30)

    id_ = db.put()
    running = start(grace=0.1)
    assert inside.wait(20)
    running.stop()
    assert db.history(id_).outcome == "done"


def test_heartbeats_go_on_until_the_last_handler_has_ended(app, db, clock, start, until):
    inside, may_end, starts = threading.Event(), threading.Event(), []

    @app.queue("q").consumer(lease=0.5)
    async def long(message):
        starts.append(message.payload)
        inside.set()
        await until(may_end)

    id_ = db.put()
    running = start(name="w1", grace=30, sweep=False)
    assert inside.wait(20)
    start(name="w2", sweep=False)
    running.worker.stop()
    clock.leases_pass(3, lease=0.5, held=1)
    may_end.set()
    running.stop()
    assert starts == [1]
    assert (db.history(id_).claimed_by, db.history(id_).attempt) == ("w1", 1)


@pytest.mark.session("it looks for the sessions of a worker's parts")
@pytest.mark.usefixtures("impatient")
def test_a_stop_in_an_outage_ends_and_says_what_it_could_not_write(app, db, start, wait_for, until, lines, monkeypatch):
    from postrow.worker import parts

    monkeypatch.setattr(parts, "STOP_BOUND", 0.3)
    inside, may_end = threading.Event(), threading.Event()

    @app.queue("q").consumer(lease=60)
    async def handle(_message):
        inside.set()
        await until(may_end)

    db.put()
    running = start()
    assert inside.wait(20)
    wait_for(lambda: db.backends("acker"))
    with db.away():
        may_end.set()
        assert running.stop() < 10
    assert lines("1 outcomes could not be written")


@pytest.mark.session("PgBouncer lets statements wait in an outage")
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
def test_an_outage_during_the_grace_does_not_lose_the_last_outcome(app, db, start, wait_for, until, troubled):
    inside, may_end, starts = threading.Event(), threading.Event(), []

    @app.queue("q").consumer(lease=60)
    async def handle(message):
        starts.append(message.payload)
        inside.set()
        await until(may_end)

    id_ = db.put()
    running = start(grace=20)
    assert inside.wait(20)
    running.worker.stop()
    with db.away():
        may_end.set()
        if not POOLED:  # PgBouncer lets its statement wait
            wait_for(lambda: "acker" in troubled)
    running.stop()
    assert starts == [1]
    assert db.history(id_).attempt == 1


@pytest.mark.session("it looks for the sessions of a worker's parts")
def test_a_claim_that_waits_for_a_lock_does_not_hold_up_the_stop(app, db, start, wait_for, monkeypatch):
    from postrow.worker import parts

    monkeypatch.setattr(parts, "CANCEL_BOUND", 0.3)

    @app.queue("q").consumer(lease=60)
    async def handle(_message):
        pass

    id_ = db.put()
    with psycopg.connect(db.dsn) as conn:
        conn.execute("lock table postrow.message in share row exclusive mode")  # readers go on, claims wait
        running = start()
        (pid,) = wait_for(lambda: db.backends("claimer"))
        wait_for(lambda: db.value("select wait_event_type = 'Lock' from pg_stat_activity where pid = %s", [pid]))
        assert running.stop() < 10
    assert db.message(id_).claim_token is None


def test_a_claim_whose_answer_does_not_come_before_the_stop_is_given_back(app, db, start, wait_for, monkeypatch):
    from postrow.worker import claimer, parts

    monkeypatch.setattr(parts, "CANCEL_BOUND", 0.3)
    original, claimed = claimer.execute_async, threading.Event()

    async def slow(conn, op, **options):
        answer = await original(conn, op, **options)
        if "claim_lanes" in op.sql:
            claimed.set()
            try:
                await asyncio.sleep(60)
            finally:  # it is not waited for any longer: what it took may be given back at leisure
                monkeypatch.setattr(parts, "CANCEL_BOUND", 20)
        return answer

    monkeypatch.setattr(claimer, "execute_async", slow)

    @app.queue("q").consumer(lease=600)
    async def handle(_message):
        pass

    id_ = db.put()
    running = start()
    assert claimed.wait(20)
    assert running.stop() < 10
    assert (db.message(id_).claim_token, db.message(id_).attempt) == (None, 0)
