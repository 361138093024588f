# ruff: noqa: F811  # parameters that are called as the fixtures imported here
"""One private server a test process; isolation by rollback where it is true, by a database where it is not."""

import os
import signal
import threading
import time
import uuid
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from clock import Clock
from pgbouncer import (  # noqa: F401  # fixtures, and a hook
    POOLED,
    _pooler,
    bouncer,
    direct,
    forget_sessions,
    pytest_collection_modifyitems,
    way,
)
from psycopg.pq import TransactionStatus
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from postrow import migrate
from postrow.embedded import Server

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell: programs that are tested would
    signal.signal(signal.SIGINT, signal.default_int_handler)  # inherit it, and Ctrl-C would not end them

PREPARE = None if POOLED else 5  # after how many times psycopg prepares a statement; 5 is its default
DEADLINE = 20.0  # seconds: how long a test waits for a thing that should come at once on an idle machine


def wait_for(condition, *, what="the condition", deadline=DEADLINE):
    """Look again and again until `condition()` is true, and give what it gave."""
    end = time.monotonic() + deadline
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            pytest.fail(f"waited {deadline} s for {what}")
        time.sleep(0.005)


@pytest.fixture(name="wait_for")
def _wait_for():
    return wait_for


@pytest.fixture(scope="session")
def server():
    """A private Postgres: the embedded one, or the binaries in POSTROW_TEST_BIN."""
    folder = os.environ.get("POSTROW_TEST_BIN")
    settings = {"max_prepared_transactions": "5", "postrow.aging": "off"}  # for two-phase commit; for a strict order
    with Server(bin_dir=Path(folder) if folder else None, durable=False, settings=settings) as running:
        yield running


@pytest.fixture(scope="session")
def template(server):
    """The name of a database that is migrated and never written to."""
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute("create database postrow_template")
    migrate.apply(server.dsn("postrow_template"))
    if mutation := os.environ.get("POSTROW_TEST_MUTATION"):  # a file of SQL by which tests/mutation takes a fence out
        with psycopg.connect(server.dsn("postrow_template"), autocommit=True) as conn:
            conn.execute(Path(mutation).read_text(encoding="utf-8"))
    return "postrow_template"


@contextmanager
def _database(server, template, way):
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(f"create database {name} template {template}")
    yield way(name)
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(f"drop database {name} with (force)")


@pytest.fixture
def database(server, template, way):
    """The DSN of a migrated database of this test's own: for LISTEN, DDL, crash and migration tests."""
    with _database(server, template, way) as dsn:
        yield dsn


@pytest.fixture
def empty_database(server, way):
    """The DSN of a database without a schema of ours."""
    with _database(server, "template0", way) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def shared_dsn(server, template, way):
    """The DSN of a database that tests share: they roll back, or use `committed`, which cleans up."""
    with _database(server, template, way) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def _conn(shared_dsn):
    with psycopg.connect(shared_dsn) as conn:
        yield conn


@pytest.fixture
def conn(_conn):
    """A connection in a transaction that is rolled back at the end; search_path is empty."""
    _conn.execute("set local search_path = ''")
    yield _conn
    _conn.rollback()


@pytest.fixture(scope="session")
def emptied():
    """Deletes, on a connection in autocommit mode, what a test has left in our tables."""

    def empty(conn):
        for table in (
            *("message", "history", "dead_letter", "seen", "consumer", "worker"),
            *("subscription", "pause", "schedule", "bucket"),
        ):
            conn.execute(f"delete from postrow.{table}")

    return empty


@pytest.fixture
def committed(shared_dsn, emptied):
    """The shared DSN, for tests whose commits must be seen; what they left is deleted at the end."""
    yield shared_dsn
    with psycopg.connect(shared_dsn, autocommit=True) as conn:
        emptied(conn)


@pytest.fixture
def clock(conn):
    """A clock that stands still, in the transaction of `conn`."""
    return Clock(conn)


@pytest.fixture
def own_clock(database):
    """A clock that stands still, in every session of a database of this test's own."""
    with psycopg.connect(database, autocommit=True) as conn:
        yield Clock(conn)


class Session:
    """A named database session on a thread of its own, so that one can wait while another goes on."""

    def __init__(self, dsn, name):
        self.name = name
        self.conn = psycopg.connect(dsn, autocommit=True, application_name=name)
        if not POOLED:  # there it would be set for others, too
            self.conn.execute("set search_path = ''")
        self.pid = self.conn.info.backend_pid
        self._monitor = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)

    def run(self, statement, params=None):
        """Run a statement and give its rows."""
        cursor = self.conn.execute(statement, params)
        return cursor.fetchall() if cursor.description else []

    def start(self, statement, params=None):
        """Begin a statement that may wait; `result()` of what comes back joins it."""
        return _Running(self, statement, params)

    def blocked(self):
        """Whether this session waits for a lock now."""
        which, value = ("application_name", self.name) if POOLED else ("pid", self.pid)  # a pooler makes up a pid
        row = self._monitor.execute(
            "select bool_or(wait_event_type = 'Lock') from pg_stat_activity "
            f"where {which} = %s and datname = current_database()",
            [value],
        ).fetchone()
        return bool(row and row[0])

    def close(self):
        self.conn.close()
        self._monitor.close()


class _Running:
    def __init__(self, session, statement, params):
        self.session = session
        self._outcome = None

        def work():
            try:
                self._outcome = (session.run(statement, params), None)
            except psycopg.Error as error:
                self._outcome = (None, error)

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    @property
    def done(self):
        return not self._thread.is_alive()

    def wait_until_blocked(self):
        wait_for(lambda: self.done or self.session.blocked(), what="the session to wait for a lock")
        assert not self.done, f"the statement did not wait: {self._outcome}"
        return self

    def result(self):
        self._thread.join(DEADLINE)
        assert self.done, "the statement did not end"
        rows, error = self._outcome
        if error is not None:
            raise error
        return rows


