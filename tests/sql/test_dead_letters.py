from datetime import timedelta
from uuid import uuid4

import pytest


def seconds(number):
    return timedelta(seconds=number)


def die(pg, **options):
    """A dead letter: its id."""
    pg.put(**options)
    (row,) = pg.take(worker="w1")
    assert pg.settle("bury", [row], reasons=["card closed"]) == ["accepted"]
    return row.id


def redrive(pg, id_, tenant="default"):
    return pg.value("redrive", id=id_, tenant=tenant)


def resolve(pg, id_, resolution="handled", reason="by hand", tenant="default"):
    pg.rows("resolve", id=id_, tenant=tenant, resolution=resolution, reason=reason)


def test_a_redrive_is_a_new_message_due_now_that_keeps_what_it_was(pg, clock):
    old = die(pg, payload={"a": 1}, headers={"h": 1}, subject="s", priority=4, max_attempts=9, target="w1")
    clock.advance(100)
    new = redrive(pg, old)

    assert new != old
    row = pg.find("message", new)
    assert (row.queue, row.tenant, row.payload, row.headers, row.subject) == ("q", "default", {"a": 1}, {"h": 1}, "s")
    assert (row.priority, row.max_attempts, row.attempt, row.target) == (4, 9, 0, None)
    assert row.enqueued_at == row.available_at == clock.now
    assert [f["message"] for f in row.failures] == ["card closed"]
    assert [claimed.id for claimed in pg.take()] == [new]


def test_the_dead_letter_stays_and_says_what_it_became(pg, clock):
    old = die(pg)
    clock.advance(100)
    pg.query("set local application_name = 'ops'")
    new = redrive(pg, old)

    dead = pg.find("dead_letter", old)
    assert (dead.resolution, dead.redriven_as, dead.resolved_at) == ("redriven", new, clock.now)
    assert dead.resolved_by == "postrow@ops"


def test_a_redrive_drops_an_expiry_that_has_passed_and_keeps_one_that_has_not(pg, clock):
    passed = die(pg, expires_at=clock.now + seconds(10))
    ahead = die(pg, expires_at=clock.now + seconds(1_000))
    clock.advance(100)

    assert pg.find("message", redrive(pg, passed)).expires_at is None
    assert pg.find("message", redrive(pg, ahead)).expires_at == clock.now + seconds(900)


def test_a_redriven_message_has_all_its_attempts_again(pg, clock):
    pg.put(max_attempts=2)
    for _ in range(2):
        (row,) = pg.take()
        pg.settle("fail", [row], errors=["x"], retry_at=[clock.now])
    new = redrive(pg, row.id)

    for _ in range(2):
        assert pg.find("message", new)
        pg.settle("fail", pg.take(), errors=["y"], retry_at=[clock.now])
    dead = pg.find("dead_letter", new)
    assert [f["message"] for f in dead.failures] == ["x", "x", "y", "y"]


def test_a_dead_letter_is_redriven_once(pg):
    old = die(pg)
    new = redrive(pg, old)
    error = pg.refused("redrive", id=old, tenant="default")

    assert error.sqlstate == "PW009"
    assert "redriven at" in str(error)
    assert str(new) in str(error)
    assert pg.value("depth", queue="q") == 1


@pytest.mark.parametrize("resolution", ["ignored", "handled"])
def test_a_resolution_is_recorded_with_its_reason(pg, clock, resolution):
    old = die(pg)
    clock.advance(5)
    resolve(pg, old, resolution, "paid by phone")

    dead = pg.find("dead_letter", old)
    assert (dead.resolution, dead.resolution_reason) == (resolution, "paid by phone")
    assert (dead.resolved_at, dead.resolved_by.split("@")[0], dead.redriven_as) == (clock.now, "postrow", None)
    assert pg.value("depth", queue="q") == 0


def test_what_was_resolved_is_neither_redriven_nor_resolved_again(pg):
    old = die(pg)
    resolve(pg, old)

    assert pg.refused("redrive", id=old, tenant="default").sqlstate == "PW009"
    error = pg.refused("resolve", id=old, tenant="default", resolution="ignored", reason="x")
    assert error.sqlstate == "PW009"
    assert "handled" in str(error)


@pytest.mark.parametrize("resolution", ["redriven", "", "Handled", None])
def test_a_resolution_of_another_name_is_refused(pg, resolution):
    error = pg.refused("resolve", id=die(pg), tenant="default", resolution=resolution, reason="x")

    assert error.sqlstate == "PW003"
    assert "ignored or handled" in str(error)


