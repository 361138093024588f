"""What the workloads stand on: a database of their own, messages in it, worker processes, and what these have done."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psycopg

import postrow
from postrow import migrate

HERE = Path(__file__).parent
PAYLOAD = {"k": "x" * 130, "n": 1234567}  # 150 bytes as JSON
CHUNK = 10_000


@contextmanager
def database(server):
    name = f"bench_{time.monotonic_ns()}"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(f"create database {name}")
        migrate.apply(server.dsn(name))
        yield server.dsn(name)
        admin.execute(f"drop database {name} with (force)")


def fill(conn, queue, count, **options):
    """Put messages in, and give how many a second went in (client and server together)."""
    began = time.perf_counter()
    for start in range(0, count, CHUNK):
        postrow.enqueue_many(conn, queue, [PAYLOAD] * min(CHUNK, count - start), **options)
        conn.commit()
    return count / (time.perf_counter() - began)


def backlog(conn, queue, count, *, tenant="default", priority=0, delay="0 s", group="null"):
    """Put very many messages in, by one insert; with `delay`, they are due a millisecond after each other from then.

    `group`: an expression of SQL over `g`, the message's number: its group_key.
    """
    conn.execute(
        "insert into postrow.message (tenant, id, queue, priority, payload, enqueued_at, available_at, group_key) "
        "select %(tenant)s, postrow.uuid7(), %(queue)s, %(priority)s, %(payload)s, clock_timestamp(), "
        "clock_timestamp() + %(delay)s::interval + g * interval '1 ms' * (%(delay)s::interval > '0 s')::int, "
        f"{group} from generate_series(1, %(count)s) g",
        {
            "tenant": tenant,
            "queue": queue,
            "priority": priority,
            "payload": json.dumps(PAYLOAD),
            "delay": delay,
            "count": count,
        },
    )
    conn.commit()


def settle(dsn):
    """What a server does after so many inserts, done now: else it does so in the middle of the measurement."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("vacuum (analyze) postrow.message")
        conn.execute("checkpoint")


class Figure(float):
    """A figure with its target: `least`, or `most`."""

    def __new__(cls, value, *, least=None, most=None):
        figure = super().__new__(cls, value)
        figure.least, figure.most = least, most
        return figure

    def verdict(self, value):
        """The target, and whether `value`, such as the median of several of these figures, meets it."""
        both = {"at least": self.least, "at most": self.most}
        bounds = [f"{word} {bound:g}" for word, bound in both.items() if bound is not None]
        met = (self.least is None or value >= self.least) and (self.most is None or value <= self.most)
        return f"{', '.join(bounds)}: {'met' if met else '**missed**'}"


@contextmanager
def program(name, dsn, *arguments, errors=None):
    """One of the programs beside this file, as a process that is ended at last; its lines come from `.stdout`.

    `errors`: the file for what it writes to stderr.
    """
    process = subprocess.Popen(
        [sys.executable, HERE / name, *map(str, arguments)],
        env={**os.environ, "POSTROW_DSN": dsn},
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def worker(dsn, queue, *options, errors=None):
    """A worker process; see worker_app.py."""
    return program("worker_app.py", dsn, queue, *options, errors=errors)


def wait_until(conn, statement, expected, *, deadline=300, pause=0.1):
    end = time.monotonic() + deadline
    while True:
        began = time.monotonic()
        found = conn.execute(statement).fetchone()[0]
        conn.rollback()
        asking = time.monotonic() - began
        if found == expected:
            return
        if time.monotonic() > end:
            raise SystemExit(f"gave up: {statement} is {found}, not {expected}")
        time.sleep(max(pause, 9 * asking))  # a tenth of one session's time: it is not to be what is measured


def wait_done(conn, first, count, *, deadline=300):
    """Wait until so many messages with later ids than `first` are in history: a look by index, which disturbs little.

    Counting the live table reads all that is dead in it.
    """
    wait_until(conn, f"select count(*) >= {count} from postrow.history where id > '{first}'", True, deadline=deadline)


def wait_empty(conn, queue="noop", *, deadline=300):
    """Wait until nothing is unfinished: first for the free ones, by index, then for those under way."""
    wait_until(conn, f"select count(*) from postrow.lanes('{queue}')", 0, deadline=deadline, pause=0.5)
    wait_until(conn, "select count(*) from postrow.message", 0, deadline=deadline, pause=0.5)


def next_id(conn):
    """An id before that of every message to come."""
    found = conn.execute("select postrow.uuid7()").fetchone()[0]
    conn.rollback()
    return found


def drained(dsn, count, queue="noop", *, what="true"):
    """Messages a second of one worker process over `count` waiting messages: from its first claim to its last ack.

    `what`: a condition on history: of these messages alone, while others may be there too.
    """
    with psycopg.connect(dsn) as conn, worker(dsn, queue):
        wait_until(conn, f"select count(*) from postrow.history where {what}", count)
        seconds = conn.execute(
            f"select extract(epoch from max(finished_at) - min(started_at))::float8 from postrow.history where {what}"
        ).fetchone()[0]
        conn.execute("truncate postrow.history")
        conn.commit()
    return count / seconds


def handled(conn, label, start, step):
    """How many messages were finished in each `step` seconds from `start` on, by `label`: a column or expression."""
    rows = conn.execute(
        f"select ({label})::text, floor(extract(epoch from finished_at - %(start)s) / %(step)s)::int, count(*) "
        "from postrow.history where finished_at >= %(start)s group by 1, 2",
        {"start": start, "step": step},
    ).fetchall()
    conn.rollback()
    last = max((bucket for _, bucket, _ in rows), default=-1)
    counts = {name: [0] * (last + 1) for name, _, _ in rows}
    for name, bucket, count in rows:
        counts[name][bucket] = count
    return counts


def percentile(values, share):
    """The value below which this share of them lies."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]
