"""Every committed message is settled, none is lost, no stale token is accepted: whatever dies meanwhile."""

import contextlib
import time

import psycopg


def test_workers_are_killed_and_restarted(fleet, ledger, wait_for):
    fleet.supervise()
    for name in ("w1", "w2"):
        fleet.start(name)
    for n in range(6):
        ledger.wait_for_work()
        fleet.kill(("w1", "w2")[n % 2])
    ledger.balances()
    wait_for(lambda: fleet.restarts >= 6, what="the last restart")
    assert fleet.restarts == 6


def test_postgres_is_killed_and_recovers(fleet, ledger, durable_server):
    for name in ("w1", "w2"):
        fleet.start(name)
    for _ in range(3):
        ledger.wait_for_work()
        durable_server.kill()
        durable_server.start()
    ledger.balances()
    assert fleet.alive("w1")
    assert fleet.alive("w2")
    assert fleet.said.count(" WARNING ") < 60


def test_postgres_is_stopped_for_ten_seconds(fleet, ledger, durable_server, wait_for):
    for name in ("w1", "w2"):
        fleet.start(name)
    ledger.wait_for_work()
    durable_server.stop()
    time.sleep(10)  # the case itself: an outage of ten seconds
    durable_server.start()
    began = time.monotonic()
    ledger.wait_for_work(1)
    assert time.monotonic() - began < 16  # back-off pauses 15 s at most
    ledger.balances()
    assert fleet.alive("w1")
    assert fleet.alive("w2")
    wait_for(lambda: fleet.said.count("the database is back") >= 2, what="each worker to say that all is well again")


def test_every_connection_is_terminated_again_and_again(fleet, ledger, db):
    for name in ("w1", "w2"):
        fleet.start(name)
    for _ in range(8):
        ledger.wait_for_work(10)
        with psycopg.connect(db.server.dsn(), autocommit=True) as conn, contextlib.suppress(psycopg.Error):
            conn.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [db.name])
    ledger.balances()
    assert "begins again" not in fleet.said


def test_ten_workers_at_once_and_half_of_them_are_killed(fleet, ledger, db, wait_for):
    for n in range(10):
        fleet.start(f"w{n}", slots=3)
    ledger.wait_for_work(100)
    at_work = "select count(distinct claimed_by) from postrow.history"
    wait_for(lambda: db.value(at_work) > 5, what="more than those that are killed to have worked", deadline=30)
    for n in range(5):
        fleet.kill(f"w{n}")
    ledger.balances()
    assert db.value(at_work) > 5
