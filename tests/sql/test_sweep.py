from datetime import timedelta
from uuid import uuid4

import pytest

STEPS = ["leases", "expired", "targets", "groups", "seen", "history", "dead", "workers"]


def seconds(number):
    return timedelta(seconds=number)


def sweep(pg, step, **options):
    return pg.row("sweep", step=step, **options)


def test_a_sweep_without_a_step_runs_each_once(pg):
    assert [row.step for row in pg.rows("sweep")] == STEPS


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_found_nothing_says_so(pg, step):
    assert sweep(pg, step) == (step, 0, False)


@pytest.mark.parametrize("step", ["", "lease", "Leases", "all"])
def test_an_unknown_step_is_refused_with_the_known_ones(pg, step):
    error = pg.refused("sweep", step=step)

    assert error.sqlstate == "PW003"
    assert "leases, expired, targets, groups, seen, history, dead or workers" in str(error)


@pytest.mark.parametrize("limit", [0, -1, None])
def test_a_limit_below_one_is_refused(pg, limit):
    assert pg.refused("sweep", limit=limit).sqlstate == "PW003"


def test_the_largest_limit_is_a_limit(pg):
    assert len(pg.rows("sweep", limit=2**31 - 1)) == len(STEPS)


# leases


def test_an_expired_lease_is_a_failure_by_the_policy(pg, clock):
    pg.rows("register_consumer", queue="q", handler="h", retry_jitter=False, lease=seconds(5))
    pg.put()
    (row,) = pg.take(worker="w1")
    clock.advance(6)
    assert sweep(pg, "leases") == ("leases", 1, False)

    free = pg.find("message", row.id)
    assert (free.claim_token, free.claimed_by, free.attempt) == (None, None, 1)
    assert free.available_at == clock.now + seconds(10)
    (failure,) = free.failures
    assert (failure["type"], failure["worker"], failure["attempt"]) == ("lease_expired", "w1", 1)
    assert "w1" in failure["message"]


def test_a_lease_that_holds_is_left_alone(pg, clock):
    pg.put()
    (row,) = pg.take(lease=seconds(5))
    clock.advance(5)
    before = pg.find("message", row.id)

    assert sweep(pg, "leases").done == 0
    assert pg.find("message", row.id) == before


def test_a_lease_that_was_extended_is_left_alone(pg, clock):
    pg.put()
    rows = pg.take(lease=seconds(5))
    clock.advance(4)
    pg.settle("extend", rows, lease=seconds(5))
    clock.advance(4)

    assert sweep(pg, "leases").done == 0
    clock.advance(2)
    assert sweep(pg, "leases").done == 1


def test_a_claim_writes_a_fresh_lease_whatever_the_row_had(pg, clock):
    sent = pg.put()
    pg.query("update postrow.message set available_at = available_at - interval '2 hours' where id = %s", [sent])
    pg.take(lease=seconds(5))

    assert sweep(pg, "leases").done == 0


def test_a_message_that_kills_its_worker_starts_as_often_as_it_may_then_is_dead(pg, clock):
    sent = pg.put(max_attempts=3)
    for start in (1, 2, 3):
        assert pg.take(worker=f"w{start}")[0].attempt == start
        clock.advance(3600)
        assert sweep(pg, "leases").done == 1
        if start == 1:  # one crash leaves two attempts, after a back-off
            row = pg.find("message", sent)
            assert seconds(5) <= row.available_at - clock.now <= seconds(10)
        clock.advance(3600)

    assert pg.take() == []
    dead = pg.find("dead_letter", sent)
    assert (dead.reason, dead.attempt) == ("lease", 3)
    assert [(f["type"], f["worker"]) for f in dead.failures] == [("lease_expired", f"w{n}") for n in (1, 2, 3)]


def test_messages_that_died_together_do_not_come_back_together(pg, clock):
    pg.rows("enqueue_many", queue="q", messages=[{"payload": 1}] * 50)
    clock.advance(1)
    assert len(pg.take(50)) == 50
    clock.advance(3600)
    sweep(pg, "leases")

    moments = {row.available_at for row in pg.query("select available_at from postrow.message")}
    assert len(moments) > 40


def test_a_consumer_of_another_process_decides_how_its_message_is_retried(pg, clock):
    # the sweeper knows no handler: the policy stands in the database
    pg.rows("register_consumer", queue="q2", handler="k2", max_attempts=9, retry="constant", retry_jitter=False)
    sent = pg.put(queue="q2")
    pg.take(queue="q2")
    clock.advance(3600)
    sweep(pg, "leases")

    row = pg.find("message", sent)
    assert (row.attempt, row.available_at) == (1, clock.now + seconds(10))


