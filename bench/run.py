"""The benchmark: `make bench`, or with the numbers of some workloads only: `python bench/run.py drain latency`.

Each workload runs three times on a fresh database of one private, durable server; the table has the medians.
Ratios are of figures from the same run, alternating, since machines are shared and drift.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import flow
import late
import order
import plots
import psycopg
import taps
from bed import PAYLOAD, backlog, database, drained, fill, wait_until, worker
from handles import compare

import postrow
from postrow.embedded import Server

SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "4GB", "max_connections": "1300"}  # of 200 idle workers

PGBENCH_SCRIPT = """
select coalesce(array_agg(c.tenant), '{}') as t, coalesce(array_agg(c.id), '{}') as i,
    coalesce(array_agg(c.claim_token), '{}') as k
from postrow.claim_lanes('noop', '{default}', '{0}', '{null}', 500, 500, lease => '60 s', worker => 'pgbench') c
where c.id is not null \\gset
select count(*) from postrow.ack(':t', ':i', ':k', wait => false);
"""


def drained_by_pgbench(server, dsn, count):
    """The same messages through the same functions, without a worker: one pgbench client."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(PGBENCH_SCRIPT)
        script.flush()
        done = subprocess.run(
            [taps.pgbench(server), "-n", "-c", "1", "-t", str(count // 500), "-f", script.name, dsn],
            capture_output=True,
            text=True,
            check=True,
        )
    rate = float(re.search(r"tps = ([\d.]+)", done.stdout)[1])
    with psycopg.connect(dsn) as conn:
        left = conn.execute("select count(*) from postrow.message where queue = 'noop' and priority = 0").fetchone()[0]
        if left:
            raise SystemExit(f"pgbench left {left} messages")
        conn.execute("truncate postrow.history")
    return rate * 500


def drain(server, count=50_000):
    with database(server) as dsn, psycopg.connect(dsn) as conn:
        fill(conn, "noop", count)
        bare = drained_by_pgbench(server, dsn, count)
        fill(conn, "noop", count)
        ours = drained(dsn, count)
    return {"worker, messages/s": ours, "pgbench, messages/s": bare, "worker / pgbench": ours / bare}


def bulk(server, count=10_000):
    with database(server) as dsn, psycopg.connect(dsn) as conn:
        rates = []
        for _ in range(10):
            began = time.perf_counter()
            postrow.enqueue_many(conn, "noop", [PAYLOAD] * count)
            conn.commit()
            rates.append(count / (time.perf_counter() - began))
    return {"enqueue_many of 10,000, messages/s": statistics.median(rates)}


def latency(server, rate=100, seconds=15):
    """Milliseconds from the producer's commit to the handler's first line, one worker that has nothing else to do."""
    committed = {}
    started = {}
    with database(server) as dsn, psycopg.connect(dsn) as conn, worker(dsn, "stamped") as process:

        def read():
            for line in process.stdout:
                n, at = json.loads(line)
                started[n] = at

        threading.Thread(target=read, daemon=True).start()
        postrow.enqueue(conn, "stamped", {"n": -1})
        conn.commit()
        while not started:
            time.sleep(0.01)
        time.sleep(2)
        next_at = time.perf_counter()
        for n in range(rate * seconds):
            postrow.enqueue(conn, "stamped", {"n": n})
            conn.commit()
            committed[n] = time.time()
            next_at += 1 / rate
            time.sleep(max(0, next_at - time.perf_counter()))
        end = time.monotonic() + 30
        while len(started) <= rate * seconds and time.monotonic() < end:
            time.sleep(0.01)
    waits = sorted((started[n] - committed[n]) * 1000 for n in committed)
    return {
        "latency at 100/s, p50 ms": waits[len(waits) // 2],
        "latency at 100/s, p99 ms": waits[int(len(waits) * 0.99)],
        "latency at 100/s, max ms": waits[-1],
    }


def scheduled(server, count=50_000, tomorrow=1_000_000):
    """The drain, empty and with a million messages of the same queue and lane scheduled for tomorrow."""
    with database(server) as dsn, psycopg.connect(dsn) as conn:
        fill(conn, "noop", count)
        empty = drained(dsn, count)
        backlog(conn, "noop", tomorrow, delay="1 day")
        fill(conn, "noop", count)
        full = drained(dsn, count)
    return {"drain with a million scheduled / empty": full / empty}


def burst(conn, count):
    """Messages a second of a running worker over `count` messages that were put in at once."""
    mark = conn.execute("select clock_timestamp()").fetchone()[0]
    postrow.enqueue_many(conn, "noop", [PAYLOAD] * count)
    conn.commit()
    wait_until(conn, "select count(*) from postrow.message", 0)
    seconds = conn.execute(
        "select extract(epoch from max(finished_at) - min(started_at))::float8 from postrow.history "
        "where enqueued_at >= %s",
        [mark],
    ).fetchone()[0]
    conn.rollback()
    return count / seconds


def held(server, backlog=100_000, rate=2_000, seconds=120):
    """Claims' speed in the second minute of a REPEATABLE READ transaction with an xid, under a steady load.

    The load goes on over an old backlog that was drained after the snapshot was taken. Speed is that of bursts of
    20,000 messages, before the snapshot and in its second minute.
    """
    with (
        database(server) as dsn,
        psycopg.connect(dsn) as conn,
        psycopg.connect(dsn) as reader,
        worker(dsn, "noop"),
    ):
        before = statistics.median(burst(conn, 20_000) for _ in range(5))
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("create temporary table held_open (n int)")  # assigns an xid
        reader.execute("select count(*) from postrow.message")
        fill(conn, "noop", backlog)
        began = time.monotonic()
        after = []
        while time.monotonic() - began < seconds or not after:
            fill(conn, "noop", rate // 2)
            time.sleep(0.5)
            if time.monotonic() - began > seconds / 2 and len(after) < 5:
                wait_until(conn, "select count(*) from postrow.message", 0)
                after.append(burst(conn, 20_000))
        reader.rollback()
    return {"claims under a held snapshot, second minute / before": statistics.median(after) / before}


def handles(server, **numbers):
    """Every handle that a driver knows, against psycopg's connection."""
    with database(server) as dsn:
        return compare(dsn, PAYLOAD, **numbers)


WORKLOADS = {"drain": drain, "bulk": bulk, "latency": latency, "scheduled": scheduled, "held": held, "handles": handles}
WORKLOADS |= flow.WORKLOADS | order.WORKLOADS | late.WORKLOADS | taps.WORKLOADS
SMALL = {  # numbers of a smoke run
    "drain": {"count": 2000},
    "latency": {"seconds": 1},
    "scheduled": {"count": 2000, "tomorrow": 1000},
    "held": {"backlog": 1000, "rate": 200, "seconds": 4},
    "handles": {"singles": 5, "many": 100},
    **flow.SMALL,
    **order.SMALL,
    **late.SMALL,
    **taps.SMALL,
}
# minutes long: they compare within themselves
ONCE = {"held", "scheduled", "rare", "idle", *flow.WORKLOADS, *late.WORKLOADS}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", choices=[[], *WORKLOADS], help="all of them if none is named")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--bin", type=Path, help="the folder of the server's programs")
    parser.add_argument("--smoke", action="store_true", help="small numbers, once: does it run at all?")
    parser.add_argument("--plots", type=Path, help="the folder for charts, as SVG; needs the extra `bench`")
    parser.add_argument("--workers", type=int, default=1, help="worker processes of fairness")
    options = parser.parse_args()
    names = options.workloads or list(WORKLOADS)
    numbers = {name: dict(SMALL.get(name, {})) if options.smoke else {} for name in WORKLOADS}
    numbers["fairness"]["workers"] = options.workers
    if options.plots:
        for name in flow.WORKLOADS:
            numbers[name]["draw"] = partial(plots.save, folder=options.plots)
    results = {}
    with Server(bin_dir=options.bin, settings=SETTINGS) as server:
        for turn in range(1 if options.smoke else options.runs):
            for name in names:
                if turn and name in ONCE:
                    continue
                print(f"{name}, run {turn + 1} ...", file=sys.stderr, flush=True)
                for key, value in WORKLOADS[name](server, **numbers[name]).items():
                    results.setdefault(key, []).append(value)
        version = server.version
    print(f"\nPostgres {version}, {os.cpu_count()} cores, Python {sys.version.split()[0]}\n")
    print("| what | median | runs |\n|---|---:|---|")
    for key, values in results.items():
        shown = [f"{value:,.0f}" if value >= 100 else f"{value:.2f}" for value in [statistics.median(values), *values]]
        print(f"| {key} | {shown[0]} | {', '.join(shown[1:])} |")


if __name__ == "__main__":
    main()
