"""Messages that kill their process, processes that die or freeze with messages in hand, and who sweeps them."""

import itertools
import signal
import time
from datetime import UTC, datetime, timedelta

import psycopg

import postrow


def ran(db, id_):
    return db.value("select count(*) from ran where message = %s", [id_])


def ended(db):
    return db.value("select count(*) from postrow.history")


def test_one_message_of_a_hundred_kills_its_process_and_the_others_are_done(fleet, db, wait_for):
    # how often one of them dies with the killer is a matter of luck: tests/sql has that they do not come back together
    ids = [db.put({"order": n}, tenant=("acme", "beta")[n % 2], max_attempts=100) for n in range(99)]
    killer = db.put({"order": 99, "kills": True}, tenant="acme")
    fleet.supervise()
    fleet.start("w1", slots=50, max_attempts=5, retry=0.5)
    wait_for(lambda: db.value("select count(*) from postrow.message") == 0, deadline=60)
    assert db.value("select count(*) from postrow.history where id = any(%s)", [ids]) == 99
    (dead,) = db.rows("select * from postrow.dead_letter")
    assert (dead.id, dead.reason, dead.attempt) == (killer, "lease", 5)
    assert [failure["type"] for failure in dead.failures] == ["lease_expired"] * 5
    assert "worker w1" in dead.failures[0]["message"]
    assert ran(db, killer) == 5
    wait_for(lambda: fleet.restarts >= 5, what="the last restart")
    assert fleet.restarts == 5


def test_one_crash_costs_one_attempt_and_backs_off(fleet, db, wait_for):
    id_ = db.put({"order": 1, "kills": True})
    fleet.start("w1", max_attempts=3, retry=3600)
    wait_for(lambda: not fleet.alive("w1"))
    fleet.start("w2", max_attempts=3, retry=3600)
    message = wait_for(lambda: (m := db.message(id_)) and m.claim_token is None and m.failures and m)
    assert message.attempt == 1
    assert message.available_at - datetime.now(UTC) > timedelta(seconds=1700)


def test_graceful_restarts_spend_no_attempt(fleet, db, wait_for):
    id_ = db.put({"order": 1, "seconds": 600})
    for n in range(4):
        fleet.start("w1", max_attempts=2, lease=600, grace=0)
        wait_for(lambda n=n: ran(db, id_) == n + 1)
        fleet.send("w1", signal.SIGTERM)
        wait_for(lambda: not fleet.alive("w1"))
        assert (db.message(id_).attempt, db.message(id_).claim_token) == (0, None)


def test_a_worker_that_does_not_know_a_queue_sweeps_it_by_the_queues_own_rules(fleet, db, wait_for):
    fleet.start("a", queues=["q1"], max_attempts=1)
    id_ = db.put({"order": 1, "seconds": 600}, queue="q2")
    fleet.start("b", queues=["q2"], max_attempts=5, retry=3600, sweep=False)
    wait_for(lambda: ran(db, id_))
    fleet.kill("b")
    message = wait_for(lambda: (m := db.message(id_)) and m.claim_token is None and m)
    assert (message.attempt, len(message.failures)) == (1, 1)
    assert message.available_at - datetime.now(UTC) > timedelta(seconds=1700)
    assert db.value("select count(*) from postrow.dead_letter") == 0


def test_a_sweep_without_any_handler_gives_the_message_back(fleet, db, wait_for):
    id_ = db.put({"order": 1, "seconds": 600})
    fleet.start("w1", sweep=False, retry=0)
    wait_for(lambda: ran(db, id_))
    fleet.kill("w1")
    wait_for(lambda: db.rows("select 1 from postrow.sweep()") and db.message(id_).claim_token is None)
    assert db.message(id_).attempt == 1
    fleet.start("w2", sweep=False)
    wait_for(lambda: ran(db, id_) == 2)


def test_an_orphan_is_found_when_its_workers_row_is_gone(fleet, db, wait_for):
    id_ = db.put({"order": 1, "seconds": 600})
    fleet.start("w1", retry=3600, sweep=False)  # a sweeper that dies is missed ten seconds later
    fleet.start("w2", queues=["other"])
    wait_for(lambda: ran(db, id_) and db.value("select count(*) from postrow.worker") == 2)
    fleet.kill("w1")
    db.rows("delete from postrow.worker")
    began = time.monotonic()
    wait_for(lambda: db.message(id_).claim_token is None)
    assert time.monotonic() - began < 6  # the lease and a sweep, and some


