"""Workloads of who is served when: priorities, tenants. Each gives its figures, and hands charts over time to `draw`.

To add one: a function `name(server, *, draw, **numbers)` that gives a dict of figures, an entry in WORKLOADS, and one
in SMALL with the numbers of a smoke run.
"""

import json
import time
from contextlib import ExitStack

import psycopg
from bed import backlog, database, handled, percentile, program, settle, wait_until, worker
from plots import Chart, Panel, nowhere

STEP = 0.1  # seconds: the grain of what is counted over time
WINDOW = 2.0  # seconds over which a share is never to be zero


def aging(server, *, draw=nowhere, urgent=400_000, patient=60_000):
    """What priority 10 gets while priority 0 has more waiting than one worker can do; then both run dry."""
    with database(server) as dsn, psycopg.connect(dsn) as conn:
        backlog(conn, "noop", urgent, priority=0)
        backlog(conn, "noop", patient, priority=10)
        settle(dsn)
        with worker(dsn, "noop"):
            wait_until(conn, "select count(*) from postrow.message", 0, pause=1)
        start, busy = conn.execute(
            "select min(started_at), "
            "extract(epoch from max(finished_at) filter (where priority = 0) - min(started_at))::float8 "
            "from postrow.history"
        ).fetchone()
        counts = handled(conn, "priority", start, STEP)
    zero, ten = (counts[priority][: int(busy / STEP)] for priority in ("0", "10"))
    wide = int(WINDOW / STEP)
    shares = [100 * share(ten[at : at + wide], zero[at : at + wide]) for at in range(max(1, len(zero) - wide + 1))]
    both = {f"priority {priority}": rates(counts[priority]) for priority in ("0", "10")}
    part = {"priority 10": [(at * STEP + WINDOW, value) for at, value in enumerate(shares)]}
    draw(
        Chart(
            "aging",
            "One worker, two priorities: the lower one is served a twentieth of the time",
            [
                Panel("messages handled / s", both),
                Panel(f"% of those of the last {WINDOW:g} s", part, levels={"5 %": 5}),
            ],
        )
    )
    return {
        "aging: share of priority 10, %": 100 * share(ten, zero),
        f"aging: least share over {WINDOW:g} s, %": min(shares),
    }


def fairness(server, *, draw=nowhere, waiting=1_000_000, tenants=1_000, seconds=30, workers=1):
    """How long the messages of quiet tenants wait while one tenant's backlog keeps the workers busy."""
    with database(server) as dsn, psycopg.connect(dsn) as conn, ExitStack() as running:
        conn.execute(f"alter database {conn.info.dbname} set track_functions = 'pl'")
        backlog(conn, "noop", waiting, tenant="big")
        settle(dsn)
        producer = running.enter_context(program("producer.py", dsn, "noop", tenants))
        fleet = [running.enter_context(worker(dsn, "noop", "timed")) for _ in range(workers)]
        wait_until(conn, "select exists (select from postrow.history where tenant <> 'big')", True)
        time.sleep(min(3, seconds))  # each quiet tenant has been seen
        start = moment(conn)
        before = functions(conn)
        time.sleep(seconds)
        end = moment(conn)
        after = functions(conn)
        producer.terminate()
        sent = json.loads(producer.communicate()[0])
        wait_until(conn, "select count(*) from postrow.message where tenant <> 'big'", 0, deadline=60)
        if not conn.execute("select exists (select from postrow.message where tenant = 'big')").fetchone()[0]:
            raise SystemExit("the backlog ran out during the measurement: raise `waiting`, or take fewer seconds")
        for process in fleet:
            process.terminate()
        calls = [call for process in fleet for call in json.loads(process.communicate()[0])]
        waits = conn.execute(
            "select extract(epoch from enqueued_at - %(start)s)::float8, "
            "1000 * extract(epoch from started_at - enqueued_at)::float8 "
            "from postrow.history where tenant <> 'big' and enqueued_at between %(start)s and %(end)s",
            {"start": start, "end": end},
        ).fetchall()
        counts = handled(conn, "case tenant when 'big' then 'big' else 'quiet' end", start, 1)
    rate = {who: some[: int(seconds)] for who, some in counts.items()}  # without the second that is not over
    name = f"fairness, {workers} worker{'s' * (workers > 1)}"
    draw(fairness_chart(f"One tenant with {waiting:,} messages, {tenants:,} with one a second", waits, rate))
    calls, sent = ([row[1:] for row in rows if start.timestamp() <= row[0] < end.timestamp()] for rows in (calls, sent))
    passed = (end - start).total_seconds()
    discovery = sum(took for kind, took in calls if kind == "lanes")
    in_server = {kind: (after[kind] - before.get(kind, 0)) / 1000 for kind in ("lanes", "claim_lanes")}
    figures = {
        "wait of quiet messages, p50 ms": percentile([wait for _, wait in waits], 0.5),
        "wait of quiet messages, p99 ms": percentile([wait for _, wait in waits], 0.99),
        "wait of quiet messages, max ms": max(wait for _, wait in waits),
        "quiet messages/s": len(waits) / passed,
        "a quiet tenant's transaction, p99 ms": 1000 * percentile([took for _, took in sent], 0.99),
        "the producer behind its schedule, p99 ms": 1000 * percentile([behind for behind, _ in sent], 0.99),
        "the big tenant's messages/s": sum(rate["big"]) / len(rate["big"]),
        "messages in a claim": sum(map(sum, rate.values())) / sum(kind == "claim_lanes" for kind, _ in calls),
        "discovery, % of the workers' time": 100 * discovery / passed / workers,
        "discovery, % of it in the server": 100 * in_server["lanes"] / passed / workers,
        "claims, % of it in the server": 100 * in_server["claim_lanes"] / passed / workers,
    }
    return {f"{name}: {what}": figure for what, figure in figures.items()}


def fairness_chart(title, waits, rate):
    by_second = {}
    for at, wait in waits:
        if at < len(rate["big"]):
            by_second.setdefault(int(at), []).append(wait)
    return Chart(
        "fairness",
        title,
        [
            Panel(
                "wait of a quiet message, ms",
                {
                    name: [(second + 0.5, percentile(some, part)) for second, some in sorted(by_second.items())]
                    for name, part in (("p99", 0.99), ("p50", 0.5))
                },
            ),
            Panel(
                "messages handled / s",
                {
                    name: [(second + 0.5, count) for second, count in enumerate(rate[who])]
                    for name, who in (("the big tenant", "big"), ("quiet tenants", "quiet"))
                },
            ),
        ],
    )


def share(part, rest):
    return sum(part) / max(1, sum(part) + sum(rest))


def rates(counts, span=1.0):
    """Counts of each STEP as points of (seconds, messages a second) over `span` seconds: claims come in hundreds."""
    wide = round(span / STEP)
    return [
        ((at + wide / 2) * STEP, sum(counts[at : at + wide]) / (wide * STEP)) for at in range(len(counts) - wide + 1)
    ]


def moment(conn):
    at = conn.execute("select clock_timestamp()").fetchone()[0]
    conn.rollback()
    return at


def functions(conn):
    """Milliseconds that the server has spent in each function, with those that it called."""
    rows = conn.execute("select funcname, sum(total_time) from pg_stat_user_functions group by 1").fetchall()
    conn.rollback()
    return dict(rows)


WORKLOADS = {"aging": aging, "fairness": fairness}
SMALL = {
    "aging": {"urgent": 20_000, "patient": 5000},
    "fairness": {"waiting": 200_000, "tenants": 20, "seconds": 1},
}
