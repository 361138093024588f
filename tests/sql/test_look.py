from datetime import timedelta
from uuid import uuid4

import pytest


def seconds(number):
    return timedelta(seconds=number)


@pytest.fixture
def mixed(pg, clock):
    """A queue with a message in every state, for tenant a; and a ready one of tenant b, and one of another queue."""
    pg.put(tenant="a", payload="claimed")
    (claimed,) = pg.take(tenant="a", lease=seconds(600))
    clock.advance(1)
    ids = {
        "claimed": claimed.id,
        "ready": pg.put(tenant="a"),
        "targeted": pg.put(tenant="a", target="laptop"),
        "scheduled": pg.put(tenant="a", delay=seconds(60)),
        "targeted later": pg.put(tenant="a", target="laptop", delay=seconds(30)),
        "expired": pg.put(tenant="a", expires_at=clock.now + seconds(1)),
        "b": pg.put(tenant="b"),
        "other": pg.put(queue="other"),
    }
    clock.advance(1)
    return ids


def test_depth_counts_all_that_is_unfinished(pg, mixed):
    assert pg.value("depth", queue="q") == 7
    assert pg.value("depth", queue="q", tenant="a") == 6
    assert pg.value("depth", queue="q", tenant="b") == 1
    assert pg.value("depth", queue="q", tenant="c") == 0
    assert pg.value("depth", queue="nobody") == 0


def test_depth_pending_counts_what_is_ready_now(pg, mixed, clock):
    assert pg.value("depth_pending", queue="q") == 3  # ready, targeted, b
    assert pg.value("depth_pending", queue="q", tenant="a") == 2
    clock.advance(60)
    assert pg.value("depth_pending", queue="q", tenant="a") == 4


def test_depths_are_exact_after_every_step(pg, clock):
    def depths():
        return pg.value("depth", queue="q"), pg.value("depth_pending", queue="q")

    pg.rows("enqueue_many", queue="q", messages=[{"payload": 1}] * 10)
    clock.advance(1)
    assert depths() == (10, 10)
    rows = pg.take(6)
    assert depths() == (10, 4)
    pg.settle("ack", rows[:2])
    assert depths() == (8, 4)
    pg.settle("release", rows[2:3])
    assert depths() == (8, 5)
    pg.settle("fail", rows[3:4], errors=["x"])
    assert depths() == (8, 5)
    pg.settle("bury", rows[4:5], reasons=["x"])
    assert depths() == (7, 5)
    clock.advance(61)
    assert depths() == (7, 6)  # the failed one is due; the expired lease holds until the sweep
    pg.rows("sweep", step="leases")
    clock.advance(60)
    assert depths() == (7, 7)


def test_next_due_is_the_first_free_message(pg, clock):
    assert pg.value("next_due", queue="q") is None
    pg.put(delay=seconds(60), priority=-5)
    assert pg.value("next_due", queue="q") == clock.now + seconds(60)
    pg.put(tenant="b", priority=5, delay=seconds(30))
    assert pg.value("next_due", queue="q") == clock.now + seconds(30)
    pg.put(target="laptop", delay=seconds(10))
    assert pg.value("next_due", queue="q") == clock.now + seconds(10)
    pg.put(queue="other")
    assert pg.value("next_due", queue="q") == clock.now + seconds(10)
    pg.put()
    assert pg.value("next_due", queue="q") == clock.now
    pg.take()
    assert pg.value("next_due", queue="q") == clock.now + seconds(10)


def test_next_due_tells_of_nothing_that_is_paused(pg):
    pg.put()
    pg.put(target="laptop", tenant="acme")
    pg.value("pause", queue="q", tenant="default")
    assert pg.value("next_due", queue="q") is not None
    pg.value("pause", queue="q", tenant="acme")
    assert pg.value("next_due", queue="q") is None
    pg.value("resume", queue="q", tenant="acme")
    pg.value("resume", queue="q", tenant="default")
    pg.value("pause", queue="q")
    assert pg.value("next_due", queue="q") is None


def test_lanes_says_which_are_ready_and_when_each_is_due(pg, clock):
    pg.put(tenant="a", priority=5, delay=seconds(60))
    pg.put(tenant="a")
    pg.put(tenant="a", delay=seconds(5))
    pg.put(tenant="b", delay=seconds(7))
    pg.put(tenant="c", target="laptop")
    pg.put(tenant="d")
    pg.take(tenant="d")

    assert pg.rows("lanes", queue="q") == [
        ("a", 0, True, clock.now),
        ("a", 5, False, clock.now + seconds(60)),
        ("b", 0, False, clock.now + seconds(7)),
    ]
    assert pg.rows("lanes", queue="q", worker="laptop")[-1] == ("c", 0, True, clock.now)
    assert len(pg.rows("lanes", queue="q", worker="other")) == 3


def test_a_lane_with_free_and_targeted_messages_is_one_lane(pg, clock):
    pg.put(delay=seconds(60))
    pg.put(delay=seconds(5), target="laptop")

    assert pg.rows("lanes", queue="q", worker="laptop") == [("default", 0, False, clock.now + seconds(5))]


def test_many_lanes_are_all_found(pg, clock):
    messages = [
        {"payload": 1, "tenant": f"t{tenant}", "priority": priority} for tenant in range(20) for priority in (-1, 0, 1)
    ]
    pg.rows("enqueue_many", queue="q", messages=messages * 3)

    assert len(pg.rows("lanes", queue="q")) == 60


