"""Limits: messages in flight, and claims a period; of a queue, and of each tenant in it."""

from collections import Counter
from datetime import timedelta

import psycopg
import pytest


def limit(pg, queue="q", tenant="*", **limits):
    pg.rows("register_consumer", queue=queue, handler="h", tenant=tenant, **limits)


def put(pg, count, **options):
    return [pg.put(payload=n, **options) for n in range(count)]


def claim(pg, limit=10, **options):
    return pg.take(limit, **options)


def claim_of_each_tenant(pg, limit=10, **options):
    tenants = [row[0] for row in pg.query("select distinct tenant from postrow.message order by 1")]
    return [row for tenant in tenants for row in pg.take(limit, tenant=tenant, **options)]


def claim_lanes(pg, limit=10, **options):
    lanes = pg.rows("lanes", queue="q", worker=options.get("worker"))
    return pg.rows(
        "claim_lanes",
        queue="q",
        tenants=[lane.tenant for lane in lanes],
        priorities=[lane.priority for lane in lanes],
        afters=[None] * len(lanes),
        per_lane=limit,
        limit=limit,
        **options,
    )


def claim_from_lanes(pg, limit=10, **options):
    return [row for row in claim_lanes(pg, limit, **options) if row.id is not None]


@pytest.fixture(params=[claim, claim_of_each_tenant, claim_from_lanes], ids=lambda f: f.__name__)
def take(request):
    """Each way to claim."""
    return request.param


def test_no_more_are_in_flight_than_the_limit_says(pg, take):
    limit(pg, max_in_flight=3)
    put(pg, 5)
    put(pg, 5, tenant="acme")
    rows = take(pg)
    assert len(rows) == 3
    assert take(pg) == []
    for end, more in (("ack", {}), ("release", {}), ("bury", {"reasons": ["no"]})):
        assert pg.settle(end, rows[:1], **more) == ["accepted"]
        again = take(pg)
        assert len(again) == 1, f"{end} makes room"
        rows = [*rows[1:], *again]
    pg.settle("fail", rows, errors=["no"] * 3)
    assert len(take(pg)) == 3


def test_each_tenant_has_a_limit_of_its_own(pg, take):
    limit(pg, tenant_max_in_flight=2)
    put(pg, 5)
    put(pg, 5, tenant="acme")
    rows = take(pg)
    assert Counter(row.tenant for row in rows) == {"default": 2, "acme": 2}
    pg.settle("ack", [row for row in rows if row.tenant == "acme"][:1])
    assert [row.tenant for row in take(pg)] == ["acme"]


def test_both_limits_hold(pg, take):
    limit(pg, max_in_flight=3, tenant_max_in_flight=2)
    put(pg, 5)
    put(pg, 5, tenant="acme")
    assert sorted(Counter(row.tenant for row in take(pg)).values()) == [1, 2]


def test_a_tenants_own_consumer_has_limits_of_its_own(pg, take):
    limit(pg, max_in_flight=2)
    limit(pg, tenant="acme", max_in_flight=3)
    put(pg, 5)
    put(pg, 5, tenant="acme")
    put(pg, 5, tenant="beta")
    counts = Counter(row.tenant for row in take(pg))
    assert counts["acme"] == 3
    assert counts["default"] + counts["beta"] == 2


def test_a_consumer_without_limits_beside_one_with_them_is_free(pg, take):
    limit(pg, max_in_flight=1)
    limit(pg, tenant="acme")
    put(pg, 5)
    put(pg, 5, tenant="acme")
    assert Counter(row.tenant for row in take(pg)) == {"default": 1, "acme": 5}


def test_what_is_in_flight_in_another_queue_does_not_count(pg, take):
    limit(pg, max_in_flight=2)
    put(pg, 3)
    put(pg, 3, queue="r")
    assert len(pg.take(10, queue="r")) == 3
    assert len(take(pg)) == 2


def test_a_dead_workers_places_come_back_when_its_leases_are_swept(pg, take, clock):
    limit(pg, max_in_flight=2)
    put(pg, 4)
    first = take(pg, lease="60 s")
    assert len(first) == 2
    clock.advance(61)
    assert take(pg) == [], "their tokens hold, they may be extended"
    assert pg.settle("extend", first[:1], lease="60 s") == ["accepted"]
    pg.rows("sweep", step="leases")
    assert len(take(pg)) == 1


def test_where_nobody_sweeps_they_come_back_a_minute_later(pg, take, clock):
    limit(pg, max_in_flight=2)
    put(pg, 4)
    assert len(take(pg, lease="60 s")) == 2
    clock.advance(119)
    assert take(pg) == []
    clock.advance(2)
    assert len(take(pg)) == 2


