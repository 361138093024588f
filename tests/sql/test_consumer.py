from datetime import timedelta
from uuid import uuid4

import pytest

CENTURY = timedelta(days=36_500)


def seconds(number):
    return timedelta(seconds=number)


def register(pg, handler="send_welcome", queue="q", **options):
    pg.rows("register_consumer", queue=queue, handler=handler, **options)


def consumer(pg, queue="q", tenant="*"):
    found = pg.query("select *, xmin from postrow.consumer where queue = %s and tenant = %s", [queue, tenant])
    return found[0] if found else None


def test_a_consumer_has_the_documented_defaults(pg, clock):
    pg.query("set local application_name = 'worker-1'")
    register(pg)

    row = consumer(pg)
    assert (row.handler, row.kind, row.lease) == ("send_welcome", "worker", seconds(60))
    assert (row.retry, row.retry_base, row.retry_factor) == ("exponential", seconds(10), 2)
    assert (row.retry_cap, row.retry_jitter) == (seconds(3600), True)
    assert (row.max_attempts, row.keep_history) == (5, True)
    assert (row.registered_by, row.registered_at) == ("postrow@worker-1", clock.now)


def test_the_same_handler_with_another_policy_the_last_start_wins(pg):
    register(pg, lease=seconds(30), max_attempts=3)
    register(pg, lease=seconds(90), retry="linear")

    row = consumer(pg)
    assert (row.lease, row.retry, row.max_attempts) == (seconds(90), "linear", 5)


def test_a_replica_that_says_the_same_writes_nothing(pg):
    with pg.conn.transaction():  # a subtransaction's own xmin: a rewrite would show
        register(pg, max_attempts=3)
    before = consumer(pg)
    with pg.conn.transaction():
        register(pg, max_attempts=3)

    assert consumer(pg) == before


def test_another_handler_is_refused_and_the_present_one_is_named(pg):
    register(pg)
    error = pg.refused("register_consumer", queue="q", handler="send_goodbye")

    assert error.sqlstate == "PW005"
    assert "send_welcome" in error.diag.message_primary
    assert "postrow consumer replace q send_goodbye" in error.diag.message_hint
    assert consumer(pg).handler == "send_welcome"


def test_another_handler_for_a_tenant_of_its_own_is_refused_with_the_tenant(pg):
    register(pg, tenant="acme")
    error = pg.refused("register_consumer", queue="q", handler="other", tenant="acme")

    assert "tenant acme" in str(error)


def test_replace_changes_the_handler(pg):
    register(pg)
    register(pg, "send_goodbye", replace=True)

    assert consumer(pg).handler == "send_goodbye"


@pytest.mark.parametrize("replace", [False, None])
def test_replace_has_to_be_true(pg, replace):
    register(pg)

    assert pg.refused("register_consumer", queue="q", handler="other", replace=replace).sqlstate == "PW005"


def test_unregister_says_whether_there_was_one(pg):
    register(pg)

    assert pg.value("unregister_consumer", queue="q", tenant="acme") is False
    assert pg.value("unregister_consumer", queue="q") is True
    assert pg.value("unregister_consumer", queue="q") is False
    assert consumer(pg) is None


def test_a_row_for_one_tenant_wins_over_the_row_for_all(pg, clock):
    register(pg, lease=seconds(10), max_attempts=1)
    register(
        pg,
        "for_acme",
        tenant="acme",
        lease=seconds(500),
        retry="constant",
        retry_base=seconds(7),
        retry_jitter=False,
        max_attempts=9,
        keep_history=False,
    )
    pg.put(tenant="acme")
    pg.put(tenant="other")
    of_acme, of_other = sorted(pg.take(2), key=lambda row: row.tenant)

    assert of_acme.lease_until - clock.now == seconds(500)
    assert of_other.lease_until - clock.now == seconds(10)
    pg.settle("fail", [of_acme, of_other], errors=["x", "x"])
    assert pg.find("message", of_acme.id).available_at == clock.now + seconds(7)
    assert pg.find("dead_letter", of_other.id)  # max_attempts of the row for all

    clock.advance(10)
    pg.put(tenant="other")
    of_acme, of_other = sorted(pg.take(2), key=lambda row: row.tenant)
    pg.settle("ack", [of_acme, of_other])
    assert pg.find("history", of_acme.id) is None
    assert pg.find("history", of_other.id)