def test_a_new_process_of_the_same_name_does_not_own_what_the_dead_one_held(fleet, db, wait_for):
    id_ = db.put({"order": 1, "seconds": 600})
    fleet.start("w1", retry=3600)
    wait_for(lambda: ran(db, id_))
    fleet.kill("w1")
    fleet.start("w1", queues=["other"])  # it beats under the name, and runs nothing of this queue
    wait_for(lambda: db.rows("select 1 from postrow.worker where name = 'w1' and 'other' = any (queues)"))
    message = wait_for(lambda: (m := db.message(id_)) and m.claim_token is None and m)
    assert message.attempt == 1


def test_whatever_a_frozen_worker_says_after_another_has_its_messages_is_refused(fleet, db, wait_for, lock_of):
    """Done, failed, retry, snooze, bury: each with the old token, each changes nothing."""
    kinds = [None, "fail", "retry", "snooze", "bury"]
    ids = [db.put({"order": n, "held": True, "late": kind}) for n, kind in enumerate(kinds)]
    first, second = map(lock_of, (1, 2))  # what each attempt is held by
    fleet.start("w1", retry=0)
    wait_for(lambda: db.value("select count(*) from ran") == 5)
    fleet.send("w1", signal.SIGSTOP)
    fleet.start("w2", retry=0, lease=60)
    wait_for(lambda: db.value("select count(*) from ran where worker = 'w2' and attempt = 2") == 5)
    held = db.rows("select id, claim_token, attempt, claimed_by, failures from postrow.message order by id")
    first.close()
    fleet.send("w1", signal.SIGCONT)
    wait_for(lambda: db.value("select count(*) from ran where worker = 'w1' and ended is not null") == 5)
    wait_for(lambda: refused(fleet) >= 5, what="all five late outcomes to be refused")
    assert db.rows("select id, claim_token, attempt, claimed_by, failures from postrow.message order by id") == held
    with psycopg.connect(db.dsn, autocommit=True) as conn:
        assert conn.execute("select 1 from postrow.claim('orders', 10, worker => 'w3')").fetchall() == []
    second.close()
    wait_for(lambda: ended(db) == 5)
    assert {(row.id, row.claimed_by, row.attempt) for row in db.rows("select * from postrow.history")} == {
        (id_, "w2", 2) for id_ in ids
    }
    assert db.value("select count(*) from postrow.dead_letter") == 0


def test_an_effect_in_the_messages_own_transaction_happens_once_though_workers_are_killed(fleet, db, wait_for):
    with psycopg.connect(db.dsn) as conn:
        sent = postrow.enqueue_many(conn, "orders", [{"order": n, "effect": True} for n in range(600)])
    fleet.supervise()
    for name in ("w1", "w2"):
        fleet.start(name, retry=0)
    for n in range(6):
        done = ended(db)
        wait_for(lambda done=done: ended(db) >= done + 20, what="20 more to be done")
        fleet.kill(("w1", "w2")[n % 2])
    wait_for(lambda: ended(db) == 600, deadline=60)
    ids = sorted(s.id for s in sent)
    assert [row.message for row in db.rows("select message from effect order by message")] == ids
    follow_ups = db.rows("select payload ->> 'for' as id from postrow.message where queue = 'receipts' order by 1")
    assert [row.id for row in follow_ups] == [str(id_) for id_ in ids]
    assert db.value("select count(*) from ran") > 600, "no worker was killed in the middle of a message"


def test_no_second_of_a_schedule_is_lost_or_doubled_though_its_schedulers_are_killed(fleet, db, wait_for):
    db.rows(
        "select postrow.put_schedule('tick', 'orders', '{\"order\": 0}', 'cron', '* * * * * *', "
        "date_trunc('second', clock_timestamp()) + interval '1 s', missed => 'all')"
    )
    fleet.supervise()
    for name in ("w1", "w2"):
        fleet.start(name, retry=0)
    for n in range(6):
        done = ended(db)
        wait_for(lambda done=done: ended(db) > done, what="the next tick")
        fleet.kill(("w1", "w2")[n % 2])
    enough = ended(db) + 3
    wait_for(lambda: ended(db) >= enough)
    db.rows("select postrow.pause_schedule('tick', true)")
    wait_for(lambda: db.value("select count(*) from postrow.message") == 0, deadline=60)
    ticks = [
        datetime.fromisoformat(row.at)
        for row in db.rows("select headers ->> 'scheduled_for' as at from postrow.history order by 1")
    ]
    assert [b - a for a, b in itertools.pairwise(ticks)] == [timedelta(seconds=1)] * (len(ticks) - 1)


def refused(fleet):
    """How often the thawed worker said that it gave up a message: its heartbeat does, or its acker."""
    said = fleet.said
    return said.count("lost the lease of") + said.count("was refused: another worker")
