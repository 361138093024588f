"""A durable server that may be killed, worker processes that are, and the ledger that must balance afterwards."""

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import namedtuple_row

import postrow
from postrow import migrate
from postrow.embedded import Server

SHOP = Path(__file__).with_name("shop.py")
TENANTS = ("acme", "beta", "default")


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.crash)


@pytest.fixture(scope="session")
def durable_server():
    """A server of these tests' own that keeps what it has committed."""
    folder = os.environ.get("POSTROW_TEST_BIN")
    options = {"bin_dir": Path(folder) if folder else None, "settings": {"max_connections": "250"}}
    with tempfile.TemporaryDirectory(prefix="postrow-crash-") as home, Server(_reachable(home), **options) as running:
        with psycopg.connect(running.dsn(), autocommit=True) as conn:
            conn.execute("create database crash_template")
        migrate.apply(running.dsn("crash_template"))
        with psycopg.connect(running.dsn("crash_template"), autocommit=True) as conn:
            if mutation := os.environ.get("POSTROW_TEST_MUTATION"):  # as in tests/conftest.py
                conn.execute(Path(mutation).read_text(encoding="utf-8"))
            conn.execute("create table orders (n bigserial primary key, tenant text, message uuid)")
            conn.execute(
                "create table ran (message uuid, tenant text, attempt int, worker text, token uuid, "
                "started timestamptz default clock_timestamp(), ended timestamptz)"
            )
            conn.execute("create index on ran (message)")
            conn.execute("create table effect (message uuid, worker text)")
        yield running


def _reachable(home):
    """A folder for the data that the server's own user reaches too, and that a stop of the server leaves."""
    Path(home).chmod(0o755)
    return Path(home) / "data"


class Database:
    """What a test asks the database; connects again after a crash."""

    def __init__(self, server, name):
        self.server = server
        self.name = name
        self.dsn = server.dsn(name)
        self._conn = None

    def rows(self, statement, params=None):
        """Once more, on a new connection, where the crash or the test itself has cut this one."""
        try:
            return self._rows(statement, params)
        except psycopg.OperationalError:
            self._conn = None
            return self._rows(statement, params)

    def _rows(self, statement, params):
        if self._conn is None:
            self._conn = psycopg.connect(self.dsn, autocommit=True, row_factory=namedtuple_row)
        cursor = self._conn.execute(statement, params)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement, params=None):
        (row,) = self.rows(statement, params)
        return row[0]

    def message(self, id_):
        found = self.rows("select * from postrow.message where id = %s", [id_])
        return found[0] if found else None

    def put(self, payload, **options):
        with psycopg.connect(self.dsn) as conn:
            return postrow.enqueue(conn, options.pop("queue", "orders"), payload, **options).id

    def close(self):
        if self._conn is not None:
            self._conn.close()


@pytest.fixture
def db(durable_server):
    name = f"crash_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(durable_server.dsn(), autocommit=True) as conn:
        conn.execute(f"create database {name} template crash_template")
    it = Database(durable_server, name)
    yield it
    it.close()
    with psycopg.connect(durable_server.dsn(), autocommit=True) as conn:
        conn.execute(f"drop database {name} with (force)")


@pytest.fixture
def lock_of(db):
    """Holds up the handlers of messages with `held`, at this attempt: close it, and they go on."""
    made = []

    def hold(attempt):
        made.append(psycopg.connect(db.dsn, autocommit=True))
        made[-1].execute("select pg_advisory_lock(%s)", [attempt])
        return made[-1]

    yield hold
    for conn in made:
        conn.close()


