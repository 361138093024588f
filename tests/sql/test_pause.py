"""Pausing a queue, a tenant, or a tenant's queue; purging a queue."""

import pytest

ALL = {"claim": {}, "claim for one tenant": {"tenant": "acme"}}
PAUSES = [{"queue": "q"}, {"tenant": "acme"}, {"queue": "q", "tenant": "acme"}]


def lanes(pg, tenants=("acme",), **options):
    return pg.rows(
        "claim_lanes",
        queue="q",
        tenants=list(tenants),
        priorities=[0] * len(tenants),
        afters=[pg.value("clock")] * len(tenants) if options.pop("after", False) else [None] * len(tenants),
        per_lane=10,
        limit=10,
        **options,
    )


@pytest.mark.parametrize("what", PAUSES, ids=str)
def test_what_is_paused_is_not_claimed_until_it_is_resumed(pg, what):
    id_ = pg.put(tenant="acme")
    assert pg.value("pause", **what)
    assert not pg.value("pause", **what), "it is paused already"
    assert pg.take() == pg.take(tenant="acme") == []
    assert [row.id for row in lanes(pg)] == [None]
    assert pg.rows("lanes", queue="q") == []
    assert pg.put(tenant="acme"), "enqueue goes on"
    assert pg.value("resume", **what)
    assert not pg.value("resume", **what), "it is not paused any more"
    assert pg.take()[0].id == id_


def test_what_runs_goes_on_to_its_end(pg):
    pg.put()
    claimed = pg.take()
    pg.value("pause", queue="q")
    assert pg.settle("ack", claimed) == ["accepted"]


def test_a_pause_of_one_tenant_or_queue_leaves_the_others(pg):
    for tenant in ("acme", "beta"):
        for queue in ("q", "r"):
            pg.put(queue, tenant=tenant)
    pg.value("pause", queue="q", tenant="acme")
    assert [row.tenant for row in pg.take(10)] == ["beta"]
    assert {row.tenant for row in pg.take(10, queue="r")} == {"acme", "beta"}


def test_two_pauses_are_ended_one_by_one(pg):
    pg.put(tenant="acme")
    pg.value("pause", queue="q")
    pg.value("pause", tenant="acme")
    pg.value("resume", queue="q")
    assert pg.take() == []
    pg.value("resume", tenant="acme")
    assert len(pg.take()) == 1


def test_a_targeted_message_is_paused_too(pg):
    pg.put(tenant="acme", target="w1")
    pg.put(tenant="beta", target="w1")
    pg.value("pause", tenant="acme")
    assert {row.tenant for row in lanes(pg, ("acme", "beta"), worker="w1") if row.id} == {"beta"}
    pg.value("pause", queue="q")
    assert pg.take(worker="w1") == []


def test_a_paused_lane_has_no_frontier(pg):
    """What waits there was not seen: the next claim has to begin at the beginning."""
    pg.put(tenant="acme")
    pg.value("pause", queue="q")
    (row,) = lanes(pg, after=True)
    assert (row.id, row.frontier) == (None, None)


def test_pauses_are_listed_and_shown_in_the_status(pg):
    pg.put(tenant="acme")
    pg.put(tenant="beta")
    pg.value("pause", queue="q", tenant="acme", reason="their mail server is down")
    (row,) = pg.rows("pauses")
    assert (row.tenant, row.queue, row.reason) == ("acme", "q", "their mail server is down")
    assert {row.tenant: row.paused for row in pg.rows("status")} == {"acme": True, "beta": False}


@pytest.mark.parametrize("function", ["pause", "resume"])
def test_a_pause_of_nothing_in_particular_is_refused(pg, function):
    assert pg.refused(function).sqlstate == "PW003"
    assert pg.refused(function, queue="no good").sqlstate == "PW002"
    assert pg.refused(function, tenant="*").sqlstate == "PW002"


def test_purge_deletes_what_nobody_holds(pg):
    held = pg.put()
    pg.take()
    for options in ({}, {"delay": "1 hour"}, {"target": "w1"}, {"tenant": "acme"}):
        pg.put(**options)
    other = pg.put("r")
    assert pg.value("purge", queue="q", tenant="acme") == 1
    assert pg.value("purge", queue="q", limit=2) == 2
    assert pg.value("purge", queue="q", limit=2) == 1
    assert [row.id for row in pg.query("select id from postrow.message order by queue")] == [held, other]


def test_purge_refuses_bad_arguments(pg):
    assert pg.refused("purge", queue="no good").sqlstate == "PW002"
    assert pg.refused("purge", queue="q", tenant="no good").sqlstate == "PW002"
    assert pg.refused("purge", queue="q", limit=0).sqlstate == "PW003"
