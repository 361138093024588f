"""Decisions that two make at once: a last failure, a redrive, a registration."""

import psycopg
import pytest


@pytest.fixture
def last_attempt(actors):
    one, two = actors("one"), actors("two")
    one.put(max_attempts=1)
    return one, two, one.take()


def test_two_last_failures_at_once_make_one_dead_letter(last_attempt):
    one, two, rows = last_attempt
    one.begin()
    assert one.settle("fail", rows, errors=["one"]) == ["accepted"]
    waiting = two.start_settle("fail", rows, errors=["two"]).wait_until_blocked()
    one.commit()

    assert [row.outcome for row in waiting.result()] == ["unknown"]
    dead = one.find("dead_letter", rows[0].id)
    assert [failure["message"] for failure in dead.failures] == ["one"]
    assert (dead.attempt, dead.payload) == (1, 1)


def test_a_last_failure_after_another_or_after_the_sweep_is_unknown(last_attempt):
    one, two, rows = last_attempt
    one.expire(rows[0].id)
    two.rows("sweep", step="leases")
    dead = one.find("dead_letter", rows[0].id)

    assert one.settle("fail", rows, errors=["late"]) == ["unknown"]
    assert one.settle("bury", rows, reasons=["late"]) == ["unknown"]
    assert one.find("dead_letter", rows[0].id) == dead
    assert one.value("depth", queue="q") == 0


def test_a_failure_and_a_burial_at_once_make_one_dead_letter(last_attempt):
    one, two, rows = last_attempt
    one.begin()
    one.settle("bury", rows, reasons=["by one"])
    waiting = two.start_settle("fail", rows, errors=["by two"]).wait_until_blocked()
    one.commit()

    assert [row.outcome for row in waiting.result()] == ["unknown"]
    assert one.find("dead_letter", rows[0].id).reason == "buried"


@pytest.fixture
def dead(last_attempt):
    one, two, rows = last_attempt
    one.settle("bury", rows, reasons=["x"])
    return one, two, rows[0].id


def test_two_redrives_at_once_make_one_message(dead):
    one, two, letter = dead
    one.begin()
    new = one.value("redrive", id=letter, tenant="default")
    waiting = two.start("redrive", id=letter, tenant="default").wait_until_blocked()
    one.commit()

    with pytest.raises(psycopg.Error, match=f"as {new}") as caught:
        waiting.result()
    assert caught.value.sqlstate == "PW009"
    assert one.value("depth", queue="q") == 1


def test_a_redrive_that_waited_for_one_that_rolled_back_goes_on(dead):
    one, two, letter = dead
    one.begin()
    one.value("redrive", id=letter, tenant="default")
    waiting = two.start("redrive", id=letter, tenant="default").wait_until_blocked()
    one.rollback()

    ((new,),) = waiting.result()
    assert one.find("dead_letter", letter).redriven_as == new
    assert one.value("depth", queue="q") == 1


def test_a_redrive_and_a_resolution_at_once_the_second_is_refused(dead):
    one, two, letter = dead
    one.begin()
    one.rows("resolve", id=letter, tenant="default", resolution="handled", reason="by hand")
    waiting = two.start("redrive", id=letter, tenant="default").wait_until_blocked()
    one.commit()

    with pytest.raises(psycopg.Error, match="handled") as caught:
        waiting.result()
    assert caught.value.sqlstate == "PW009"
    assert one.value("depth", queue="q") == 0


def register(handler, **options):
    return {"queue": "q", "handler": handler, **options}


def handler_of(actor):
    return [row.handler for row in actor.query("select handler from postrow.consumer")]


def test_two_handlers_registered_at_once_the_second_is_refused(actors):
    one, two = actors("one"), actors("two")
    one.begin()
    one.rows("register_consumer", **register("h1"))
    waiting = two.start("register_consumer", **register("h2")).wait_until_blocked()
    one.commit()

    with pytest.raises(psycopg.Error, match="consumed by handler h1, not h2") as caught:
        waiting.result()
    assert caught.value.sqlstate == "PW005"
    assert handler_of(one) == ["h1"]


def test_a_handler_that_waited_for_one_that_rolled_back_is_registered(actors):
    one, two = actors("one"), actors("two")
    one.begin()
    one.rows("register_consumer", **register("h1"))
    waiting = two.start("register_consumer", **register("h2")).wait_until_blocked()
    one.rollback()

    waiting.result()
    assert handler_of(one) == ["h2"]


def test_two_replicas_registered_at_once_both_go_on_and_the_last_start_wins(actors):
    one, two = actors("one"), actors("two")
    one.begin()
    one.rows("register_consumer", **register("h", max_attempts=3))
    waiting = two.start("register_consumer", **register("h", max_attempts=7)).wait_until_blocked()
    one.commit()

    waiting.result()
    assert [row.max_attempts for row in one.query("select max_attempts from postrow.consumer")] == [7]


def test_a_registration_that_meets_an_unregistration_makes_its_row(actors):
    one, two = actors("one"), actors("two")
    one.rows("register_consumer", **register("h1"))
    one.begin()
    assert one.value("unregister_consumer", queue="q") is True
    waiting = two.start("register_consumer", **register("h2")).wait_until_blocked()
    one.commit()

    waiting.result()
    assert handler_of(one) == ["h2"]


def test_two_changes_of_one_policy_at_once_leave_one_row(actors):
    one, two = actors("one"), actors("two")
    one.rows("register_consumer", **register("h"))
    one.begin()
    one.rows("register_consumer", **register("h", max_attempts=3))
    waiting = two.start("register_consumer", **register("h", max_attempts=7)).wait_until_blocked()
    one.commit()

    waiting.result()
    assert [row.max_attempts for row in one.query("select max_attempts from postrow.consumer")] == [7]


def test_enqueue_and_claim_do_not_wait_for_a_registration(actors):
    one, two = actors("one"), actors("two")
    one.begin()
    one.rows("register_consumer", **register("h", lease="5 s"))
    two.impatient()
    two.put()
    rows = two.take()

    assert two.settle("fail", rows, errors=["x"]) == ["accepted"]
    one.commit()


@pytest.fixture
def told(actors):
    """The message that tells of a dead letter, claimed by one; and the dead letter."""
    one, two = actors("one"), actors("two")
    one.value("register_consumer", queue="q", handler="h", tells_dead=True)
    letter = one.put()
    one.settle("bury", one.take(), reasons=["card closed"])
    return one, two, letter, one.take(queue="q:dead")


def test_a_death_that_tells_of_a_dead_letter_which_is_sent_again_waits_for_nobody_and_is_kept(told):
    one, two, letter, rows = told
    two.begin()
    two.value("redrive", id=letter, tenant="default")
    assert one.impatient().settle("bury", rows, reasons=["pager is down"], wait=False) == ["accepted"]
    two.commit()
    assert one.find("dead_letter", rows[0].id).failures[-1]["message"] == "pager is down"
    assert len(one.find("dead_letter", letter).failures) == 1


def test_a_death_that_tells_of_a_dead_letter_is_recorded_there(told):
    one, _, letter, rows = told
    one.settle("bury", rows, reasons=["pager is down"])
    assert [f["message"] for f in one.find("dead_letter", letter).failures] == ["card closed", "pager is down"]