class Fleet:
    """Worker processes. One that dies is started again while `supervise` runs."""

    def __init__(self, dsn, logs):
        self.dsn = dsn
        self._logs = logs
        self._started = 0
        self._processes = {}
        self._options = {}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._supervisor = None
        self.restarts = 0

    def start(self, name="w1", **options):
        with self._lock:
            self._options[name] = options
            self._launch(name)

    def _launch(self, name):
        self._started += 1
        with (self._logs / f"{self._started}-{name}.log").open("wb") as out:
            self._processes[name] = subprocess.Popen(
                [sys.executable, SHOP, self.dsn, json.dumps({"name": name, **self._options[name]})],
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def send(self, name, number):
        with self._lock:
            self._processes[name].send_signal(number)

    def kill(self, name):
        """kill -9; it is gone when this returns."""
        with self._lock:
            self._processes[name].kill()
            self._processes[name].wait(10)

    def alive(self, name):
        return self._processes[name].poll() is None

    def supervise(self):
        """Start again what has died, from now on."""
        self._supervisor = threading.Thread(target=self._restart, daemon=True)
        self._supervisor.start()

    def _restart(self):
        while not self._ending.wait(0.02):
            with self._lock:
                for name, process in self._processes.items():
                    if process.poll() is not None:
                        self.restarts += 1
                        self._launch(name)

    @property
    def said(self):
        return "".join(log.read_text(encoding="utf-8", errors="replace") for log in sorted(self._logs.glob("*.log")))

    def close(self):
        self._ending.set()
        if self._supervisor is not None:
            self._supervisor.join(10)
        for process in self._processes.values():
            process.kill()
            process.wait(10)


@pytest.fixture
def fleet(db, tmp_path):
    it = Fleet(db.dsn, tmp_path)
    yield it
    it.close()


class Producers:
    """Threads that insert an order and enqueue its message in one transaction, and often roll back."""

    def __init__(self, dsn, count=6):
        self._dsn = dsn
        self._ending = threading.Event()
        self.committed = 0  # that were answered: those whose answer was lost are in the ledger or are not
        self.rolled_back = 0
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._produce, args=[n], daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def _produce(self, n):
        dice = random.Random(n)
        while not self._ending.is_set():
            try:
                with psycopg.connect(self._dsn, connect_timeout=5) as conn:
                    while not self._ending.is_set():
                        self._order(conn, dice)
            except psycopg.Error:
                self._ending.wait(0.1)

    def _order(self, conn, dice):
        tenant = dice.choice(TENANTS)
        number, _ = conn.execute("insert into orders (tenant) values (%s) returning n, tenant", [tenant]).fetchone()
        options = {"priority": dice.choice((0, 0, 0, 5))}
        if dice.random() < 0.1:
            options["delay"] = 0.3
        payload = {"order": number, "fails_until": dice.choice((0,) * 9 + (1,))}
        sent = postrow.enqueue(conn, "orders", payload, tenant=tenant, subject=f"order:{number}", **options)
        conn.execute("update orders set message = %s where n = %s", [sent.id, number])
        if dice.random() < 0.3:
            self._ending.wait(dice.uniform(0.7, 1.2))  # newer messages pass while this transaction is open
        else:
            time.sleep(dice.uniform(0, 0.02))
        if dice.random() < 0.2:
            conn.rollback()
            with self._lock:
                self.rolled_back += 1
        else:
            conn.commit()
            with self._lock:
                self.committed += 1

    def end(self):
        self._ending.set()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()


class StaleProber(threading.Thread):
    """Presents every token that has been succeeded by another, while all goes on; none may be accepted."""

    def __init__(self, dsn):
        super().__init__(daemon=True)
        self._dsn = dsn
        self._ending = threading.Event()
        self.presented = 0
        self.accepted = []
        self.start()

    def run(self):
        while not self._ending.wait(0.05):
            try:
                with psycopg.connect(self._dsn, autocommit=True, connect_timeout=5) as conn:
                    while not self._ending.wait(0.05):
                        self._probe(conn)
            except psycopg.Error:
                continue

    def _probe(self, conn):
        # the message is claimed now under a later token than the one of this run
        old = conn.execute(
            "select r.tenant, r.message, r.token from ran r join postrow.message m "
            "on m.tenant = r.tenant and m.id = r.message "
            "where m.claim_token is not null and m.claim_token <> r.token and m.attempt > r.attempt limit 50"
        ).fetchall()
        for function in ("ack", "release", "extend"):
            for tenant, message, token in old:
                more = ", lease => '1 s'" if function == "extend" else ""
                ((outcome,),) = conn.execute(
                    f"select outcome from postrow.{function}(array[%s], array[%s]::uuid[], array[%s]::uuid[]{more})",
                    [tenant, message, token],
                ).fetchall()
                self.presented += 1
                if outcome not in {"stale", "unknown"}:
                    self.accepted.append((function, message, outcome))

    def end(self):
        self._ending.set()
        self.join(20)


class Ledger:
    """Orders go in with producers, workers handle them, something terrible happens, and then it must balance."""

    def __init__(self, db, wait_for):
        self.db = db
        self._wait_for = wait_for
        self.producers = Producers(db.dsn)
        self.prober = StaleProber(db.dsn)

    def wait_for_work(self, more=20):
        """Until so many more messages have been settled: the disaster shall meet a running system."""
        before = self._settled()
        self._wait_for(lambda: self._settled() >= before + more, what="the workers to settle messages", deadline=30)

    def _settled(self):
        try:
            return self.db.value("select count(*) from postrow.history")
        except psycopg.OperationalError:
            return 0

    def close(self):
        self.producers.end()
        self.prober.end()

    def balances(self):
        """Every committed message is settled once; what was rolled back never ran; no stale token was accepted."""
        self.producers.end()
        db = self.db
        self._wait_for(
            lambda: db.value("select count(*) from postrow.message") == 0,
            what="all messages to be settled",
            deadline=45,
        )
        self.prober.end()
        assert self.prober.accepted == []
        orders = db.value("select count(*) from orders")
        assert orders >= self.producers.committed > 20
        assert self.producers.rolled_back > 3
        lost = db.rows(
            "select n from orders o where (select count(*) from postrow.history h "
            "where h.id = o.message and h.tenant = o.tenant and h.outcome = 'done') <> 1"
        )
        assert lost == []
        assert db.value("select count(*) from postrow.history") == orders
        assert db.value("select count(*) from postrow.dead_letter") == 0
        phantom = db.rows("select message from ran where message not in (select message from orders)")
        assert phantom == []
        # what history says of the last attempt is a run that ended: no other's outcome was taken for it
        wrong = db.rows(
            "select h.id, h.attempt, h.claimed_by from postrow.history h where not exists (select from ran r "
            "where r.message = h.id and r.attempt = h.attempt and r.worker = h.claimed_by and r.ended is not null)"
        )
        assert wrong == []


@pytest.fixture
def ledger(db, wait_for):
    it = Ledger(db, wait_for)
    yield it
    it.close()
