"""The benchmark: `make bench`, or with the numbers of some workloads only: `python bench/run.py drain latency`.

Each workload runs three times on a fresh database of one private, durable server; the table has the medians.
Ratios are of figures from the same run, alternating, since machines are shared and drift.
"""

import argparse
import inspect
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

import deep
import flow
import held
import late
import order
import plots
import pressure
import psycopg
import soak
import spike
import taps
from bed import PAYLOAD, Figure, backlog, database, drained, fill, worker
from handles import compare
from server import serving

import postrow

CONNECTIONS = 1300  # of 200 idle workers

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


def handles(server, **numbers):
    """Every handle that a driver knows, against psycopg's connection."""
    with database(server) as dsn:
        return compare(dsn, PAYLOAD, **numbers)


WORKLOADS = {"drain": drain, "bulk": bulk, "latency": latency, "scheduled": scheduled, "handles": handles}
WORKLOADS |= flow.WORKLOADS | order.WORKLOADS | late.WORKLOADS | taps.WORKLOADS
HEALTH = held.WORKLOADS | deep.WORKLOADS | pressure.WORKLOADS | spike.WORKLOADS | soak.WORKLOADS
EVERY = WORKLOADS | HEALTH
CHARTED = {*flow.WORKLOADS, *HEALTH}
SMALL = {  # numbers of a smoke run
    "drain": {"count": 2000},
    "latency": {"seconds": 1},
    "scheduled": {"count": 2000, "tomorrow": 1000},
    "handles": {"singles": 5, "many": 100},
    **flow.SMALL,
    **order.SMALL,
    **late.SMALL,
    **taps.SMALL,
    **held.SMALL,
    **deep.SMALL,
    **pressure.SMALL,
    **spike.SMALL,
    **soak.SMALL,
}
# minutes long: they compare within themselves
ONCE = {"scheduled", "rare", "idle", *late.WORKLOADS, *CHARTED}


def overrides(given, function):
    """Of NAME=VALUE texts those that a workload takes, as numbers."""
    pairs = dict(text.split("=", 1) for text in given)
    return {name: json.loads(pairs[name]) for name in parameters(function) & set(pairs)}


def parameters(function):
    """The numbers of a workload; one that hands the rest on to another has those, too."""
    found = inspect.signature(function).parameters
    rest = parameters(held.held) if "numbers" in found and function in held.WORKLOADS.values() else set()
    return {name for name, one in found.items() if one.kind is one.KEYWORD_ONLY} | rest


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "workloads",
        nargs="*",
        choices=[[], *EVERY, "health"],
        help="none: all but those of health, which take more than an hour; `health`: all of those",
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--bin", type=Path, help="the folder of the server's programs")
    parser.add_argument("--smoke", action="store_true", help="small numbers, once: does it run at all?")
    parser.add_argument("--plots", type=Path, help="the folder for charts, as SVG; needs the extra `bench`")
    parser.add_argument("--workers", type=int, default=1, help="worker processes of fairness")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a number of the workloads, as in seconds=40"
    )
    options = parser.parse_args()
    named = options.workloads or [*WORKLOADS]
    options.workloads = [name for one in named for name in (HEALTH if one == "health" else [one])]
    return options


def numbers_of(name, options):
    numbers = dict(SMALL.get(name, {})) if options.smoke else {}
    numbers |= overrides(options.set, EVERY[name])
    if name == "fairness":
        numbers["workers"] = options.workers
    if options.plots and name in CHARTED:
        numbers["draw"] = partial(plots.save, folder=options.plots)
    return numbers


def main():
    options = arguments()
    results = {}
    with serving(options.bin, smoke=options.smoke, max_connections=str(CONNECTIONS)) as server:
        for turn in range(1 if options.smoke else options.runs):
            for name in options.workloads:
                if turn and name in ONCE:
                    continue
                print(f"{name}, run {turn + 1} ...", file=sys.stderr, flush=True)
                for key, value in EVERY[name](server, **numbers_of(name, options)).items():
                    results.setdefault(key, []).append(value)
                    if name in HEALTH:
                        print(f"  {key}: {value:,.2f}", file=sys.stderr, flush=True)
        version = server.version
    print(f"\nPostgres {version}, {os.cpu_count()} cores, Python {sys.version.split()[0]}\n")
    print("| what | median | runs | target |\n|---|---:|---|---|")
    for key, values in results.items():
        median = statistics.median(values)
        shown = [f"{value:,.0f}" if value >= 100 else f"{value:.2f}" for value in [median, *values]]
        target = values[0].verdict(median) if isinstance(values[0], Figure) else ""
        print(f"| {key} | {shown[0]} | {', '.join(shown[1:])} | {target} |")


if __name__ == "__main__":
    main()