def test_an_orphan_is_found_by_its_lease_not_by_its_workers_row(pg, clock):
    worker = uuid4()
    pg.rows("beat", id=worker, name="w1", host="h", pid=1, queues=["q"], version="1")
    sent = pg.put()
    pg.take(worker="w1")
    pg.rows("leave", id=worker)
    clock.advance(61)
    pg.rows("beat", id=uuid4(), name="w1", host="h", pid=2, queues=["q"], version="1")  # the name again

    assert sweep(pg, "leases").done == 1
    assert pg.find("message", sent).claim_token is None


def test_an_expired_lease_clears_the_target(pg, clock):
    sent = pg.put(target="laptop", target_for=timedelta(days=1))
    pg.take(worker="laptop")
    clock.advance(61)
    sweep(pg, "leases")

    row = pg.find("message", sent)
    assert (row.target, row.target_until) == (None, None)
    clock.advance(60)
    assert len(pg.take(worker="other")) == 1


def test_more_says_that_the_limit_was_reached(pg, clock):
    for _ in range(5):
        pg.put()
    assert len(pg.take(5)) == 5
    clock.advance(61)

    assert [sweep(pg, "leases", limit=2)[1:] for _ in range(3)] == [(2, True), (2, True), (1, False)]


def test_the_leases_that_ended_first_are_swept_first(pg, clock):
    for lease in (30, 10, 20):
        pg.put(payload=lease)
        pg.take(lease=seconds(lease))
    clock.advance(60)
    sweep(pg, "leases", limit=1)

    assert [row.payload for row in pg.query("select payload from postrow.message where claim_token is null")] == [10]


def test_a_lease_that_the_frontier_passed_is_found_within_ten_seconds(pg, clock):
    pg.put()
    (row,) = pg.take(lease=seconds(60))
    sweep(pg, "leases")  # a deep one; its frontier is now
    pg.expire(row.id, ago=5)  # as if a claim committed late, with a lease that had ended
    clock.advance(1)
    assert sweep(pg, "leases").done == 0

    clock.advance(9.5)
    assert sweep(pg, "leases").done == 1


@pytest.mark.parametrize("microseconds", range(10))
def test_the_frontier_never_passes_an_expired_lease_that_was_beyond_the_limit(pg, clock, microseconds):
    start = clock.now.replace(microsecond=0)
    for moment in (start, start + timedelta(seconds=1, microseconds=microseconds)):
        clock.set(moment)
        pg.put()
        assert len(pg.take(lease=seconds(60))) == 1
    clock.set(start + seconds(100))

    assert [sweep(pg, "leases", limit=1).done for _ in range(3)] == [1, 1, 0]


@pytest.mark.parametrize(
    "garbage", ["", "x", "1.0", "1 2", "999999999999.000000 999999999999.000000", "'; drop", "é" * 99]
)
def test_a_frontier_that_does_not_parse_counts_as_none(pg, clock, garbage):
    pg.query("select set_config('postrow.swept_to', %s, true)", [garbage])
    pg.put()
    pg.take()
    clock.advance(61)

    assert sweep(pg, "leases").done == 1


@pytest.mark.parametrize(("ahead", "found_after"), [(30, 31), (60, 61), (61, 0), (-1, 0)])
def test_the_next_deep_pass_comes_when_it_was_set_for_and_a_minute_later_at_most(pg, clock, ahead, found_after):
    """A slow one sets it for later."""
    pg.put()
    pg.take(lease=seconds(1))
    clock.advance(5)
    now = clock.now.timestamp()
    pg.query("select set_config('postrow.swept_to', %s, true)", [f"{now:.6f} {now + ahead:.6f}"])
    clock.advance(max(found_after - 2, 0))
    assert sweep(pg, "leases").done == (0 if found_after else 1)
    clock.advance(2)
    assert sweep(pg, "leases").done == (1 if found_after else 0)


def test_a_frontier_ahead_of_a_clock_that_was_stepped_back_hides_nothing(pg, clock):
    clock.advance(3600)
    sweep(pg, "leases")
    clock.advance(-3600)
    pg.put()
    pg.take(lease=seconds(1))
    clock.advance(2)

    assert sweep(pg, "leases").done == 1


# expired


def test_an_expired_message_is_a_dead_letter(pg, clock):
    gone = pg.put(expires_at=clock.now + seconds(5), payload={"a": 1})
    alive = pg.put(expires_at=clock.now + seconds(50))
    clock.advance(5)

    assert sweep(pg, "expired") == ("expired", 1, False)
    dead = pg.find("dead_letter", gone)
    assert (dead.reason, dead.payload, dead.attempt, dead.died_at) == ("expired", {"a": 1}, 0, clock.now)
    assert pg.find("message", alive)