@pytest.mark.parametrize("reason", ["", None])
def test_a_resolution_without_a_reason_is_refused(pg, reason):
    assert pg.refused("resolve", id=die(pg), tenant="default", resolution="ignored", reason=reason).sqlstate == "PW003"


def test_a_long_reason_is_cut_not_refused(pg):
    old = die(pg)
    resolve(pg, old, reason="é" * 2_000)

    reason = pg.find("dead_letter", old).resolution_reason
    assert len(reason.encode()) <= 800
    assert set(reason) == {"é"}


def test_a_dead_letter_belongs_to_its_tenant(pg):
    old = die(pg, tenant="acme")

    for call in ({"function": "redrive"}, {"function": "resolve", "resolution": "ignored", "reason": "x"}):
        error = pg.refused(id=old, tenant="default", **call)
        assert error.sqlstate == "PW009"
        assert str(old) in str(error)
    assert redrive(pg, old, "acme")


def test_what_is_not_dead_is_not_found(pg):
    alive = pg.put()

    assert pg.refused("redrive", id=alive, tenant="default").sqlstate == "PW009"
    assert pg.refused("redrive", id=uuid4(), tenant="default").sqlstate == "PW009"
    assert pg.refused("redrive", id=None, tenant="default").sqlstate == "PW009"


def test_every_reason_of_death_can_be_redriven(pg, clock):
    buried = die(pg)
    expired = pg.put(expires_at=clock.now + seconds(1))
    failed = pg.put(queue="f", max_attempts=1)
    pg.settle("fail", pg.take(queue="f"), errors=["x"])
    lost = pg.put(queue="l", max_attempts=1)
    pg.take(queue="l")
    clock.advance(100)
    pg.rows("sweep")

    reasons = {row.id: row.reason for row in pg.query("select id, reason from postrow.dead_letter")}
    assert reasons == {buried: "buried", expired: "expired", failed: "attempts", lost: "lease"}
    for id_ in reasons:
        assert pg.find("message", redrive(pg, id_))


def test_dead_letters_are_kept_for_ever_unless_asked_otherwise(pg, clock):
    pg.put()
    pg.settle("bury", pg.take(), reasons=["x"])
    clock.advance(400 * 86_400)
    pg.rows("sweep", step="dead")
    assert len(pg.query("select 1 from postrow.dead_letter")) == 1
    pg.value("configure", name="dead_letter_days", value="30")
    ((_, done, more),) = pg.rows("sweep", step="dead")
    assert (done, more) == (1, False)
    assert pg.query("select 1 from postrow.dead_letter") == []


def test_the_days_of_a_dead_letter_count_from_the_decision_about_it(pg, clock):
    pg.value("configure", name="dead_letter_days", value="30")
    id_ = pg.put()
    pg.settle("bury", pg.take(), reasons=["x"])
    clock.advance(29 * 86_400)
    pg.value("resolve", id=id_, tenant="default", resolution="handled", reason="by hand")
    clock.advance(29 * 86_400)
    pg.rows("sweep", step="dead")
    assert pg.find("dead_letter", id_)
    clock.advance(2 * 86_400)
    pg.rows("sweep", step="dead")
    assert pg.find("dead_letter", id_) is None


def test_a_sweep_deletes_as_many_old_dead_letters_as_it_may_and_those_of_groups_too(pg, clock):
    pg.value("configure", name="dead_letter_days", value="30")
    pg.rows("register_consumer", queue="q", handler="h", tenant="blocks", on_dead="block")
    for tenant in ("acme", "beta", "blocks"):
        for group in (None, "g", "h"):
            pg.put(tenant=tenant, group_key=group)
    pg.settle("bury", pg.take(100), reasons=["x"] * 9)
    clock.advance(31 * 86_400)
    done = [pg.row("sweep", step="dead", limit=4) for _ in range(3)]
    assert [(row.done, row.more) for row in done] == [(4, True), (3, False), (0, False)]
    left = pg.query("select id, tenant, group_key from postrow.dead_letter order by group_key")
    assert [(row.tenant, row.group_key) for row in left] == [("blocks", "g"), ("blocks", "h")]
    pg.value("resolve", id=left[0].id, tenant="blocks", resolution="handled", reason="by hand")
    clock.advance(31 * 86_400)
    assert pg.row("sweep", step="dead").done == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("dead_letter_days", "-1"), ("dead_letter_days", "36501"), ("max_hops", "0"), ("max_hops", "1001")],
)
def test_settings_outside_their_range_are_refused(pg, name, value):
    assert pg.refused("configure", name=name, value=value).sqlstate == "PW003"