def test_a_lease_that_was_extended_keeps_its_place(pg, take, clock):
    limit(pg, max_in_flight=1)
    put(pg, 2)
    rows = take(pg, lease="60 s")
    clock.advance(59)
    pg.settle("extend", rows, lease="60 s")
    clock.advance(59)
    assert take(pg) == []


def test_targeted_messages_and_priorities_count(pg, take):
    limit(pg, max_in_flight=3)
    put(pg, 2, target="w")
    put(pg, 2, priority=1)
    put(pg, 2, priority=2)
    rows = take(pg, worker="w")
    assert [(row.target, row.priority) for row in rows] == [("w", 0), ("w", 0), (None, 1)]
    assert take(pg, worker="w") == []


def test_a_rate_gives_so_many_at_once_and_then_evenly(pg, take, clock):
    limit(pg, rate=3, rate_period="30 s")
    put(pg, 20)
    assert len(take(pg)) == 3
    assert take(pg) == []
    clock.advance(9.9)
    assert take(pg) == []
    clock.advance(0.2)
    assert len(take(pg)) == 1
    clock.advance(20)
    assert len(take(pg)) == 2
    clock.advance(3600)
    assert len(take(pg)) == 3, "no more than the bucket holds"


def test_each_tenant_has_a_rate_of_its_own(pg, take, clock):
    limit(pg, tenant_rate=2, tenant_rate_period="10 s", rate=3, rate_period="1 hour")
    put(pg, 5)
    put(pg, 5, tenant="acme")
    assert sorted(Counter(row.tenant for row in take(pg)).values()) == [1, 2]
    clock.advance(10)
    assert take(pg) == [], "the queue's is spent"


def test_a_retry_counts_again_and_nothing_comes_back(pg, take, clock):
    limit(pg, rate=2, rate_period="1 hour")
    put(pg, 1)
    pg.settle("release", take(pg))
    pg.settle("fail", take(pg), errors=["no"], retry_at=[clock.now])
    assert take(pg) == []


def test_a_clock_that_is_set_back_gives_no_tokens_and_takes_none(pg, take, clock):
    limit(pg, rate=2, rate_period="10 s")
    put(pg, 5)
    assert len(take(pg, 1)) == 1
    clock.advance(-3600)
    pg.query("update postrow.message set available_at = '2000-01-01' where claim_token is null")
    assert len(take(pg)) == 1
    clock.advance(10)
    assert len(take(pg)) == 2


def test_an_empty_bucket_fills_up_again_after_the_clock_was_set_back(pg, take, clock):
    limit(pg, rate=2, rate_period="10 s")
    put(pg, 5)
    assert len(take(pg)) == 2
    clock.advance(-3600)
    pg.query("update postrow.message set available_at = '2000-01-01' where claim_token is null")
    assert take(pg) == []
    clock.advance(5)
    assert len(take(pg)) == 1


def test_a_claim_that_waited_for_the_lock_does_not_fill_a_bucket_twice(pg, clock):
    """It read the clock before the claim that had the lock: a bucket at that moment would fill up anew from there."""
    limit(pg, rate=2, rate_period="10 s")
    put(pg, 5)
    assert len(claim(pg, 1)) == 1
    begun = clock.now - timedelta(seconds=5)
    rows = pg.query(
        "select * from postrow.claim_limited('q', '{default}', '{0}', '{null}', 1, 1, '60 s', null, "
        "gen_random_uuid(), null, null, %s, true)",
        [begun],
    )
    assert len([row for row in rows if row.id]) == 1
    assert pg.query("select at, tokens from postrow.bucket") == [(clock.now, 0)]
    assert claim(pg) == []


def test_a_rollback_gives_the_tokens_back(pg, take):
    limit(pg, rate=1, rate_period="1 hour")
    put(pg, 2)
    with pg.conn.transaction(force_rollback=True):
        assert len(take(pg)) == 1
    assert len(take(pg)) == 1
    assert take(pg) == []


def test_a_lane_that_waits_for_a_rate_says_for_how_long(pg, clock):
    limit(pg, rate=2, rate_period="10 s")
    put(pg, 5)
    (first, second) = claim_lanes(pg)
    assert None not in (first.id, second.id)
    (lane,) = claim_lanes(pg)
    assert (lane.id, lane.frontier, lane.due_at - lane.claimed_at) == (None, None, timedelta(seconds=5))


def test_a_lane_that_waits_for_messages_in_flight_has_no_frontier(pg):
    limit(pg, max_in_flight=1)
    put(pg, 2)
    claim_lanes(pg)
    (lane,) = claim_lanes(pg)
    assert (lane.id, lane.frontier, lane.due_at - lane.claimed_at) == (None, None, timedelta(milliseconds=250))


def test_a_share_for_each_lane_holds_within_a_limit(pg):
    limit(pg, max_in_flight=4)
    for tenant in ("a", "b", "c", "d"):
        put(pg, 5, tenant=tenant)
    assert Counter(row.tenant for row in pg.take(8)) == {"a": 1, "b": 1, "c": 1, "d": 1} | {}


