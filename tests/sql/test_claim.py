from collections import Counter
from datetime import timedelta
from uuid import uuid4

import pytest

LAST_INT = 2**31 - 1
TRAIL = timedelta(seconds=0.2)


def seconds(number):
    return timedelta(seconds=number)


def put_many(pg, count, **options):
    return [row.id for row in pg.rows("enqueue_many", queue="q", messages=[{"payload": 1}] * count, **options)]


def ids(rows):
    return [row.id for row in rows]


def test_a_claim_sets_the_token_the_lease_and_the_attempt(pg, clock):
    sent = pg.put(payload={"a": 1}, headers={"h": 1}, subject="s", max_attempts=7, tenant="acme", priority=3)
    clock.advance(5)
    (got,) = pg.take(lease=seconds(30), worker="w1")

    assert (got.id, got.tenant, got.queue, got.priority) == (sent, "acme", "q", 3)
    assert (got.payload, got.headers, got.subject) == ({"a": 1}, {"h": 1}, "s")
    assert (got.attempt, got.max_attempts, got.failures) == (1, 7, None)
    assert (got.claimed_at, got.lease_until) == (clock.now, clock.now + seconds(30))
    assert got.due_at == got.enqueued_at == clock.now - seconds(5)
    row = pg.find("message", sent)
    assert row.claim_token == got.claim_token is not None
    assert (row.claimed_at, row.claimed_by, row.available_at, row.attempt) == (clock.now, "w1", got.lease_until, 1)


def test_a_claimed_message_is_not_given_again(pg):
    pg.put()

    assert len(pg.take()) == 1
    assert pg.take() == []


def test_an_empty_queue_gives_nothing(pg):
    assert pg.take() == []
    assert pg.take(tenant="nobody") == []


def test_one_call_has_one_token_and_the_next_another(pg):
    put_many(pg, 6)
    first, second = pg.take(3), pg.take(3)

    assert len({row.claim_token for row in first}) == len({row.claim_token for row in second}) == 1
    assert first[0].claim_token != second[0].claim_token


def test_the_caller_may_bring_the_token(pg):
    pg.put()
    mine = uuid4()

    assert pg.take(token=mine)[0].claim_token == mine


def test_without_a_lease_the_consumers_holds_else_a_minute(pg, clock):
    pg.put()
    assert pg.take()[0].lease_until == clock.now + seconds(60)

    pg.rows("register_consumer", queue="q", handler="h", lease=seconds(7))
    pg.put()
    assert pg.take()[0].lease_until == clock.now + seconds(7)


def test_the_lease_counts_from_the_real_moment_not_from_the_start_of_the_transaction(pg):
    pg.put()
    pg.query("select pg_sleep(0.03)")  # now() stands still meanwhile
    (got,) = pg.take(lease=seconds(5))

    (row,) = pg.query("select now() as started, postrow.clock() as now")
    assert got.lease_until >= row.started + seconds(5.03)
    assert got.lease_until <= row.now + seconds(5)


def test_a_message_that_becomes_due_inside_the_callers_transaction_is_found(pg, wait_for):
    sent = pg.put(delay=seconds(0.03))
    assert pg.take() == []

    assert ids(wait_for(pg.take, what="the message to become due")) == [sent]


def test_a_scheduled_message_is_given_when_it_is_due_and_not_before(pg, clock):
    sent = pg.put(delay=seconds(10))
    clock.advance(9.999)
    assert pg.take() == []
    clock.advance(0.001)
    assert ids(pg.take()) == [sent]


def test_the_oldest_comes_first_by_due_time(pg, clock):
    late = pg.put(delay=seconds(3))
    soon = pg.put(delay=seconds(1))
    middle = pg.put(delay=seconds(2))
    clock.advance(10)
    now = pg.put()

    assert ids(pg.take(3)) == [soon, middle, late]
    assert ids(pg.take(3)) == [now]


def test_the_lower_priority_number_comes_first(pg):
    later, normal, first = pg.put(priority=5), pg.put(), pg.put(priority=-5)

    assert ids(pg.take(2, tenant="default")) == [first, normal]
    assert ids(pg.take(2, tenant="default")) == [later]


def test_the_lower_priority_number_comes_first_over_all_tenants(pg):
    pg.put(tenant="a", priority=5)
    urgent = {pg.put(tenant=tenant, priority=-5) for tenant in ("b", "c")}

    assert set(ids(pg.take(2))) == urgent


