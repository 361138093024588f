"""Workloads of more than there is room for: more messages than can be handled, more workers than there are cores."""

import statistics
import sys
import tempfile
import time
from contextlib import ExitStack

import psycopg
from bed import Figure, backlog, database, next_id, program, wait_done, wait_empty, wait_until, worker
from plots import Chart, Panel, nowhere
from timeline import behind, stretch, throughput
from watch import calls, cores, points, spent_in, steps, watching, work

HANDLED = "select count(*) from postrow.history"
LEFT = "select count(*) from postrow.message"


def pour(conn, queue, count, tenants=1):
    """Put very many messages in, with a tap: by one insert, or one for each tenant."""
    conn.execute("select postrow.tap(%s, 'default')", [queue])
    if tenants == 1:
        backlog(conn, queue, count)
        return
    for n in range(tenants):
        backlog(conn, queue, count // tenants, tenant=f"tenant-{n}")


def rate_over(conn, seconds):
    """Messages finished a second, as seen from here, over so long from now."""
    before, began = conn.execute(HANDLED).fetchone()[0], time.monotonic()
    conn.rollback()
    time.sleep(seconds)
    after, ended = conn.execute(HANDLED).fetchone()[0], time.monotonic()
    conn.rollback()
    return (after - before) / (ended - began)


def peak(conn, queue="noop", count=100_000):
    """Messages a second of the workers that run, on messages that were put in at once, with nothing else to do."""
    first = next_id(conn)
    pour(conn, queue, count)
    wait_done(conn, first, count)
    rate = conn.execute(
        "select count(*) / extract(epoch from max(finished_at) - min(started_at))::float8 from postrow.history "
        "where id > %s",
        [first],
    ).fetchone()[0]
    conn.rollback()
    return rate


def capacity(conn, dsn, seconds, count):
    """Messages a second that the worker handles while a producer sends more: without one, and with.

    The producer takes its share of the machine, and a larger one the more it sends.
    """
    alone = peak(conn, count=count)
    with program("pacer.py", dsn, "noop", 1.5 * alone, 1):
        time.sleep(min(3, seconds))
        beside = rate_over(conn, seconds)
    wait_empty(conn)
    return alone, beside


def overload(server, *, draw=nowhere, seconds=300, edge=30, factor=1.5, probe=15, count=100_000):
    """`factor` times what one worker can handle, for `seconds`; then what is left is drained."""
    with database(server) as dsn, psycopg.connect(dsn) as conn, ExitStack() as running:
        conn.execute(f"alter database {conn.info.dbname} set track_functions = 'pl'")
        conn.commit()
        process = running.enter_context(worker(dsn, "noop"))
        wait_until(conn, "select exists (select from postrow.worker)", True)
        alone, beside = capacity(conn, dsn, probe, count)
        load = running.enter_context(program("pacer.py", dsn, "noop", factor * beside, 1))
        watch = running.enter_context(watching(dsn, {process.pid: "worker", load.pid: "producer process"}))
        wait_until(conn, "select exists (select from postrow.message)", True)
        start = time.time()
        time.sleep(seconds)
        ended = time.time()
        load.terminate()
        load.wait(30)
        samples = list(watch.samples)
        left = conn.execute(LEFT).fetchone()[0]
        conn.rollback()
        wait_empty(conn, deadline=4 * seconds + 60)
        drained = time.time()
        after = peak(conn, count=count)
        first = stretch(conn, start, edge)
        last = stretch(conn, ended - edge, edge)
        done = throughput(conn, start)
        waiting = behind(conn, start)
        offered = conn.execute(
            "select count(*) / %(seconds)s from postrow.history where extract(epoch from enqueued_at) >= %(start)s "
            "and extract(epoch from enqueued_at) < %(end)s",
            {"start": start, "end": ended, "seconds": ended - start},
        ).fetchone()[0]
        conn.rollback()
    during = [rate for at, rate in done if at < ended - start]
    tens = [statistics.mean(during[at : at + 10]) for at in range(max(1, len(during) - 9))]
    handled = statistics.mean(during)
    draw(
        Chart(
            "overload",
            f"{offered:,.0f} messages/s for {seconds:g} s, then none: one worker, which handles {handled:,.0f}/s",
            [
                Panel("messages done / s", {"done": [point for point in done if point[0] < drained - start]}),
                Panel("messages that wait", {"waiting": [point for point in waiting if point[0] < drained - start]}),
                Panel(
                    "a call, ms",
                    {
                        "claim": list(steps(samples, start, spent_in("claim_lanes"), calls("claim_lanes"))),
                        "ack": list(steps(samples, start, spent_in("ack_at"), calls("ack_at"))),
                    },
                ),
                Panel("dead rows", {"dead rows": points(samples, start, lambda sample: sample["dead"])}),
            ],
        )
    )
    busy = cores(samples, ["worker", "postrow claimer", "postrow acker", "bench producer", "autovacuum worker"])
    figures = {
        "offered / handled": Figure(offered / handled, least=factor - 0.05),
        "last seconds' throughput / first": Figure(last.rate / first.rate, least=0.9),
        "the slowest ten seconds / the mean": Figure(min(tens) / handled, least=0.75),
        "drained afterwards, messages/s / alone before": Figure(left / (drained - ended) / alone, least=0.85),
        "a burst's messages/s, afterwards / before": Figure(after / alone, least=0.9),
        "messages/s offered": offered,
        "messages/s handled": handled,
        "messages/s alone": alone,
        "messages left": left,
        **{f"cores busy: {who}": share for who, share in busy.items()},
    }
    return {f"overload: {what}": figure for what, figure in figures.items()}


def fleet(server, *, draw=nowhere, most=64, count=400_000, rounds=3):
    """1, 2, 4, ... `most` worker processes on one queue: what they drain a second, and how often each message ran."""
    counts = [2**power for power in range(most.bit_length())]
    rates = {workers: [] for workers in counts}
    costs = {workers: [] for workers in counts}
    parts = {workers: [] for workers in counts}
    sent = handled = twice = again = complaints = starved = ran = 0
    for _ in range(rounds):
        with database(server) as dsn, psycopg.connect(dsn) as conn, ExitStack() as running:
            processes = []
            errors = running.enter_context(tempfile.TemporaryFile("w+"))
            watch = running.enter_context(watching(dsn, {}, every=5))
            for workers in counts:
                while len(processes) < workers:
                    processes.append(running.enter_context(worker(dsn, "counted", errors=errors)))
                    watch.processes[processes[-1].pid] = "worker"
                wait_until(conn, f"select count(*) >= {workers} from postrow.worker", True)
                time.sleep(1)  # the last one has looked
                peak(conn, "counted", max(1, count // 10))  # each has its plans and prepared statements
                conn.execute("checkpoint")  # what was written until now is not written out in this one's time
                mark = conn.execute("select clock_timestamp()").fetchone()[0]
                before = work(watch.sample())
                rates[workers].append(peak(conn, "counted", count))
                costs[workers].append((work(watch.sample()) - before) / count * 1e6)
                parts[workers].append(
                    conn.execute(
                        "select count(distinct claimed_by) from postrow.history where enqueued_at >= %s", [mark]
                    ).fetchone()[0]
                )
                sent += count + max(1, count // 10)
            found = conn.execute(
                "select count(*), count(*) - count(distinct id), count(*) filter (where attempt > 1) "
                "from postrow.history"
            ).fetchone()
            conn.rollback()
            handled, twice, again = handled + found[0], twice + found[1], again + found[2]
            for process in processes:
                process.terminate()
            ran += sum(int(process.communicate(timeout=60)[0]) for process in processes)
            errors.seek(0)
            lines = errors.read().splitlines()
            starved += sum("event loop has been blocked" in line for line in lines)
            complaints += len(lines)
            sys.stderr.write("\n".join(lines[:20]))
    medians = {workers: statistics.median(found) for workers, found in rates.items()}
    best = max(medians.values())
    draw(
        Chart(
            "fleet",
            f"{count:,} messages and 1 to {most} worker processes on one machine",
            [
                Panel(
                    "messages done / s",
                    {
                        "median": list(medians.items()),
                        "least": [(workers, min(found)) for workers, found in rates.items()],
                    },
                    {"85 % of the best": 0.85 * best},
                ),
                Panel(
                    "µs of processor a message", {"median": [(n, statistics.median(some)) for n, some in costs.items()]}
                ),
                Panel(
                    "workers with a share",
                    {"median": [(workers, statistics.median(found)) for workers, found in parts.items()]},
                ),
            ],
            "worker processes",
        )
    )
    figures = {
        "the least of all counts / the best": Figure(min(medians.values()) / best, least=0.85),
        "messages lost": Figure(sent - handled, most=0),
        "messages finished twice": Figure(twice, most=0),
        "handlers' runs beyond one a message": Figure(ran - sent, most=0),
        "messages with a second attempt": Figure(again, most=0),
        "errors and warnings": Figure(complaints - starved, most=0),
        "warnings of a process without a processor": starved,
        **{f"{workers} workers, messages/s": rate for workers, rate in medians.items()},
        **{f"{workers} workers / the best": rate / best for workers, rate in medians.items()},
        **{f"{workers} workers, µs of processor a message": statistics.median(each) for workers, each in costs.items()},
    }
    return {f"fleet: {what}": figure for what, figure in figures.items()}


WORKLOADS = {"overload": overload, "fleet": fleet}
SMALL = {
    "overload": {"seconds": 3, "edge": 1, "probe": 1, "count": 2000},
    "fleet": {"most": 2, "count": 2000, "rounds": 1},
}
