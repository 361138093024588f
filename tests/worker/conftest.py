"""A worker on a thread of the test's own process, on a database of the test's own."""

import asyncio
import logging
import threading
import time
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from clock import Clock
from pgbouncer import POOLED
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from postrow import App, Constant
from postrow.worker import Worker, connections

SOON = Constant(base=0.05, cap=0.05)  # a retry that a test can wait for


class Running:
    """A worker that runs on a thread."""

    def __init__(self, app, **options):
        if POOLED and options.get("transport") != "poll":
            options.setdefault("listen_dsn", Running.direct(app.dsn))
        options.setdefault("name", "w1")
        options.setdefault("poll_interval", 0.2)
        options.setdefault("grace", 5.0)
        self.worker = Worker(app, **options)
        self.code = None
        self.error = None
        self._thread = threading.Thread(target=self._run, name="the-worker", daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self.code = self.worker.run()
        except BaseException as error:
            self.error = error

    @property
    def ended(self):
        return not self._thread.is_alive()

    def stop(self, *, within=20.0):
        """Stop it, and wait for its end; the seconds that took."""
        began = time.monotonic()
        self.worker.stop()
        self._thread.join(within)
        assert self.ended, f"the worker did not stop within {within} s"
        if self.error is not None:
            raise self.error
        return time.monotonic() - began

    def end(self):
        """The error that it ended with by itself, or its code."""
        self._thread.join(20)
        assert self.ended, "the worker did not end"
        error, self.error = self.error, None
        return error if error is not None else self.code


class Database:
    """What tests ask the database, and do to it, on a connection of their own."""

    def __init__(self, dsn, own_dsn, admin_dsn):
        self.dsn = dsn
        self.name = conninfo_to_dict(dsn)["dbname"]
        self.conn = psycopg.connect(own_dsn, autocommit=True, row_factory=namedtuple_row, application_name="the test")
        self.admin = psycopg.connect(admin_dsn, autocommit=True)

    def rows(self, statement, params=None):
        cursor = self.conn.execute(statement, params)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement, params=None):
        (row,) = self.rows(statement, params)
        return row[0]

    def put(self, queue="q", payload=1, **options):
        """Enqueue one message, by SQL, and give its id."""
        more = "".join(f", {name} => %({name})s" for name in options)
        return self.value(
            f"select id from postrow.enqueue(%(queue)s, %(payload)s{more})",
            {"queue": queue, "payload": Jsonb(payload), **options},
        )

    def put_many(self, payloads, queue="q", **options):
        more = "".join(f", {name} => %({name})s" for name in options)
        self.rows(
            f"select count(*) from postrow.enqueue_many(%(queue)s, %(messages)s{more})",
            {"queue": queue, "messages": Jsonb([{"payload": payload} for payload in payloads]), **options},
        )

    def message(self, id_):
        found = self.rows("select * from postrow.message where id = %s", [id_])
        return found[0] if found else None

    def history(self, id_):
        found = self.rows("select * from postrow.history where id = %s", [id_])
        return found[0] if found else None

    def dead(self, id_):
        found = self.rows("select * from postrow.dead_letter where id = %s", [id_])
        return found[0] if found else None

    def lease_left(self, id_):
        """Seconds until the message's lease ends; None when nobody holds it."""
        return self.value(
            "select (select extract(epoch from available_at - postrow.clock())::float8 from postrow.message "
            "where id = %s and claim_token is not null)",
            [id_],
        )

    def take_away(self, id_):
        """What a sweep and another worker's claim do: a new token."""
        self.rows(
            "update postrow.message set claim_token = gen_random_uuid(), claimed_by = 'other' where id = %s", [id_]
        )

    def live(self):
        """How many messages are not settled."""
        return self.value("select count(*) from postrow.message")

    def done(self):
        """How many messages are in history."""
        return self.value("select count(*) from postrow.history")

    def backends(self, part=""):
        """The pids of a worker's sessions."""
        found = self.admin.execute(
            "select pid from pg_stat_activity where datname = %s and application_name like %s",
            [self.name, f"postrow {part}%"],
        )
        return [pid for (pid,) in found]

    def terminate(self, part=""):
        if POOLED and not part:  # sessions bear the name of whoever used them last
            others = "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and pid <> %s"
            self.admin.execute(others, [self.name, self.conn.info.backend_pid])
        for pid in self.backends(part):
            self.admin.execute("select pg_terminate_backend(%s)", [pid])

    @contextmanager
    def away(self):
        """The database takes no connections, and has none."""
        self.admin.execute(f"alter database {self.name} allow_connections false")
        while self.backends():  # also those that were on their way in
            self.terminate()
        try:
            yield
        finally:
            self.admin.execute(f"alter database {self.name} allow_connections true")

    @contextmanager
    def read_only(self):
        """Each session of a worker can only read, old and new ones."""
        self.admin.execute(f"alter database {self.name} set default_transaction_read_only = on")
        self.terminate()
        try:
            yield
        finally:
            self.admin.execute(f"alter database {self.name} reset default_transaction_read_only")
            if POOLED:  # which keeps the sessions that began meanwhile
                self.terminate()

    def close(self):
        self.conn.close()
        self.admin.close()