def test_scheduled_messages_of_a_priority_do_not_hide_the_next(pg):
    pg.put(priority=-5, delay=seconds(60))
    ready = pg.put(priority=5)

    assert ids(pg.take(10)) == [ready]
    pg.put(priority=-5, delay=seconds(60))
    ready = pg.put(priority=5)
    assert ids(pg.take(10, tenant="default")) == [ready]


def test_a_claim_gives_no_more_than_its_limit(pg):
    sent = put_many(pg, 10)

    assert ids(pg.take(3)) == sent[:3]
    assert ids(pg.take(100)) == sent[3:]


@pytest.mark.parametrize("tenant", [None, "default"])
def test_the_largest_limit_is_a_limit(pg, tenant):
    for priority in (0, 1):
        put_many(pg, 2, priority=priority)
        put_many(pg, 2, priority=priority, tenant="other")

    assert len(pg.take(LAST_INT, tenant=tenant)) == (4 if tenant else 8)


@pytest.mark.parametrize("limit", [0, -1, -(2**31), None])
def test_a_limit_below_one_is_refused(pg, limit):
    pg.put()
    error = pg.refused("claim", queue="q", limit=limit)

    assert error.sqlstate == "PW003"
    assert "limit is" in str(error)


@pytest.mark.parametrize("lease", [seconds(0), seconds(-1), timedelta(days=367)])
def test_a_lease_outside_its_range_is_refused(pg, lease):
    assert pg.refused("claim", queue="q", limit=1, lease=lease).sqlstate == "PW003"


@pytest.mark.parametrize("max_bytes", [0, -1])
def test_max_bytes_below_one_is_refused(pg, max_bytes):
    assert pg.refused("claim", queue="q", limit=1, max_bytes=max_bytes).sqlstate == "PW003"


@pytest.mark.parametrize("worker", ["", "a b"])
def test_a_badly_named_worker_is_refused(pg, worker):
    assert pg.refused("claim", queue="q", limit=1, worker=worker).sqlstate == "PW002"


def test_max_bytes_bounds_the_payloads_of_a_claim(pg):
    sent = [pg.put(payload="x" * 98) for _ in range(5)]  # 100 bytes each as JSON text

    assert ids(pg.take(10, max_bytes=250)) == sent[:2]
    assert ids(pg.take(10, max_bytes=300)) == sent[2:]


def test_a_payload_over_max_bytes_is_given_alone(pg):
    sent = [pg.put(payload="x" * 1_000) for _ in range(3)]

    assert ids(pg.take(10, max_bytes=10)) == sent[:1]
    assert ids(pg.take(10, max_bytes=1)) == sent[1:2]


def test_max_bytes_counts_over_lanes_and_targeted_messages(pg):
    for options in ({"target": "w1"}, {"priority": 1}, {"priority": 2}, {"tenant": "other", "priority": 3}):
        pg.put(payload="x" * 98, **options)

    assert [row.priority for row in pg.take(10, worker="w1", max_bytes=200)] == [0, 1]
    assert [row.priority for row in pg.take(10, worker="w1", max_bytes=150)] == [2]
    assert [row.priority for row in pg.take(10, worker="w1", max_bytes=1)] == [3]


def test_an_expired_message_is_not_given(pg, clock):
    pg.put(expires_at=clock.now + seconds(5))
    alive = pg.put(expires_at=clock.now + seconds(60))
    clock.advance(5)

    assert ids(pg.take(10)) == [alive]


def test_an_expired_targeted_message_is_not_given(pg, clock):
    pg.put(expires_at=clock.now + seconds(5), target="w1")
    clock.advance(5)

    assert pg.take(10, worker="w1") == []


def test_a_targeted_message_goes_to_its_worker_and_to_nobody_else(pg):
    sent = pg.put(target="laptop")

    assert pg.take() == []
    assert pg.take(worker="other") == []
    assert pg.take(worker="Laptop") == []
    (got,) = pg.take(worker="laptop")
    assert (got.id, got.target, got.lane) == (sent, "laptop", 0)


def test_a_workers_own_messages_come_first_over_lanes_and_priorities(pg):
    pg.put(priority=-100)
    second = pg.put(target="w1", priority=9)
    first = pg.put(target="w1", tenant="a", priority=5)

    assert ids(pg.take(2, worker="w1")) == [first, second]


