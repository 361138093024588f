"""A workload of the time after a spike: how soon the live table is small and quick again."""

import statistics
import time
from contextlib import ExitStack

import psycopg
from bed import Figure, database, program, wait_empty, wait_until, worker
from plots import Chart, Panel, nowhere
from pressure import pour
from timeline import latency
from watch import calls, points, spent_in, steps, watching

ROUND = 60  # seconds: autovacuum_naptime
CHUNK = 500_000


def spike(server, *, draw=nowhere, count=5_000_000, rate=500, before=60, after=300, workers=2):
    """A light load; then `count` messages at once, drained by `workers`; then the light load again."""
    with database(server) as dsn, psycopg.connect(dsn) as conn, ExitStack() as running:
        conn.execute(f"alter database {conn.info.dbname} set track_functions = 'pl'")
        conn.commit()
        fleet = [running.enter_context(worker(dsn, "noop")) for _ in range(workers)]
        wait_until(conn, f"select count(*) >= {workers} from postrow.worker", True)
        watch = running.enter_context(watching(dsn, {process.pid: "worker" for process in fleet}))

        def light(seconds):
            with program("pacer.py", dsn, "noop", rate, 1) as load:
                began = time.time()
                time.sleep(seconds)
                load.terminate()
                load.wait(30)
            return began, time.time()

        start = time.time()
        quiet = light(before)
        poured = time.time()
        for begun in range(0, count, CHUNK):
            pour(conn, "noop", min(CHUNK, count - begun))
        full = time.time()
        wait_empty(conn, deadline=3600)
        drained = time.time()
        calm = light(after)
        samples = list(watch.samples)
        dues = latency(conn, calm[0])
        old = latency(conn, quiet[0])
    big = max(sample["heap"] for sample in samples)
    late = [sample for sample in samples if sample["at"] >= drained]
    size_before = statistics.median(sample["heap"] for sample in samples if quiet[0] <= sample["at"] < quiet[1])
    claim = steps(samples, start, spent_in("claim_lanes"), calls("claim_lanes"), span=5)

    def cost(begin, end):
        found = [ms for at, ms in claim if begin - start <= at < end - start]
        return statistics.median(found) if found else float("nan")

    normal = next((s["at"] - drained for s in late if s["heap"] <= max(16, size_before)), float("inf"))
    quick = next((at + start - drained for at, ms in claim if at + start > drained + 5
                  and ms <= 1.25 * cost(*quiet)), float("inf"))  # fmt: skip
    rounds = late[-1]["vacuums"] - late[0]["vacuums"]
    ends = [(before_, p99) for before_, _, p99 in dues]
    third = max(1, len(ends) // 3)
    p99 = statistics.median(value for _, value in ends[-third:])
    draw(
        Chart(
            "spike",
            f"{count:,} messages at once, drained by {workers} workers; {rate:,} a second before and after",
            [
                Panel(
                    "live table, MB",
                    {
                        "heap": points(samples, start, lambda sample: sample["heap"]),
                        "indexes": points(samples, start, lambda sample: sample["indexes"]),
                    },
                ),
                Panel("dead rows", {"dead rows": points(samples, start, lambda sample: sample["dead"])}),
                Panel("a claim, ms", {"claim": claim}),
                Panel(
                    "p99 of the light load, ms",
                    {
                        "before": [(at + quiet[0] - start, value) for at, _, value in old if at < before],
                        "after": [(at + calm[0] - start, value) for at, _, value in dues],
                    },
                ),
            ],
        )
    )
    figures = {
        "seconds from its end until the heap is as before": Figure(normal, most=3 * ROUND + 30),
        "seconds from its end until a claim costs as before": Figure(quick, most=3 * ROUND + 30),
        "a claim's ms at the end / before": Figure(cost(calm[1] - after / 3, calm[1]) / cost(*quiet), most=1.25),
        "p99 at the end / before": Figure(p99 / statistics.median(value for _, _, value in old), most=1.5),
        "heap, MB, before": size_before,
        "heap, MB, at most": big,
        "heap, MB, at the end": samples[-1]["heap"],
        "indexes, MB, at most": max(sample["indexes"] for sample in samples),
        "indexes, MB, at the end": samples[-1]["indexes"],
        "autovacuums from its end on": rounds,
        "dead rows at the end": samples[-1]["dead"],
        "seconds to pour it": full - poured,
        "messages/s drained": count / (drained - poured),
    }
    return {f"spike: {what}": figure for what, figure in figures.items()}


WORKLOADS = {"spike": spike}
SMALL = {"spike": {"count": 5000, "rate": 100, "before": 6, "after": 7, "workers": 1}}