def test_groups_keep_their_order_within_a_rate(pg, take, clock):
    limit(pg, rate=3, rate_period="30 s")
    for n in range(5):
        pg.put(payload=n, group_key="g", priority=n % 2)
    rows = take(pg)
    assert [row.payload for row in rows] == [0, 1, 2]
    pg.settle("ack", rows)
    assert take(pg) == []
    clock.advance(30)
    assert [row.payload for row in take(pg)] == [3, 4]


def test_of_a_group_one_is_in_flight_where_that_is_limited_and_the_places_are_for_others(pg, take):
    limit(pg, max_in_flight=3)
    for n in range(5):
        pg.put(payload=n, group_key="g", priority=n % 2)
    for n in "ab":
        pg.put(payload=n, priority=2)
    rows = [*take(pg), *take(pg)]
    assert [row.payload for row in rows] == [0, "a", "b"]
    pg.settle("ack", rows)
    assert [row.payload for row in take(pg)] == [1]


def test_max_bytes_and_pauses_hold_within_a_limit(pg, take):
    limit(pg, max_in_flight=5)
    for _ in range(3):
        pg.put(payload="x" * 100)
    pg.put(tenant="acme")
    pg.value("pause", tenant="acme")
    assert len(take(pg, max_bytes=210)) == 2


@pytest.mark.parametrize("name", ["a", "a.", "a0", "aa", "b", "A", "0"])
def test_a_claim_of_one_tenant_within_a_limit_takes_nothing_of_its_neighbours(pg, name):
    limit(pg, max_in_flight=100)
    for tenant in ("a", "a.", "a0", "aa", "b", "A", "0"):
        for options in ({}, {"priority": 1}, {"priority": 2, "target": "w"}):
            pg.put(tenant=tenant, **options)
    assert [row.tenant for row in claim(pg, 100, tenant=name, worker="w")] == [name] * 3


@pytest.mark.parametrize("take", [claim, claim_from_lanes])
@pytest.mark.parametrize("options", [{}, {"target": "w"}], ids=["plain", "targeted"])
def test_max_bytes_bounds_the_whole_claim_and_not_each_tenants_part(pg, take, options):
    limit(pg, max_in_flight=100)
    for tenant in ("acme", "beta", "gamma"):
        pg.put(payload="x" * 100, tenant=tenant, **options)
    assert len(take(pg, max_bytes=110, worker="w")) == 1
    assert len(take(pg, max_bytes=1, worker="w")) == 1, "one fits always"
    assert len(take(pg, max_bytes=1, worker="w")) == 1


@pytest.mark.parametrize("mode", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_a_claim_within_a_limit_needs_to_see_what_is_committed(committed, functions_on, take, mode):
    with psycopg.connect(committed) as conn:
        conn.isolation_level = psycopg.IsolationLevel[mode]
        pg = functions_on(conn)
        limit(pg, max_in_flight=1)
        put(pg, 1)
        with pytest.raises(psycopg.Error) as caught:
            take(pg)
        assert (caught.value.sqlstate, "READ COMMITTED" in caught.value.diag.message_hint) == ("PW003", True)
        conn.rollback()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_in_flight": 0}, "max_in_flight is 0"),
        ({"tenant_max_in_flight": -1}, "tenant_max_in_flight is -1"),
        ({"rate": 0}, "rate is 0"),
        ({"rate": 1, "rate_period": None}, "rate_period is null"),
        ({"rate": 1, "rate_period": "0 s"}, "rate_period is 00:00:00"),
        ({"tenant_rate": 1, "tenant_rate_period": "2 years"}, "tenant_rate_period is 2 years"),
        ({"on_dead": "stop"}, "on_dead is 'stop'"),
        ({"on_dead": None}, "on_dead is NULL"),
    ],
)
def test_a_bad_limit_is_refused(pg, options, said):
    error = pg.refused("register_consumer", queue="q", handler="h", **options)
    assert (error.sqlstate, error.diag.message_primary) == ("PW003", said)


def test_a_limit_that_is_taken_away_is_gone(pg, take):
    limit(pg, max_in_flight=1, rate=1, rate_period="1 hour")
    put(pg, 3)
    assert len(take(pg)) == 1
    limit(pg)
    assert len(take(pg)) == 2


def test_a_full_bucket_is_swept_and_one_that_fills_up_is_not(pg, clock):
    limit(pg, rate=1, rate_period="10 days")
    limit(pg, queue="r", rate=1, rate_period="1 s")
    pg.put()
    pg.put("r")
    assert len(pg.take()) == len(pg.take(queue="r")) == 1
    clock.advance(2 * 86400)
    pg.rows("sweep", step="workers")
    assert pg.query("select queue from postrow.bucket") == [("q",)]
