"""SIGTERM and SIGINT, sent to a worker that is a process of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pgbouncer import POOLED

pytestmark = pytest.mark.slow

SHOP = Path(__file__).with_name("shop.py")


class Process:
    """A worker in a process, started by path; what it said is in `said`."""

    def __init__(self, dsn, handler, log, **options):
        self._log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, SHOP, dsn, handler, *(f"{name}={value}" for name, value in options.items())],
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.pid = self._process.pid

    @property
    def said(self):
        return self._log.read_text(encoding="utf-8", errors="replace")

    def signal(self, number=signal.SIGTERM):
        self._process.send_signal(number)

    @property
    def running(self):
        return self._process.poll() is None

    def wait(self, within=20):
        """Its exit code, and the seconds until then."""
        began = time.monotonic()
        return self._process.wait(within), time.monotonic() - began

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait(10)


@pytest.fixture
def run(db, tmp_path, direct):
    db.rows("create table ran (payload jsonb, attempt int, event text, at timestamptz default clock_timestamp())")
    made = []

    def begin(handler, *, dsn=None, **options):
        if POOLED:
            options["listen_dsn"] = f'"{direct(db.dsn)}"'
        made.append(Process(dsn or db.dsn, handler, tmp_path / f"{len(made)}.log", **options))
        return made[-1]

    yield begin
    for process in made:
        process.close()
    db.rows("drop table ran")


@pytest.fixture
def gate(db, sessions_on):
    """Handlers of workers with until=1 wait until this session lets go of its lock."""
    session = sessions_on(db.dsn)
    session.execute("select pg_advisory_xact_lock(1)")
    return session


def events(db, event="start"):
    return db.value("select count(*) from ran where event = %s", [event])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("handler", ["async", "sync"])
def test_a_signal_lets_running_handlers_finish_and_exits_with_0(db, run, wait_for, gate, handler, number):
    db.put_many(range(5))
    worker = run(handler, until=1, slots=3)
    wait_for(lambda: events(db) == 3)
    worker.signal(number)
    wait_for(lambda: "stopping" in worker.said)
    gate.rollback()
    code, _ = worker.wait()
    assert code == 0
    assert events(db) == events(db, "end") == 3
    assert db.done() == 3
    assert db.value("select count(*) from postrow.message where attempt = 0 and claim_token is null") == 2
    assert "stopping" in worker.said
    assert "Traceback" not in worker.said


@pytest.mark.parametrize("handler", ["async", "sync", "stubborn", "to_thread"])
def test_after_the_grace_the_process_ends_and_another_starts_the_message_at_once(db, run, wait_for, handler):
    id_ = db.put()
    worker = run(handler, seconds=600, lease=600, grace=0.3)
    wait_for(lambda: events(db) == 1)
    worker.signal()
    code, seconds = worker.wait()
    assert code == 0
    assert seconds < 8
    message = db.message(id_)
    assert (message.claim_token, message.attempt, message.failures) == (None, 0, None)
    run("sync")
    wait_for(lambda: db.history(id_))
    assert db.history(id_).attempt == 1


def test_handlers_that_have_taken_all_threads_do_not_hold_up_the_end(db, run, wait_for):
    number = 40  # over what asyncio.to_thread has
    db.put_many(range(number))
    worker = run("to_thread", seconds=600, lease=600, grace=0.3, slots=number)
    wait_for(lambda: events(db) == number)
    worker.signal()
    code, seconds = worker.wait()
    assert code == 0
    assert seconds < 8
    assert db.value("select count(*) from postrow.message where claim_token is null") == number


@pytest.mark.parametrize("handler", ["async", "blocking"])
def test_a_second_signal_ends_the_process_at_once(db, run, wait_for, handler):
    id_ = db.put()
    worker = run(handler, seconds=60, lease=600, grace=60)
    wait_for(lambda: events(db) == 1)
    worker.signal(signal.SIGTERM)
    wait_for(lambda: "told to stop" in worker.said)  # two signals of one moment would be one
    worker.signal(signal.SIGINT)
    code, seconds = worker.wait()
    assert code == 128 + signal.SIGINT
    assert seconds < 2
    assert db.message(id_).claim_token is not None
    assert "ending at once" in worker.said


@pytest.mark.parametrize("moment", [0.0, 0.15, 0.3, 0.45])
def test_a_signal_during_the_start_ends_it_cleanly(db, run, wait_for, moment):
    worker = run("sync")
    time.sleep(moment)  # a moment of the start, not a wait for something
    worker.signal()
    code, seconds = worker.wait()
    assert code in {0, -signal.SIGTERM}  # before Python runs our code the signal has its own way
    assert seconds < 5
    assert "Traceback" not in worker.said


def test_a_signal_before_the_database_is_there_ends_the_wait(db, run, wait_for):
    worker = run("sync", dsn="postgresql://nobody@127.0.0.1:1/nothing")
    wait_for(lambda: "database trouble in start" in worker.said)
    worker.signal()
    code, seconds = worker.wait()
    assert (code, seconds < 3) == (0, True)


@pytest.mark.session("PgBouncer lets statements wait in an outage")
def test_a_signal_during_an_outage_ends_the_worker(db, run, wait_for):
    worker = run("sync")
    wait_for(lambda: db.backends("claimer"))
    with db.away():
        wait_for(lambda: "database trouble" in worker.said)
        worker.signal()
        code, seconds = worker.wait()
    assert (code, seconds < 5) == (0, True)


def test_a_handler_that_blocks_the_loop_is_waited_for_like_any_other(db, run, wait_for, gate, clock):
    id_ = db.put()
    worker = run("blocking", until=1, lease=0.5, grace=20)
    wait_for(lambda: events(db) == 1)
    worker.signal()
    wait_for(lambda: "told to stop" in worker.said)
    clock.leases_pass(3, lease=0.5, held=1)
    gate.rollback()
    code, _ = worker.wait()
    assert code == 0
    assert db.history(id_).attempt == 1


def test_a_worker_that_is_frozen_and_thawed_goes_on_and_harms_nobody(db, run, wait_for, gate):
    """As a laptop that slept: its lease is over, another has the message, its late outcome is refused."""
    id_ = db.put()
    first = run("sync", until=1, lease=0.5, name='"first"')
    wait_for(lambda: events(db) == 1)
    os.kill(first.pid, signal.SIGSTOP)
    second = run("sync", name='"second"')
    wait_for(lambda: db.history(id_))
    gate.rollback()
    os.kill(first.pid, signal.SIGCONT)
    wait_for(lambda: events(db, "end") == 2)
    after = [db.put(payload=n) for n in range(20)]
    wait_for(lambda: all(db.history(id_) for id_ in after))
    assert (db.history(id_).claimed_by, db.history(id_).attempt) == ("second", 2)
    for worker in (first, second):
        worker.signal()
        assert worker.wait()[0] == 0
