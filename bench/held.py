"""Workloads under a long transaction: vacuum can remove nothing, and what was claimed stays in the way of claims."""

import statistics
import threading
import time
from contextlib import ExitStack, contextmanager

import psycopg
from bed import PAYLOAD, Figure, database, next_id, program, wait_done, wait_empty, wait_until, worker
from plots import Chart, Panel, nowhere
from pressure import pour
from timeline import latency, stretch, throughput
from watch import calls, cores, points, spent_in, steps, watching, work

import postrow

WARM = 5  # seconds of load before anything counts
CORES = {
    "worker": "worker",
    "claims": "postrow claimer",
    "acks": "postrow acker",
    "sweeps": "postrow sweeper",
    "producer": "bench producer",
    "autovacuum": "autovacuum worker",
}


def burst(conn, count=20_000):
    """Messages a second of the running worker over `count` messages that were put in at once."""
    first = next_id(conn)
    postrow.enqueue_many(conn, "noop", [PAYLOAD | {"due": 0}] * count)
    conn.commit()
    wait_done(conn, first, count)
    seconds = conn.execute(
        "select extract(epoch from max(finished_at) - min(started_at))::float8 from postrow.history where id > %s",
        [first],
    ).fetchone()[0]
    conn.rollback()
    return count / seconds


def bursts(conn, watch, count, size=20_000):
    """So many bursts: the medians of messages a second, and of the processor time for a message, in µs."""
    found = []
    for _ in range(count):
        before = work(watch.sample())
        rate = burst(conn, size)
        found.append((rate, (work(watch.sample()) - before) / size * 1e6))
    return [statistics.median(column) for column in zip(*found, strict=True)]


@contextmanager
def snapshot(dsn):
    """A REPEATABLE READ transaction with an xid that has read the live table, and is idle."""
    with psycopg.connect(dsn, application_name="bench snapshot") as conn:
        conn.execute("set transaction isolation level repeatable read")
        conn.execute("create temporary table held_open (n int)")  # assigns an xid
        conn.execute("select count(*) from postrow.message")
        yield
        conn.rollback()