@pytest.mark.parametrize("ends", [[], ["a"], ["0", "Z", "a", "zz"], ["B", "aa"], ["b", "b.c"]])
def test_lanes_of_stretches_of_tenants_are_the_lanes(pg, clock, ends):
    for tenant, priority in (
        ("a", 3),
        ("a", -3),
        ("b", 0),
        ("Z", 32_767),
        ("Z", -32_768),
        ("zz", 0),
        ("0", 0),
        ("b.c", 1),
    ):
        pg.put(tenant=tenant, priority=priority, delay=seconds(priority % 2))
        pg.put(tenant=tenant, priority=7, target="laptop")
    for worker in (None, "laptop"):
        every = [tuple(row) for row in pg.rows("lanes", queue="q", worker=worker)]
        assert len(every) == (14 if worker else 8)
        stretches = zip([None, *ends], [*ends, None], strict=True)
        found = [
            pg.rows("lanes", queue="q", worker=worker, after_tenant=after, to_tenant=to) for after, to in stretches
        ]
        assert [tuple(row) for page in found for row in page] == every


# status


def status(pg):
    return {(row.queue, row.tenant): row for row in pg.rows("status")}


def test_status_has_a_line_for_each_queue_and_tenant(pg, mixed, clock):
    rows = status(pg)

    assert list(rows) == [("other", "default"), ("q", "a"), ("q", "b")]
    row = rows["q", "a"]
    assert (row.ready, row.scheduled, row.claimed, row.dead) == (3, 2, 1, 0)
    assert (row.oldest_ready, row.handler, row.workers) == (clock.now - seconds(1), None, 0)


def test_status_counts_dead_letters_that_nobody_has_decided(pg):
    pg.rows("enqueue_many", queue="q", messages=[{"payload": 1}] * 3)
    rows = pg.take(3)
    pg.settle("bury", rows, reasons=["x"] * 3)
    pg.rows("resolve", id=rows[0].id, tenant="default", resolution="ignored", reason="x")
    row = status(pg)["q", "default"]

    assert (row.dead, row.ready, row.oldest_ready) == (2, 0, None)


def test_status_names_the_handler_and_counts_the_workers_that_live(pg, clock):
    pg.rows("register_consumer", queue="q", handler="for_all")
    pg.rows("register_consumer", queue="q", handler="for_acme", tenant="acme")
    pg.put()
    pg.put(tenant="acme")
    for name, queues, age in (("w1", ["q"], 0), ("w2", ["other", "q"], 30), ("w3", ["q"], 61), ("w4", ["other"], 0)):
        pg.rows("beat", id=uuid4(), name=name, host="h", pid=1, queues=queues, version="1")
        pg.query("update postrow.worker set beat_at = beat_at - %s where name = %s", [seconds(age), name])

    rows = status(pg)
    assert (rows["q", "default"].handler, rows["q", "default"].workers) == ("for_all", 2)
    assert (rows["q", "acme"].handler, rows["q", "acme"].workers) == ("for_acme", 2)


def test_status_shows_a_consumer_that_has_nothing_to_do(pg):
    pg.rows("register_consumer", queue="idle", handler="h")

    assert list(status(pg)) == [("idle", "*")]
    pg.put(queue="idle")
    assert list(status(pg)) == [("idle", "default")]


# show and peek


def shown(pg, id_, **options):
    return [row[0] for row in pg.rows("show", id=id_, **options)]


def test_show_tells_the_state_wherever_the_message_is(pg, mixed, clock):
    (row,) = shown(pg, mixed["ready"])
    assert (row["state"], row["tenant"], row["queue"]) == ("ready", "a", "q")
    assert [shown(pg, mixed[name])[0]["state"] for name in ("scheduled", "claimed")] == ["scheduled", "claimed"]

    clock.advance(1)
    (claimed,) = pg.take(tenant="b")
    pg.settle("ack", [claimed])
    (row,) = shown(pg, claimed.id)
    assert (row["state"], row["outcome"], row["redriven_from"]) == ("done", "done", None)

    (claimed,) = pg.take(queue="other")
    pg.settle("bury", [claimed], reasons=["x"])
    new = pg.value("redrive", id=claimed.id, tenant="default")
    (row,) = shown(pg, claimed.id)
    assert (row["state"], row["reason"], row["redriven_as"]) == ("dead", "buried", str(new))
    (row,) = shown(pg, new)
    assert (row["state"], row["redriven_from"]) == ("ready", str(claimed.id))


def test_show_of_nothing_is_nothing(pg):
    assert shown(pg, uuid4()) == []


def test_show_of_an_id_in_two_tenants_gives_both_or_the_one_asked_for(pg):
    same = uuid4()
    for tenant in ("a", "b"):
        pg.put(tenant=tenant, id=same)

    assert sorted(row["tenant"] for row in shown(pg, same)) == ["a", "b"]
    assert [row["tenant"] for row in shown(pg, same, tenant="b")] == ["b"]


def test_peek_shows_the_first_messages_and_claims_none(pg, clock):
    later = pg.put(delay=seconds(60))
    low = pg.put(priority=5)
    first = pg.put()
    pg.put(queue="other")

    assert [row.id for row in pg.rows("peek", queue="q")] == [first, later, low]
    assert [row.id for row in pg.rows("peek", queue="q", limit=1)] == [first]
    assert pg.rows("peek", queue="q", tenant="nobody") == []
    assert pg.value("depth_pending", queue="q") == 2


@pytest.mark.parametrize("limit", [0, -1, None])
def test_peek_refuses_a_limit_below_one(pg, limit):
    assert pg.refused("peek", queue="q", limit=limit).sqlstate == "PW003"


def test_the_schema_has_a_version_of_two_numbers(pg):
    major, minor = pg.value("schema_version").split(".")

    assert major.isdigit()
    assert minor.isdigit()
