from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
import pytest


def again(pg, message_id, queue="q", **options):
    return pg.row("enqueue", queue=queue, payload="again", id=message_id, **options)


def test_a_callers_id_is_the_messages(pg):
    mine = uuid4()
    sent = pg.row("enqueue", queue="q", payload=1, id=mine)

    assert (sent.id, sent.deduplicated) == (mine, False)
    assert pg.find("message", mine).payload == 1


@pytest.mark.parametrize("mine", [UUID(int=0), UUID(int=2**128 - 1)])
def test_every_uuid_is_an_id(pg, mine):
    assert pg.put(id=mine) == mine
    assert again(pg, mine) == (mine, True)


def test_the_same_id_again_is_the_same_message(pg):
    mine = pg.put(id=uuid4())

    assert again(pg, mine) == (mine, True)
    assert pg.find("message", mine).payload == 1
    assert pg.value("depth", queue="q") == 1


def test_it_stays_the_same_message_while_claimed_and_after_it_was_settled(pg):
    mine = pg.put(id=uuid4())
    claimed = pg.take()
    assert again(pg, mine).deduplicated

    assert pg.settle("ack", claimed) == ["accepted"]
    assert again(pg, mine) == (mine, True)
    assert pg.value("depth", queue="q") == 0


def test_it_stays_the_same_message_without_history(pg):
    pg.rows("register_consumer", queue="q", handler="h", keep_history=False)
    mine = pg.put(id=uuid4())
    pg.settle("ack", pg.take())

    assert pg.find("history", mine) is None
    assert again(pg, mine).deduplicated


def test_it_stays_the_same_message_after_it_was_buried(pg):
    mine = pg.put(id=uuid4())
    pg.settle("bury", pg.take(), reasons=["no"])

    assert again(pg, mine).deduplicated
    assert pg.value("depth", queue="q") == 0


def test_for_another_queue_it_is_refused_and_the_present_one_is_named(pg):
    mine = pg.put(queue="emails", id=uuid4())
    error = pg.refused("enqueue", queue="reports", payload=1, id=mine)

    assert error.sqlstate == "PW006"
    assert "queue emails" in str(error)
    assert str(mine) in str(error)


def test_another_tenant_has_ids_of_its_own(pg):
    mine = pg.put(tenant="a", id=uuid4())

    assert again(pg, mine, tenant="b") == (mine, False)
    assert again(pg, mine, tenant="b", queue="q").deduplicated


def test_a_rollback_frees_the_id(pg):
    mine = uuid4()
    with pg.conn.transaction() as savepoint:
        pg.put(id=mine)
        raise psycopg.Rollback(savepoint)

    assert again(pg, mine) == (mine, False)


def test_an_id_is_kept_until_seven_days_after_the_message_is_due(pg, clock):
    now_due = pg.put(id=uuid4())
    later_due = pg.put(id=uuid4(), delay=timedelta(days=30))

    kept = {row.message_id: row.until for row in pg.query("select message_id, until from postrow.seen")}
    assert kept == {now_due: clock.now + timedelta(days=7), later_due: clock.now + timedelta(days=37)}


def test_after_its_time_an_id_is_free_again_before_and_after_the_sweep(pg, clock):
    swept, unswept = pg.put(id=uuid4()), pg.put(queue="other", id=uuid4())
    pg.settle("ack", pg.take())
    pg.settle("ack", pg.take(queue="other"))
    clock.advance(7 * 86_400 + 1)
    assert again(pg, unswept) == (unswept, False)  # free for every queue

    assert pg.row("sweep", step="seen").done == 1
    assert again(pg, swept) == (swept, False)
    assert again(pg, swept).deduplicated


def test_while_its_message_lives_an_id_is_taken_for_ever(pg, clock):
    mine = pg.put(id=uuid4())
    for _ in range(3):
        clock.advance(8 * 86_400)
        assert again(pg, mine).deduplicated
        pg.rows("sweep", step="seen")
    assert pg.value("depth", queue="q") == 1


def test_while_its_dead_letter_is_open_an_id_is_taken(pg, clock):
    mine = pg.put(id=uuid4())
    pg.settle("bury", pg.take(), reasons=["no"])
    clock.advance(7 * 86_400 + 1)

    assert again(pg, mine).deduplicated  # before the sweep
    pg.rows("sweep", step="seen")
    assert again(pg, mine).deduplicated  # and after it
    pg.rows("resolve", id=mine, tenant="default", resolution="ignored", reason="old")
    clock.advance(8 * 86_400)
    assert again(pg, mine) == (mine, False)


def test_an_id_that_the_database_made_is_the_same_message_too(pg):
    made = pg.put()

    assert again(pg, made) == (made, True)
    assert pg.refused("enqueue", queue="other", payload=1, id=made).sqlstate == "PW006"
    assert pg.value("depth", queue="q") == 1


def test_a_second_death_after_a_resolved_first_one_is_recorded(pg, clock):
    mine = pg.put(id=uuid4())
    pg.settle("bury", pg.take(), reasons=["first"])
    pg.rows("resolve", id=mine, tenant="default", resolution="handled", reason="by hand")
    clock.advance(8 * 86_400)
    again(pg, mine)
    pg.settle("bury", pg.take(), reasons=["second"])

    dead = pg.find("dead_letter", mine)
    assert dead.resolved_at is None
    assert [failure["message"] for failure in dead.failures] == ["second"]
