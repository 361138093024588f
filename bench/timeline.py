"""What history says of a run over time: how many were done, and how long after they were due.

A message is due when its producer should have sent it (pacer.py), not when it did, and done when its outcome is
written: with the producer's wait, the claim, the handler and the ack.
"""

from dataclasses import dataclass

DUE = "(payload ->> 'due')::float8"
DONE = "extract(epoch from finished_at)::float8"


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a run: messages done a second, and the latency of those that were due in it, in ms."""

    rate: float
    p50: float
    p99: float
    worst: float


def stretch(conn, begin, seconds):
    """The part of a run from `begin` (seconds since the epoch) on."""
    conn.execute("set local work_mem = '256MB'")
    done, p50, p99, worst = conn.execute(
        f"select (select count(*) from postrow.history where {DONE} >= %(begin)s and {DONE} < %(end)s), "
        f"percentile_disc(0.5) within group (order by {DONE} - {DUE}), "
        f"percentile_disc(0.99) within group (order by {DONE} - {DUE}), max({DONE} - {DUE}) "
        f"from postrow.history where {DUE} >= %(begin)s and {DUE} < %(end)s",
        {"begin": begin, "end": begin + seconds},
    ).fetchone()
    conn.rollback()
    return Stretch(done / seconds, *(1000 * (value or 0.0) for value in (p50, p99, worst)))


def latency(conn, start, step=1.0):
    """(seconds since `start`, p50 ms, p99 ms) of what was due in each `step` seconds."""
    conn.execute("set local work_mem = '256MB'")
    rows = conn.execute(
        f"select floor(({DUE} - %(start)s) / %(step)s)::int, "
        f"percentile_disc(array[0.5, 0.99]) within group (order by {DONE} - {DUE}) "
        f"from postrow.history where {DUE} >= %(start)s group by 1 order by 1",
        {"start": start, "step": step},
    ).fetchall()
    conn.rollback()
    return [((bucket + 0.5) * step, 1000 * p50, 1000 * p99) for bucket, (p50, p99) in rows]


def throughput(conn, start, step=1.0):
    """(seconds since `start`, messages done a second) of each `step` seconds that are over."""
    rows = conn.execute(
        f"select floor(({DONE} - %(start)s) / %(step)s)::int, count(*) from postrow.history "
        f"where {DONE} >= %(start)s group by 1 order by 1",
        {"start": start, "step": step},
    ).fetchall()
    conn.rollback()
    counts = dict(rows)
    return [((bucket + 0.5) * step, counts.get(bucket, 0) / step) for bucket in range(max(counts, default=0))]


def behind(conn, start, step=1.0):
    """(seconds since `start`, messages enqueued and not done) at the end of each `step` seconds."""
    rows = conn.execute(
        "with moved as ("
        f"select floor((extract(epoch from enqueued_at) - %(start)s) / %(step)s)::int as bucket, 1 as n "
        "from postrow.history "
        f"union all select floor(({DONE} - %(start)s) / %(step)s)::int, -1 from postrow.history) "
        "select bucket, sum(sum(n)) over (order by bucket) from moved group by 1 order by 1",
        {"start": start, "step": step},
    ).fetchall()
    conn.rollback()
    return [((bucket + 1) * step, int(left)) for bucket, left in rows if bucket >= 0]