@pytest.fixture(scope="session")
def _worker_db(server, template, way):
    """One database for all of these tests of a process: making one takes longer than most of them."""
    name = "test_workers"
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(f"create database {name} template {template}")
    it = Database(way(name), server.dsn(name), server.dsn())
    yield it
    it.close()


@pytest.fixture
def db(_worker_db, emptied, forget_sessions, wait_for):
    """A database that no worker is connected to, and that is emptied at the end."""
    forget_sessions(_worker_db.dsn)
    yield _worker_db
    if not POOLED:  # a server's processes end a moment after their clients
        wait_for(lambda: not _worker_db.backends(), what="the worker's sessions to end")
    emptied(_worker_db.conn)
    _worker_db.rows("reset all")


class WorkersClock(Clock):
    """The clock of the workers' database, and what they do as it moves."""

    def __init__(self, db, wait_for):
        super().__init__(db.conn)
        self._db = db
        self._wait_for = wait_for

    def sweep(self):
        """As a worker does, at this moment and not in a second: start those of the test with sweep=False."""
        self._db.rows("select 1 from postrow.sweep('leases')")

    def renewed(self, id_):
        """The heartbeat has renewed this message's lease, and has heard so: it asks again when it has the answer."""
        for _ in range(2):
            self.advance(0.01)
            until = self._db.message(id_).available_at
            self._wait_for(lambda until=until: self._db.message(id_).available_at > until, what="a renewal")

    def leases_pass(self, leases, *, lease, held):
        """Let so many leases pass and sweep, while the heartbeat renews what is held, so many messages."""
        renewed = (
            "select count(*) from postrow.message "
            "where claim_token is not null and available_at >= postrow.clock() + %s"
        )
        step = 0.75 * lease
        for _ in range(round(leases * lease / step)):
            self.advance(step)
            self.sweep()
            self._wait_for(lambda: self._db.value(renewed, [timedelta(seconds=lease)]) == held, what="the renewals")

    def leases_end(self, swept, *, lease):
        """Let leases end and sweep until `swept()`: a heartbeat that still renews may come before the sweep."""

        def again():
            if swept():
                return True
            self.advance(lease)
            self.sweep()
            return False

        self._wait_for(again, what="the sweep")


@pytest.fixture
def clock(db, wait_for):
    """The database's clock, which stands still; begin it before the workers."""
    it = WorkersClock(db, wait_for)
    yield it
    it.run_again()


@pytest.fixture
def app(db):
    it = App(db.dsn)
    yield it
    it.close()


@pytest.fixture
def seen(app):
    """When the handler of queue q had each payload, by time.monotonic()."""
    times = {}

    @app.queue("q").consumer(concurrency=50)
    async def handle(message):
        times[message.payload] = time.monotonic()

    return times


@pytest.fixture
def start_on(direct):
    """Starts workers of an app on threads; each is stopped at the end, and has ended then without an error."""
    started = []
    Running.direct = staticmethod(direct)

    def begin(app, **options):
        started.append(Running(app, **options))
        return started[-1]

    yield begin
    for running in started:
        running.worker.stop()
    for running in started:
        running.stop()


@pytest.fixture
def start(app, db, start_on):
    """Starts workers of `app`."""
    return lambda **options: start_on(app, **options)


@pytest.fixture
def lines(caplog):
    """The worker's log: a function that gives the messages with a text in them."""
    caplog.set_level(logging.INFO, "postrow.worker")

    def having(text, *, level=logging.INFO):
        # a copy: the worker's threads write while this reads
        records = [r for r in list(caplog.records) if r.name.startswith("postrow") and r.levelno >= level]
        return [r.getMessage() for r in records if text in r.getMessage()]

    return having


@pytest.fixture
def impatient(monkeypatch):
    """Back-off that a test can wait for."""
    monkeypatch.setattr(connections.Backoff, "pause", lambda _self: 0.05)


@pytest.fixture
def troubled(monkeypatch):
    """The parts that could not reach the database so far."""
    parts = set()
    original = connections.Weather.failed

    def failed(self, part, error):
        original(self, part, error)
        parts.add(part)

    monkeypatch.setattr(connections.Weather, "failed", failed)
    return parts


class Reached:
    """A point that a handler comes to, with what it has to show."""

    def __init__(self):
        self._event = threading.Event()
        self._value = None

    def come(self, value=None):
        self._value = value
        self._event.set()

    def wait(self):
        assert self._event.wait(20), "the handler did not come so far"
        return self._value


@pytest.fixture
def reached():
    """Makes points that handlers come to."""
    return Reached


@pytest.fixture
def sessions_on():
    """Makes sessions in a transaction, on a DSN; closed at the end."""
    made = []

    def connect(dsn):
        made.append(psycopg.connect(dsn))
        return made[-1]

    yield connect
    for conn in made:
        conn.close()


@pytest.fixture
def until():
    """Waits for a threading.Event of the test, in an async handler."""

    async def until(event):
        while not event.is_set():  # noqa: ASYNC110  # a thread sets it
            await asyncio.sleep(0.005)

    return until


@pytest.fixture
def soon():
    return SOON
