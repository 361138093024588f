"""A message that is committed long after it was enqueued, while tens of thousands of newer ones pass."""

import contextlib
import subprocess
import sys
import threading
import time
from pathlib import Path

import psycopg
import pytest
from pgbouncer import POOLED, PSYCOPG
from psycopg.types.json import Jsonb

pytestmark = pytest.mark.slow

SHOP = Path(__file__).with_name("shop.py")
OPEN = 30.0  # seconds
NEWER = 50_000
CHUNK = 200


@contextlib.contextmanager
def process(dsn, listen_dsn, log):
    """A worker process whose handler does nothing."""
    options = ["slots=500", "concurrency=500", *([f'listen_dsn="{listen_dsn}"'] if POOLED else [])]
    with log.open("wb") as out:
        it = subprocess.Popen([sys.executable, SHOP, dsn, "nothing", *options], stdout=out, stderr=subprocess.STDOUT)
    try:
        yield it
    finally:
        it.kill()
        it.wait(10)


class Traffic(threading.Thread):
    """Enqueues `NEWER` messages in `OPEN` seconds, evenly, and goes on so until it is told to end."""

    def __init__(self, dsn):
        super().__init__(daemon=True)
        self._dsn = dsn
        self._ending = threading.Event()
        self.sent = 0
        self.start()

    def run(self):
        chunk = Jsonb([{"payload": "newer"}] * CHUNK)
        began = time.monotonic()
        with psycopg.connect(self._dsn, autocommit=True, **PSYCOPG) as conn:
            while not self._ending.wait(max(0, began + self.sent * OPEN / NEWER - time.monotonic())):
                conn.execute("select count(*) from postrow.enqueue_many('q', %s)", [chunk])
                self.sent += CHUNK

    def end(self):
        self._ending.set()
        self.join(20)


@pytest.fixture
def traffic(db):
    it = Traffic(db.dsn)
    yield it
    it.end()


@pytest.mark.parametrize(
    ("snapshot", "bound"),
    [
        pytest.param(False, 1.0, id="alone", marks=pytest.mark.calm),
        pytest.param(True, 10.0, id="under a held snapshot"),
    ],
)
def test_a_message_that_commits_after_50_000_newer_ones_is_handled_at_once(
    db, direct, tmp_path, sessions_on, wait_for, traffic, snapshot, bound
):
    if snapshot:
        reader = sessions_on(db.dsn)
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select pg_current_xact_id(), (select count(*) from postrow.message)")
    late = sessions_on(db.dsn)
    (id_,) = late.execute("select id from postrow.enqueue('q', '\"late\"')").fetchone()
    began = time.monotonic()
    with process(db.dsn, direct(db.dsn), tmp_path / "worker.log"):
        wait_for(
            lambda: time.monotonic() - began > OPEN and db.done() >= NEWER,
            what="the newer messages to be handled",
            deadline=120,
        )
        sent = traffic.sent
        commit_at = db.value("select clock_timestamp()")
        late.commit()
        wait_for(lambda: db.history(id_), what="the late message to be handled", deadline=30)
        passed = (db.history(id_).started_at - commit_at).total_seconds()
        print(f"handled {passed:.3f} s after its commit")
        assert passed < bound
        assert traffic.sent > sent or passed < 0.2, "newer messages went on passing"