@contextmanager
def scanning(dsn, count, pause):
    """So many REPEATABLE READ transactions that read the live table whole each `pause` seconds, one after the other.

    Gives the list of [seconds since the epoch, seconds that it took] of the scans.
    """
    stopping = threading.Event()
    scans = []

    def scan(number):
        with psycopg.connect(dsn, application_name="bench reader") as conn:
            conn.execute("set transaction isolation level repeatable read")
            stopping.wait(pause * number / count)
            while not stopping.is_set():
                began = time.time()
                conn.execute("select count(*) from postrow.message where payload is not null")
                scans.append((began, time.time() - began))
                stopping.wait(pause)
            conn.rollback()

    threads = [threading.Thread(target=scan, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield scans
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def held(
    server, *, draw=nowhere, name="held", rate=5000, tenants=1, seconds=300, before=30, edge=30, readers=0, pause=10.0,
    peaks=5,
    old=0,
):  # fmt: skip
    """A steady load on one worker: before, under, and after a transaction that holds an xid and a snapshot.

    `edge`: the seconds at each end of the transaction that are compared. `readers`, each with a snapshot too, scan the
    live table every `pause` seconds. `peaks`: bursts of 20,000 without any other load, before and at the end.
    `old`: so many messages more are done once it is open: a short run finds as much in its way then as a long one.
    """
    with database(server) as dsn, psycopg.connect(dsn) as conn, ExitStack() as running:
        conn.execute(f"alter database {conn.info.dbname} set track_functions = 'pl'")
        conn.commit()
        process = running.enter_context(worker(dsn, "noop"))
        watch = running.enter_context(watching(dsn, {process.pid: "worker"}))
        wait_until(conn, "select exists (select from postrow.worker)", True)
        peak_before = bursts(conn, watch, peaks)
        load = running.enter_context(program("pacer.py", dsn, "noop", rate, tenants))
        time.sleep(WARM)
        start = time.time()
        time.sleep(before)
        with ExitStack() as holding:
            holding.enter_context(snapshot(dsn))
            scans = holding.enter_context(scanning(dsn, readers, pause)) if readers else []
            if old:
                first = next_id(conn)
                pour(conn, "noop", old, tenants)
                wait_done(conn, first, old // tenants * tenants)
                time.sleep(WARM)
            opened = time.time()
            time.sleep(seconds)
            ended = time.time()
            samples = list(watch.samples)
            load.terminate()
            load.wait(30)
            wait_empty(conn)
            peak_after = bursts(conn, watch, peaks)
        calm = stretch(conn, start, before)
        first = stretch(conn, opened, edge)
        last = stretch(conn, ended - edge - 1, edge)
        dues = latency(conn, start)
        done = throughput(conn, start)
    samples = [sample for sample in samples if sample["at"] >= start]
    whose = f"{tenants:,} tenants" if tenants > 1 else "one tenant"
    also = f", {readers} more that scan" if readers else ""
    title = f"{rate:,} messages/s, {whose}; a transaction held open from second {opened - start:.0f} on{also}"
    draw(chart(name, title, start, samples=samples, dues=dues, done=done))
    costs = [
        worth(samples, begin, lasts) / (part.rate * lasts) * 1e6
        for begin, lasts, part in ((start, before, calm), (ended - edge - 1, edge, last))
    ]
    lanes = list(steps(samples, start, calls("lanes"), span=5))
    figures = {
        "last seconds' throughput / first": Figure(last.rate / first.rate, least=0.9),
        "last seconds' p99 / first": Figure(last.p99 / first.p99, most=2),
        "last seconds' p99 / before it": last.p99 / calm.p99,
        "p99 before it, ms": calm.p99,
        "p99 in its first seconds, ms": first.p99,
        "p99 in its last seconds, ms": last.p99,
        "p50 in its last seconds, ms": last.p50,
        "longest in its last seconds, ms": last.worst,
        "messages/s in its last seconds": last.rate,
        "processor time in its last seconds / before it": costs[1] / max(1e-9, costs[0]),
        "processor time before it, µs a message": costs[0],
        "discoveries a second at its end": lanes[-1][1] if lanes else 0.0,
        "dead rows at its end": samples[-1]["dead"],
    }
    if peaks:
        figures |= {
            "a burst's messages/s, at its end / before it": Figure(peak_after[0] / peak_before[0], least=0.85),
            "a burst's messages/s, before it": peak_before[0],
            "a burst's processor time, at its end / before it": peak_after[1] / max(1e-9, peak_before[1]),
            "a burst's processor time, before it, µs a message": peak_before[1],
        }
    if scans:
        figures |= {"a reader's scan, the first, s": scans[0][1], "a reader's scan, the last, s": scans[-1][1]}
    busy = cores([sample for sample in samples if sample["at"] >= opened], CORES.values())
    figures |= {f"cores busy: {who}": busy[which] for who, which in CORES.items()}
    return {f"{name}: {what}": figure for what, figure in figures.items()}


def worth(samples, begin, seconds):
    """The processor time of workers, and of the server for them, over a part of the run."""
    inside = [sample for sample in samples if begin <= sample["at"] < begin + seconds]
    return (work(inside[-1]) - work(inside[0])) * seconds / max(1e-9, inside[-1]["at"] - inside[0]["at"])


def chart(name, title, start, *, samples, dues, done):
    return Chart(
        name.replace("_", "-"),
        title,
        [
            Panel("messages done / s", {"done": done}),
            Panel(
                "latency, ms", {"p99": [(at, p99) for at, _, p99 in dues], "p50": [(at, p50) for at, p50, _ in dues]}
            ),
            Panel(
                "a call, ms",
                {
                    "claim": list(steps(samples, start, spent_in("claim_lanes"), calls("claim_lanes"))),
                    "ack": list(steps(samples, start, spent_in("ack_at"), calls("ack_at"))),
                    "discovery": list(steps(samples, start, spent_in("lanes"), calls("lanes"))),
                },
            ),
            Panel("dead rows", {"dead rows": points(samples, start, lambda sample: sample["dead"])}),
        ],
    )


def held_tenants(server, *, name="held_tenants", tenants=1000, peaks=0, **numbers):
    """The same with the load spread over a thousand tenants."""
    return held(server, name=name, tenants=tenants, peaks=peaks, **numbers)


def held_readers(server, *, name="held_readers", readers=4, peaks=0, **numbers):
    """The same with four more transactions that scan the live table."""
    return held(server, name=name, readers=readers, peaks=peaks, **numbers)


WORKLOADS = {"held": held, "held_tenants": held_tenants, "held_readers": held_readers}
_BRIEF = {"rate": 200, "seconds": 3, "before": 1, "edge": 1}
SMALL = {
    "held": {**_BRIEF, "peaks": 1},
    "held_tenants": {**_BRIEF, "tenants": 20},
    "held_readers": {**_BRIEF, "pause": 1.0},
}
