"""A workload of staying the same: half of what one worker can do, for long."""

import statistics
import time
from contextlib import ExitStack

import psycopg
from bed import Figure, database, program, wait_empty, wait_until, worker
from plots import Chart, Panel, nowhere
from pressure import capacity
from timeline import latency, stretch
from watch import cores, points, watching

STEP = 10  # seconds over which a latency is taken


def soak(server, *, draw=nowhere, seconds=1200, probe=15, count=100_000, share=0.5, rate=None):
    """`share` of one worker's peak, or `rate`, for `seconds`; what the last fifth has, over the second one."""
    with database(server) as dsn, psycopg.connect(dsn) as conn, ExitStack() as running:
        process = running.enter_context(worker(dsn, "noop"))
        wait_until(conn, "select exists (select from postrow.worker)", True)
        if rate is None:
            rate = share * capacity(conn, dsn, probe, count)[1]
        load = running.enter_context(program("pacer.py", dsn, "noop", rate, 1))
        watch = running.enter_context(watching(dsn, {process.pid: "worker", load.pid: "producer process"}))
        wait_until(conn, "select exists (select from postrow.message)", True, pause=0.001)
        start = time.time()
        time.sleep(seconds)
        load.terminate()
        load.wait(30)
        samples = list(watch.samples)
        wait_empty(conn)
        fifth = seconds / 5
        dues = latency(conn, start, min(STEP, fifth))
        last = stretch(conn, start + 4 * fifth, fifth)
    early, late = ([s for s in samples if part * fifth <= s["at"] - start < (part + 1) * fifth] for part in (1, 4))

    def growth(value):
        return statistics.median(map(value, late)) / max(1e-9, statistics.median(map(value, early)))

    def p(column):
        parts = [[row[column] for row in dues if part * fifth <= row[0] < (part + 1) * fifth] for part in (1, 4)]
        return statistics.median(parts[1]) / statistics.median(parts[0])

    backends = ("postrow claimer", "postrow acker", "postrow heartbeat", "postrow sweeper", "postrow listener")
    draw(
        Chart(
            "soak",
            f"{rate:,.0f} messages/s, {share:.0%} of one worker's peak, for {seconds / 60:.0f} minutes",
            [
                Panel(
                    "latency, ms",
                    {"p99": [(at, p99) for at, _, p99 in dues], "p50": [(at, p50) for at, p50, _ in dues]},
                ),
                Panel(
                    "own memory, MB",
                    {
                        "worker": points(samples, start, memory("worker")),
                        "claimer's backend": points(samples, start, memory("postrow claimer")),
                        "acker's backend": points(samples, start, memory("postrow acker")),
                    },
                ),
                Panel("dead rows", {"dead rows": points(samples, start, lambda sample: sample["dead"])}),
                Panel(
                    "live table, MB",
                    {
                        "heap": points(samples, start, lambda sample: sample["heap"]),
                        "indexes": points(samples, start, lambda sample: sample["indexes"]),
                    },
                ),
            ],
        )
    )
    figures = {
        "p99 of the last fifth / of the second": Figure(p(2), most=1.25),
        "p50 of the last fifth / of the second": Figure(p(1), most=1.25),
        "worker's memory, the last fifth / the second": Figure(growth(memory("worker")), most=1.1),
        "backends' memory, the last fifth / the second": Figure(
            growth(lambda sample: sum(sample["memory"].get(name, 0.0) for name in backends)), most=1.1
        ),
        "most dead rows, the last fifth / the second": Figure(
            max(s["dead"] for s in late) / max(1, *(s["dead"] for s in early)), most=1.25
        ),
        "live table and indexes, the last fifth / the second": Figure(
            growth(lambda sample: sample["heap"] + sample["indexes"]), most=1.25
        ),
        "throughput of the last fifth / offered": Figure(last.rate / rate, least=0.98),
        "messages/s": rate,
        "p50 of the last fifth, ms": last.p50,
        "p99 of the last fifth, ms": last.p99,
        "longest of the last fifth, ms": last.worst,
        "worker's memory, MB": late[-1]["memory"].get("worker", 0.0),
        "claimer's backend, MB": late[-1]["memory"].get("postrow claimer", 0.0),
        "acker's backend, MB": late[-1]["memory"].get("postrow acker", 0.0),
        **{
            f"cores busy: {name}": busy
            for name, busy in cores(samples, ["worker", "postrow claimer", "postrow acker", "bench producer"]).items()
        },
    }
    return {f"soak: {what}": figure for what, figure in figures.items()}


def memory(name):
    """Of a sample, the MB of it."""
    return lambda sample: sample["memory"].get(name)


WORKLOADS = {"soak": soak}
SMALL = {"soak": {"seconds": 6, "probe": 1, "count": 2000, "share": 0.1}}
