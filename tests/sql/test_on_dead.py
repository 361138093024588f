"""A message that dies is told, once, to the handler of its queue's dead letters; what fails there is recorded."""

import pytest


def register(pg, **options):
    pg.value("register_consumer", queue="q", handler="h", tells_dead=True, **options)


def dead(pg, **options):
    id_ = pg.put(payload={"a": 1}, subject="order:1", headers={"trace": "x"}, **options)
    pg.settle("bury", pg.take(tenant=options.get("tenant")), reasons=["card closed"])
    return id_


def test_a_dead_letter_is_told_with_its_payload_and_failures(pg):
    register(pg)
    id_ = dead(pg)
    (told,) = pg.query("select * from postrow.message")
    assert (told.queue, told.payload, told.subject, told.parent_id) == ("q:dead", {"a": 1}, "order:1", id_)
    assert told.headers == {"trace": "x", "dead_letter": str(id_), "reason": "buried"}
    assert (told.max_attempts, told.failures[-1]["message"]) == (1, "card closed")
    assert pg.find("dead_letter", id_)


def test_without_a_handler_for_that_nothing_is_told(pg):
    pg.value("register_consumer", queue="q", handler="h")
    dead(pg)
    assert pg.query("select 1 from postrow.message") == []


def test_a_tenants_own_consumer_decides(pg):
    register(pg)
    pg.value("register_consumer", queue="q", handler="own", tenant="acme")
    dead(pg, tenant="acme")
    assert pg.query("select 1 from postrow.message") == []
    dead(pg, tenant="beta")
    assert len(pg.query("select 1 from postrow.message")) == 1


@pytest.mark.parametrize("how", ["attempts", "expired", "lease"])
def test_every_way_to_die_is_told(pg, clock, how):
    register(pg, max_attempts=1)
    id_ = pg.put(expires_at=pg.value("clock") + pg.query("select interval '1 hour' as i")[0].i)
    if how == "attempts":
        pg.settle("fail", pg.take(), errors=["x"])
    elif how == "expired":
        clock.advance(3601)
        pg.rows("sweep", step="expired")
    else:
        pg.take()
        pg.expire(id_)
        pg.rows("sweep", step="leases")
    (told,) = pg.query("select * from postrow.message")
    assert (told.parent_id, told.headers["reason"]) == (id_, how)


def test_what_fails_there_is_recorded_with_the_dead_letter_and_dies_no_second_time(pg):
    register(pg)
    pg.value("register_consumer", queue="q:dead", handler="d", max_attempts=1)
    id_ = dead(pg)
    pg.settle("fail", pg.take(queue="q:dead"), errors=["pager is down"], types=["PagerError"])
    assert pg.query("select 1 from postrow.message") == []
    (letter,) = pg.query("select * from postrow.dead_letter")
    assert letter.id == id_
    assert [(f["type"], f["message"]) for f in letter.failures] == [
        ("buried", "card closed"),
        ("on_dead: PagerError", "pager is down"),
    ]


@pytest.mark.parametrize("parent", [None, "00000000-0000-7000-8000-000000000000"])
def test_what_tells_of_a_dead_letter_that_is_not_there_is_one_itself(pg, parent):
    id_ = pg.put("q:dead", headers={"dead_letter": "x"}, parent_id=parent)
    pg.settle("bury", pg.take(queue="q:dead"), reasons=["x"])
    assert pg.find("dead_letter", id_)


def test_a_queue_of_that_name_without_a_dead_letter_is_as_any_other(pg):
    id_ = pg.put("q:dead")
    pg.settle("bury", pg.take(queue="q:dead"), reasons=["x"])
    assert pg.find("dead_letter", id_)


def test_a_redriven_message_that_dies_again_is_told_again(pg):
    register(pg)
    again = pg.value("redrive", id=dead(pg), tenant="default")
    pg.settle("bury", pg.take(), reasons=["still closed"])
    assert {row.parent_id for row in pg.query("select parent_id from postrow.message where queue = 'q:dead'")} >= {
        again
    }