def test_targeted_messages_count_towards_the_limit(pg):
    put_many(pg, 3)
    put_many(pg, 3, target="w1")

    got = pg.take(4, worker="w1")
    assert [row.target for row in got] == ["w1"] * 3 + [None]
    assert len(pg.take(4, worker="w1")) == 2


def test_a_claim_of_one_tenant_gives_no_other(pg):
    pg.put(tenant="a")
    pg.put(tenant="a", target="w1")
    mine = {pg.put(tenant="b"), pg.put(tenant="b", target="w1"), pg.put(tenant="b", priority=3)}

    assert set(ids(pg.take(10, tenant="b", worker="w1"))) == mine


def test_all_tenants_get_their_share(pg):
    for tenant in ("a", "b", "c"):
        put_many(pg, 10, tenant=tenant)

    assert Counter(row.tenant for row in pg.take(9)) == {"a": 3, "b": 3, "c": 3}


def test_what_a_quiet_tenant_leaves_goes_to_the_busy_one(pg):
    put_many(pg, 50, tenant="busy")
    put_many(pg, 2, tenant="quiet")

    assert Counter(row.tenant for row in pg.take(20)) == {"busy": 18, "quiet": 2}


def test_every_claim_begins_at_another_tenant(pg):
    for number in range(8):
        put_many(pg, 40, tenant=f"t{number}")

    first = {pg.take(1)[0].tenant for _ in range(40)}
    assert len(first) > 3  # by chance alone one in 10**17 that it is 3 or fewer


def test_attempts_are_counted_at_the_claim(pg, clock):
    sent = pg.put()
    for attempt in (1, 2, 3):
        (got,) = pg.take()
        assert got.attempt == attempt == pg.find("message", sent).attempt
        pg.settle("fail", [got], errors=["x"], retry_at=[clock.now])


def test_the_failures_of_earlier_attempts_come_with_the_message(pg, clock):
    pg.put()
    pg.settle("fail", pg.take(worker="w1"), errors=["first"], types=["Boom"], retry_at=[clock.now])

    (got,) = pg.take()
    assert [(f["attempt"], f["worker"], f["type"], f["message"]) for f in got.failures] == [(1, "w1", "Boom", "first")]


def test_without_after_there_are_only_messages(pg):
    pg.put(delay=seconds(60))
    pg.put(priority=1)

    assert None not in ids(pg.take(10))
    assert pg.take(10) == []


def test_with_after_a_lane_that_gave_none_says_how_far_it_was_seen(pg, clock):
    pg.put(delay=seconds(60))
    sent = pg.put(priority=1)

    empty, got = pg.take(10, after=clock.now - seconds(9))
    assert (empty.id, empty.tenant, empty.priority, empty.frontier) == (None, "default", 0, clock.now - TRAIL)
    assert (got.id, got.priority, got.frontier) == (sent, 1, clock.now - TRAIL)


def test_after_a_full_batch_the_frontier_is_the_last_message_less_the_trail(pg, clock):
    put_many(pg, 3)
    clock.advance(10)
    got = pg.take(2, after="-infinity")

    assert [row.frontier for row in got] == [got[1].due_at - TRAIL] * 2


def test_a_claim_starts_at_after_and_includes_it(pg, clock):
    pg.put()
    clock.advance(10)
    at = pg.put()

    assert ids(pg.take(10, after=clock.now)) == [at]
    assert len(pg.take(10, after="-infinity")) == 1


def test_what_was_claimed_comes_back_through_the_frontier_when_it_is_retried(pg, clock):
    sent = pg.put()
    clock.advance(100)
    (got,) = pg.take(10, after="-infinity")
    pg.settle("fail", [got], errors=["x"], retry_at=[clock.now])

    assert ids(pg.take(10, after=got.frontier)) == [sent]


def test_no_priority_starves(pg):
    """Of claims that have a choice about one in twenty begins with the last priority."""
    pg.query("set local postrow.aging = ''")
    for priority in (0, 1, 2):
        for _ in range(200):
            pg.put(priority=priority)
    first = [pg.take(limit=1)[0].priority for _ in range(200)]
    assert 1 <= first.count(2) <= 30
    assert first.count(1) == 0
    assert first.count(0) >= 170


def test_without_aging_the_first_priority_is_first_always(pg):
    pg.query("set local postrow.aging = off")
    for priority in (0, 1):
        for _ in range(100):
            pg.put(priority=priority)
    assert {pg.take(limit=1)[0].priority for _ in range(100)} == {0}