def test_a_claimed_message_does_not_expire_under_its_worker(pg, clock):
    pg.put(expires_at=clock.now + seconds(5))
    rows = pg.take(lease=seconds(60))
    clock.advance(10)

    assert sweep(pg, "expired").done == 0
    assert pg.settle("ack", rows) == ["accepted"]


def test_a_message_that_expired_while_it_waited_for_its_retry_keeps_its_failures(pg, clock):
    sent = pg.put(expires_at=clock.now + seconds(5))
    pg.settle("fail", pg.take(), errors=["x"])
    clock.advance(6)
    sweep(pg, "expired")

    assert [f["message"] for f in pg.find("dead_letter", sent).failures] == ["x"]


def test_expired_messages_go_by_the_limit(pg, clock):
    for _ in range(3):
        pg.put(expires_at=clock.now + seconds(5))
    clock.advance(5)

    assert [sweep(pg, "expired", limit=2)[1:] for _ in range(2)] == [(2, True), (1, False)]


# targets


def test_a_message_whose_target_did_not_come_in_time_is_anybodys(pg, clock):
    sent = pg.put(target="laptop", target_for=seconds(10))
    for_ever = pg.put(target="laptop")
    clock.advance(9)
    assert sweep(pg, "targets").done == 0
    clock.advance(1)

    assert sweep(pg, "targets") == ("targets", 1, False)
    assert [row.id for row in pg.take(10)] == [sent]
    assert pg.find("message", for_ever).target == "laptop"


def test_a_target_that_came_in_time_keeps_its_claim(pg, clock):
    pg.put(target="laptop", target_for=seconds(10))
    rows = pg.take(worker="laptop")
    clock.advance(20)

    assert sweep(pg, "targets").done == 0
    assert pg.settle("ack", rows) == ["accepted"]


def test_target_for_counts_from_when_the_message_is_due(pg, clock):
    pg.put(target="laptop", target_for=seconds(10), delay=seconds(100))
    clock.advance(50)
    assert sweep(pg, "targets").done == 0
    clock.advance(60)
    assert sweep(pg, "targets").done == 1


def test_targets_go_by_the_limit(pg, clock):
    for number in range(3):
        pg.put(target="laptop", target_for=seconds(10), queue=f"q{number}")
    clock.advance(10)

    assert [sweep(pg, "targets", limit=2)[1:] for _ in range(2)] == [(2, True), (1, False)]


# seen and workers


def test_the_ledger_is_swept_by_age_and_what_lives_stays_a_day_more(pg, clock):
    settled, living, dead = (pg.put(id=uuid4(), queue=queue) for queue in ("a", "b", "c"))
    pg.settle("ack", pg.take(queue="a"))
    pg.settle("bury", pg.take(queue="c"), reasons=["x"])
    clock.advance(7 * 86_400 - 1)
    assert sweep(pg, "seen").done == 0
    clock.advance(1)

    assert sweep(pg, "seen") == ("seen", 3, False)
    left = {row.message_id: row.until for row in pg.query("select message_id, until from postrow.seen")}
    assert left == dict.fromkeys((living, dead), clock.now + timedelta(days=1))
    assert settled not in left


def test_the_ledger_goes_by_the_limit(pg, clock):
    for _ in range(3):
        pg.put(id=uuid4())
    pg.settle("ack", pg.take(3))
    clock.advance(8 * 86_400)

    assert [sweep(pg, "seen", limit=2)[1:] for _ in range(2)] == [(2, True), (1, False)]


def test_workers_that_were_not_heard_of_for_a_day_are_forgotten(pg, clock):
    old, new = uuid4(), uuid4()
    pg.rows("beat", id=old, name="old", host="h", pid=1, queues=["q"], version="1")
    clock.advance(86_000)
    pg.rows("beat", id=new, name="new", host="h", pid=2, queues=["q"], version="1")
    clock.advance(1_000)

    assert sweep(pg, "workers") == ("workers", 1, False)
    assert [row.id for row in pg.query("select id from postrow.worker")] == [new]


def test_a_beat_renews_the_workers_row(pg, clock):
    mine = uuid4()
    started = clock.now
    pg.rows("beat", id=mine, name="w", host="h", pid=1, queues=["q"], version="1")
    clock.advance(5)
    pg.rows("beat", id=mine, name="w", host="h", pid=1, queues=["q", "r"], version="1")

    (row,) = pg.query("select * from postrow.worker")
    assert (row.started_at, row.beat_at, row.queues) == (started, clock.now, ["q", "r"])
