"""A workload with very many ready messages: what a claim, an ack and the looks at the queue cost then."""

import statistics
import time

import psycopg
from bed import Figure, backlog, database, settle, wait_until, worker
from plots import Chart, Panel, nowhere
from watch import spent

CLAIM = (
    "select tenant, id, claim_token from postrow.claim_lanes('noop', '{default}', '{0}', '{null}', %s, %s, "
    "lease => '60 s', worker => 'bench') where id is not null"
)
ACK = "select count(*) from postrow.ack(%s, %s, %s, wait => false)"
LOOKS = {
    "discovery": "select count(*) from postrow.lanes('noop')",
    "a round of the sweep": "select count(*) from postrow.sweep()",
    "depth_pending": "select postrow.depth_pending('noop')",
    "status": "select count(*) from postrow.status()",
}
CHUNK = 1_000_000
SIZES = (500, 10)  # messages in a claim


def served(conn, count, size):
    """Claim and acknowledge `count` messages, `size` at a time: the server's processor time for a message, in µs."""
    pid = conn.info.backend_pid
    began = spent(pid)
    for _ in range(count // size):
        rows = conn.execute(CLAIM, [size, size]).fetchall()
        if len(rows) != size:
            raise SystemExit(f"a claim gave {len(rows)} of {size}")
        conn.execute(ACK, [list(column) for column in zip(*rows, strict=True)])
    return (spent(pid) - began) / count * 1e6


def looked(conn, statement):
    """Milliseconds of a statement, the quicker of two runs: the first may have to read from the disk."""
    took = []
    for _ in range(2):
        began = time.perf_counter()
        conn.execute(statement).fetchall()
        took.append(1000 * (time.perf_counter() - began))
    return min(took)


def worked(dsn, count):
    """Messages a second of a worker over the first `count` of what waits, from its first claim on."""
    with psycopg.connect(dsn) as conn:
        conn.execute("truncate postrow.history")
        conn.commit()
        with worker(dsn, "noop"):
            wait_until(conn, f"select count(*) >= {count} from postrow.history", True)
        return conn.execute(
            "select count(*) / extract(epoch from max(finished_at) - min(started_at))::float8 from postrow.history"
        ).fetchone()[0]


def deep(server, *, draw=nowhere, waiting=10_000_000, rounds=9, some=20_000, bulk=100_000, drains=3):
    """Claims and acks out of `waiting` ready messages, and out of `some`, in two databases, alternating."""
    with (
        database(server) as few_dsn,
        database(server) as many_dsn,
        psycopg.connect(few_dsn, autocommit=True) as few,
        psycopg.connect(many_dsn, autocommit=True) as many,
    ):
        began = time.monotonic()
        for start in range(0, waiting, CHUNK):
            backlog(many, "noop", min(CHUNK, waiting - start))
        filled = time.monotonic() - began
        settle(many_dsn)
        for conn in (few, many):
            conn.execute("set synchronous_commit = off")  # the disk is not what is compared
        began = time.monotonic()
        costs = {(size, who): [] for size in SIZES for who in ("few", "many")}
        for _ in range(rounds):
            for who, conn in (("few", few), ("many", many)):
                if conn is few:
                    backlog(few, "noop", some + some // 10)
                for size, count in zip(SIZES, (some, some // 10), strict=True):
                    costs[size, who].append((time.monotonic() - began, served(conn, count, size)))
        looks = {what: looked(many, statement) for what, statement in LOOKS.items()}
        speeds = {dsn: [] for dsn in (few_dsn, many_dsn)}
        for _ in range(drains):
            backlog(few, "noop", bulk)
            for dsn, found in speeds.items():
                found.append(worked(dsn, bulk))
    draw(chart(waiting, some, costs))
    medians = {key: statistics.median(cost for _, cost in found) for key, found in costs.items()}
    figures = {}
    for size in SIZES:
        ratio = medians[size, "many"] / medians[size, "few"]
        figures |= {
            f"claim and ack of {size}, cost / with few": Figure(ratio, most=1.15),
            f"claim and ack of {size}, µs a message": medians[size, "many"],
        }
    figures |= {
        "a worker's messages/s / with few": Figure(
            statistics.median(speeds[many_dsn]) / statistics.median(speeds[few_dsn]), least=0.85
        ),
        "seconds to fill it": filled,
        **{f"{what}, ms": took for what, took in looks.items()},
    }
    return {f"deep: {what}": figure for what, figure in figures.items()}


def chart(waiting, some, costs):
    return Chart(
        "deep",
        f"{waiting:,} messages wait, against {some:,}: what claim and ack cost the server",
        [
            Panel(
                f"µs a message, {size} a claim",
                {f"{waiting:,}": costs[size, "many"], f"{some:,}": costs[size, "few"]},
            )
            for size in SIZES
        ],
    )


WORKLOADS = {"deep": deep}
SMALL = {"deep": {"waiting": 20_000, "rounds": 1, "some": 1000, "bulk": 2000, "drains": 1}}
