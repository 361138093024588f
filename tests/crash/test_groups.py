"""Order per key holds while workers are killed: none of a group starts before the one in front of it has ended once."""

import time

import psycopg

import postrow

GROUPS, EACH = 12, 15


def test_groups_keep_their_order_while_workers_are_killed(fleet, db, wait_for):
    with psycopg.connect(db.dsn) as conn:
        for n in range(EACH):
            for group in range(GROUPS):
                postrow.enqueue(
                    conn, "orders", {"n": n, "fails_until": int((n + group) % 7 == 0)}, group_key=f"g{group}"
                )
    fleet.supervise()
    for name in ("w1", "w2"):
        fleet.start(name)
    for n in range(5):
        done = db.value("select count(*) from postrow.history")
        wait_for(lambda done=done: db.value("select count(*) from postrow.history") > done + 10, deadline=30)
        fleet.kill(("w1", "w2")[n % 2])
    wait_for(lambda: db.value("select count(*) from postrow.message") == 0, deadline=60)

    wait_for(lambda: fleet.restarts >= 5, what="the last restart")
    assert fleet.restarts == 5
    assert db.value("select count(*) from postrow.history") == GROUPS * EACH
    runs = db.rows(
        "select h.group_key, (h.payload ->> 'n')::int as n, r.started, r.ended from ran r "
        "join postrow.history h on h.id = r.message order by r.started"
    )
    ended = {}  # by group: when the first run of each of its messages that came to its end did so
    for run in runs:
        if run.ended is not None:
            ended.setdefault((run.group_key, run.n), run.ended)
    early = [run for run in runs if run.n > 0 and not ended[run.group_key, run.n - 1] <= run.started]
    assert early == []


def test_the_limit_in_flight_holds_while_workers_are_killed(fleet, db, wait_for):
    """A killed worker's places come back with its leases, and not before."""
    fleet.supervise()
    for name in ("w1", "w2"):
        fleet.start(name, max_in_flight=3, lease=1.0)
    with psycopg.connect(db.dsn) as conn:
        for n in range(150):
            postrow.enqueue(conn, "orders", {"n": n})
    most = 0
    began = time.monotonic()
    for kill in range(3):
        done = db.value("select count(*) from postrow.history")
        while db.value("select count(*) from postrow.history") <= done + 10:
            assert time.monotonic() - began < 60
            live = db.value(
                "select count(*) from postrow.message where claim_token is not null and available_at > now()"
            )
            most = max(most, live)
        fleet.kill(("w1", "w2")[kill % 2])
    wait_for(lambda: db.value("select count(*) from postrow.message") == 0, deadline=60)
    assert most == 3
    # of the runs that came to their ends no more than three went on at any moment
    crowded = db.rows(
        "select r.started from ran r where (select count(*) from ran o where o.started <= r.started "
        "and o.ended > r.started) > 3"
    )
    assert crowded == []
