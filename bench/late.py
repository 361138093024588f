"""Workloads of what is committed late: very many messages of one long transaction, while others pass."""

import os
import statistics
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import psycopg
from bed import CHUNK, PAYLOAD, database, wait_until, worker

import postrow


def late(server, *, count=100_000, seconds=10, rate=2_000, rounds=3):
    """The drain of a transaction's messages: at once, open for `seconds` while others pass, and so under a snapshot.

    One worker runs all the time, in alternating rounds; its speed is that of these messages alone, from the first claim
    to the last ack. Beside it, what the server's process for its claims worked for each thousand: steadier, where the
    machine is shared.
    """
    rates, work = {}, {}
    with database(server) as dsn, psycopg.connect(dsn) as conn, worker(dsn, "noop"):
        fill(conn, 1, "first", 0)
        conn.commit()
        wait_until(conn, "select count(*) from postrow.history", 1)  # the worker is there
        for turn in range(rounds):
            for kind in ("at once", "open", "open, under a snapshot"):
                with ExitStack() as during:
                    if "snapshot" in kind:
                        during.enter_context(snapshot(dsn))
                    if "open" in kind:
                        during.enter_context(traffic(dsn, rate))
                    subject = f"{kind} {turn}"
                    fill(conn, count, subject, seconds if "open" in kind else 0)
                    before = claimers_work(conn)
                    wait_until(conn, f"select count(*) from postrow.history where subject = '{subject}'", count)
                    work.setdefault(kind, []).append((claimers_work(conn) - before) * 1e6 / count)
                rates.setdefault(kind, []).append(speed(conn, subject, count))
                wait_until(conn, "select count(*) from postrow.message", 0)
    figures = {}
    for kind, some in rates.items():
        figures[f"late: {kind}, messages/s"] = statistics.median(some)
        figures[f"late: {kind}, CPU ms of claims for 1,000"] = statistics.median(work[kind])
    for kind in list(rates)[1:]:
        figures[f"late: {kind} / at once, messages/s"] = statistics.median(rates[kind]) / statistics.median(
            rates["at once"]
        )
        figures[f"late: {kind} / at once, CPU"] = statistics.median(work[kind]) / statistics.median(work["at once"])
    return figures


def claimers_work(conn):
    """CPU seconds of the server's process that the worker's claimer is connected to. Commits."""
    conn.commit()
    (pid,) = conn.execute(
        "select pid from pg_stat_activity where application_name = 'postrow claimer' and datname = current_database()"
    ).fetchone()
    conn.rollback()
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fill(conn, count, subject, seconds):
    """Put messages into a transaction, evenly over so many seconds, and leave it open."""
    began = time.monotonic()
    for start in range(0, count, CHUNK):
        postrow.enqueue_many(conn, "noop", [PAYLOAD] * min(CHUNK, count - start), subject=subject)
        time.sleep(max(0, began + seconds * min(1, (start + CHUNK) / count) - time.monotonic()))


def speed(conn, subject, count):
    seconds = conn.execute(
        "select extract(epoch from max(finished_at) - min(started_at))::float8 from postrow.history where subject = %s",
        [subject],
    ).fetchone()[0]
    conn.rollback()
    return count / seconds


class traffic:  # noqa: N801  # read as a word of the `with`
    """Others, who commit `rate` messages a second in transactions of ten."""

    def __init__(self, dsn, rate):
        self._dsn = dsn
        self._rate = rate
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        began, sent = time.monotonic(), 0
        with psycopg.connect(self._dsn) as conn:
            while not self._ending.wait(max(0, began + sent / self._rate - time.monotonic())):
                postrow.enqueue_many(conn, "noop", [PAYLOAD] * 10)
                conn.commit()
                sent += 10

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_):
        self._ending.set()
        self._thread.join()


class snapshot:  # noqa: N801  # as above
    """A REPEATABLE READ transaction with an xid, open all the while: vacuum removes nothing."""

    def __init__(self, dsn):
        self._dsn = dsn

    def __enter__(self):
        self._conn = psycopg.connect(self._dsn)
        self._conn.execute("set transaction isolation level repeatable read")
        self._conn.execute("select pg_current_xact_id(), (select count(*) from postrow.message)")

    def __exit__(self, *_):
        self._conn.close()


WORKLOADS = {"late": late}
SMALL = {"late": {"count": 2000, "seconds": 1, "rate": 200, "rounds": 1}}