@pytest.fixture
def sessions(committed, forget_sessions):
    """Makes named sessions on the shared database: sessions('w1')."""
    forget_sessions(committed)
    made = []

    def make(name):
        made.append(Session(committed, name))
        return made[-1]

    yield make
    for session in made:
        session.close()


def call(function, **arguments):
    """The statement that calls a function of ours with named arguments, and its parameters."""
    named = ", ".join(f'"{name}" => %({name})s' for name in arguments)
    wrapped = {
        name: Jsonb(value) if name in {"payload", "messages", "headers"} and value is not None else value
        for name, value in arguments.items()
    }
    return f"select * from postrow.{function}({named})", wrapped


class Functions:
    """The SQL functions on one connection, with the few steps that most tests of them share."""

    def __init__(self, conn):
        self.conn = conn
        conn.prepare_threshold = PREPARE

    def query(self, statement, params=None):
        """The rows of a statement, as named tuples."""
        with self.conn.cursor(row_factory=namedtuple_row) as cursor:
            cursor.execute(statement, params)
            return cursor.fetchall() if cursor.description else []

    def rows(self, function, **arguments):
        """The rows that a function gives."""
        return self.query(*call(function, **arguments))

    def row(self, function, **arguments):
        """The one row that a function gives."""
        (row,) = self.rows(function, **arguments)
        return row

    def value(self, function, **arguments):
        """The first column of the one row that a function gives."""
        return self.row(function, **arguments)[0]

    def refused(self, function, **arguments):
        """The error of a call that must fail; the transaction goes on."""
        with pytest.raises(psycopg.Error) as caught, self.conn.transaction():
            self.rows(function, **arguments)
        return caught.value

    def sqlstate(self, function, **arguments):
        """The SQLSTATE of a call: 00000 when it succeeds. The transaction goes on."""
        try:
            with self.conn.transaction():
                self.rows(function, **arguments)
        except psycopg.Error as error:
            return error.sqlstate
        return "00000"

    def put(self, queue="q", payload=1, **options):
        """Enqueue one message and give its id."""
        return self.row("enqueue", queue=queue, payload=payload, **options).id

    def take(self, limit=1, queue="q", **options):
        """Claim messages and give them."""
        return self.rows("claim", queue=queue, limit=limit, **options)

    def settle(self, function, claimed, **options):
        """Call ack, fail, release, bury or extend for claimed rows; the outcomes, in their order."""
        found = self.rows(
            function,
            tenants=[row.tenant for row in claimed],
            ids=[row.id for row in claimed],
            tokens=[row.claim_token for row in claimed],
            **options,
        )
        assert len(found) == len(claimed)
        outcomes = {(row.tenant, row.id): row.outcome for row in found}
        return [outcomes[row.tenant, row.id] for row in claimed]

    def find(self, table, message_id):
        """The row of `table` with this id, or None."""
        found = self.query(f"select * from postrow.{table} where id = %s", [message_id])
        assert len(found) <= 1
        return found[0] if found else None

    def expire(self, message_id, *, ago=1.0):
        """End the lease of a claimed message `ago` seconds back, as if its worker had died."""
        self.query(
            "update postrow.message set available_at = postrow.clock() - %s where id = %s",
            [timedelta(seconds=ago), message_id],
        )


@pytest.fixture
def pg(conn):
    """The SQL functions, in a transaction that is rolled back."""
    return Functions(conn)


class Actor(Functions):
    """A named session of a race: like `pg`, committing unless it began a transaction, and able to wait."""

    def __init__(self, session):
        super().__init__(session.conn)
        self.session = session
        self._impatient = False
        session.conn.row_factory = namedtuple_row

    def query(self, statement, params=None):
        if not self._impatient or statement.split()[0] in {"begin", "commit", "rollback"}:
            return super().query(statement, params)
        # not for the session: through a pooler that is another's, too
        alone = self.conn.info.transaction_status == TransactionStatus.IDLE
        with self.conn.transaction() if alone else nullcontext():
            super().query("set local lock_timeout = '100ms'")
            return super().query(statement, params)

    def begin(self, mode=""):
        self.query(f"begin {mode}")

    def commit(self):
        self.query("commit")

    def rollback(self):
        self.query("rollback")

    def start(self, function, **arguments):
        """Begin a call that may wait for a lock."""
        return self.session.start(*call(function, **arguments))

    def start_settle(self, function, claimed, **options):
        """Begin a settlement that may wait; its result is the function's rows."""
        return self.start(
            function,
            tenants=[row.tenant for row in claimed],
            ids=[row.id for row in claimed],
            tokens=[row.claim_token for row in claimed],
            **options,
        )

    def impatient(self):
        """From now on a statement of this session fails if it waits for a lock."""
        self._impatient = True
        return self


@pytest.fixture
def actors(sessions):
    """Makes named sessions with the SQL functions on them: actors('w1')."""
    return lambda name: Actor(sessions(name))


@pytest.fixture
def own_actors(database, direct):
    """As `actors`, on a database of this test's own; `listens`: by no pooler, since LISTEN hears nothing there."""
    made = []

    def make(name, *, listens=False):
        made.append(Session(direct(database) if listens else database, name))
        return Actor(made[-1])

    yield make
    for session in made:
        session.close()


@pytest.fixture
def functions_on():
    """Puts the SQL functions on a connection of the test's own."""
    return Functions