def test_the_lease_of_each_tenant_holds_in_claim_lanes_too(pg, clock):
    register(pg, lease=seconds(10))
    register(pg, tenant="acme", lease=seconds(500))
    for tenant in ("acme", "other"):
        pg.put(tenant=tenant)
    rows = pg.rows(
        "claim_lanes", queue="q", tenants=["acme", "other"], priorities=[0, 0], afters=[None, None], per_lane=1, limit=2
    )

    assert [row.lease_until - clock.now for row in rows] == [seconds(500), seconds(10)]


def test_a_queue_without_a_consumer_has_the_defaults(pg, clock):
    sent = pg.put()
    for attempt in range(1, 6):
        (claimed,) = pg.take()
        assert claimed.lease_until - clock.now == seconds(60)
        pg.settle("fail", [claimed], errors=["x"])
        if attempt < 5:
            delay = pg.find("message", sent).available_at - clock.now
            assert seconds(10 * 2 ** (attempt - 1) / 2) <= delay <= seconds(10 * 2 ** (attempt - 1))
            clock.advance(3600)
    assert pg.find("dead_letter", sent).reason == "attempts"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lease": None}, "cannot be null"),
        ({"lease": seconds(0)}, "lease is 00:00:00"),
        ({"lease": seconds(-1)}, "lease is -1 days"),
        ({"lease": timedelta(days=367)}, "lease is 367 days"),
        ({"max_attempts": None}, "cannot be null"),
        ({"max_attempts": 0}, "max_attempts is 0"),
        ({"max_attempts": -1}, "max_attempts is -1"),
        ({"keep_history": None}, "cannot be null"),
        ({"retry_jitter": None}, "cannot be null"),
        ({"kind": None}, "cannot be null"),
        ({"retry": None}, "retry is NULL"),
        ({"retry": ""}, "retry is ''"),
        ({"retry": "Exponential"}, "retry is 'Exponential'"),
        ({"retry_base": None}, "retry_base"),
        ({"retry_base": seconds(-1)}, "retry_base is negative"),
        ({"retry_cap": None}, "retry_cap"),
        ({"retry_cap": seconds(9)}, "retry_cap is shorter than retry_base"),
        ({"retry_cap": timedelta(days=366_000)}, "retry_cap is over 1000 years"),
        ({"retry_factor": None}, "retry_factor"),
        ({"retry_factor": 0}, "retry_factor is 0"),
        ({"retry_factor": 0.5}, "retry_factor is 0.5"),
        ({"retry_factor": -2}, "retry_factor is -2"),
        ({"retry_factor": 1001}, "retry_factor is 1001"),
        ({"retry_factor": float("nan")}, "retry_factor is NaN"),
        ({"retry_factor": float("inf")}, "retry_factor is Infinity"),
    ],
    ids=repr,
)
def test_a_policy_outside_its_range_is_refused_by_name(pg, options, said):
    error = pg.refused("register_consumer", queue="q", handler="h", **options)

    assert error.sqlstate == "PW003"
    assert said in str(error)
    assert consumer(pg) is None


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 2**31 - 1},
        {"lease": timedelta(microseconds=1)},
        {"lease": timedelta(days=366)},
        {"retry_base": seconds(0), "retry_cap": seconds(0)},
        {"retry_cap": CENTURY},
        {"retry_factor": 1},
        {"retry_factor": 1000.0},
    ],
    ids=repr,
)
def test_a_policy_at_its_edge_is_taken(pg, options):
    register(pg, **options)

    assert consumer(pg)


def test_a_worker_that_says_that_it_lives_is_told_how_many_share_its_queues(pg, clock):
    def beat(name, *queues, worker=None):
        return pg.value("beat", id=worker or uuid4(), name=name, host="h", pid=1, queues=list(queues), version="0")

    mine = uuid4()
    assert beat("w1", "a", "b", worker=mine) == 1
    assert beat("w2", "b") == 2
    assert beat("w3", "c") == 1
    assert beat("w1", "a", "b", worker=mine) == 2
    clock.advance(61)
    assert beat("w1", "a", "b", worker=mine) == 1


def test_a_worker_says_whose_each_of_its_queues_is(pg):
    says = {"id": uuid4(), "name": "w", "host": "h", "pid": 1, "queues": ["a", "b"], "version": "0"}
    assert pg.refused("beat", **says, tenants=["*"]).sqlstate == "PW003"
    pg.rows("beat", **says, tenants=["*", "acme"])
    pg.rows("beat", **says, tenants=["acme", "*"])
    assert pg.query("select tenants from postrow.worker") == [(["acme", "*"],)]
