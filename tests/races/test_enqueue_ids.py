"""Two producers bring one id at the same time: there is one message, whatever the rival's transaction comes to."""

from uuid import UUID, uuid4

import psycopg
import pytest


def enqueue(id_, payload):
    return {"queue": "q", "payload": payload, "id": id_}


def test_the_second_waits_and_is_the_same_message_when_the_rival_commits(actors):
    rival, late = actors("rival"), actors("late")
    mine = uuid4()
    rival.begin()
    rival.rows("enqueue", **enqueue(mine, "rival"))
    waiting = late.start("enqueue", **enqueue(mine, "late")).wait_until_blocked()
    rival.commit()

    assert waiting.result() == [(mine, True)]
    assert late.find("message", mine).payload == "rival"


@pytest.mark.parametrize(
    "mode", ["", "isolation level repeatable read", "isolation level serializable"], ids=["rc", "rr", "ser"]
)
def test_the_second_waits_and_puts_its_own_when_the_rival_rolls_back(actors, mode):
    rival, late = actors("rival"), actors("late")
    mine = uuid4()
    rival.begin()
    rival.rows("enqueue", **enqueue(mine, "rival"))
    late.begin(mode)
    waiting = late.start("enqueue", **enqueue(mine, "late")).wait_until_blocked()
    rival.rollback()

    assert waiting.result() == [(mine, False)]
    late.commit()
    assert late.find("message", mine).payload == "late"
    assert late.value("depth", queue="q") == 1


def test_of_five_callers_of_which_four_roll_back_one_message_is_left(actors, wait_for):
    mine = uuid4()
    callers = [actors(f"caller{n}") for n in range(5)]
    for caller in callers:
        caller.begin()
    callers[0].rows("enqueue", **enqueue(mine, 0))
    waiting = [caller.start("enqueue", **enqueue(mine, 1)).wait_until_blocked() for caller in callers[1:]]
    callers[0].rollback()

    left = list(zip(callers[1:], waiting, strict=True))
    while left:  # the one that got the key answers; the others go on waiting for it
        first = wait_for(lambda: next((pair for pair in left if pair[1].done), None), what="one to get the key")
        left.remove(first)
        caller, running = first
        assert running.result() == [(mine, False)]
        if left:
            caller.rollback()
        else:
            caller.commit()
    assert callers[0].value("depth", queue="q") == 1


@pytest.mark.parametrize("mode", ["isolation level repeatable read", "isolation level serializable"], ids=["rr", "ser"])
@pytest.mark.parametrize("waits", [True, False], ids=["waited", "already committed"])
def test_under_an_older_snapshot_a_rival_that_committed_is_40001(actors, mode, waits):
    rival, late = actors("rival"), actors("late")
    mine = uuid4()
    late.begin(mode)
    late.query("select count(*) from postrow.setting")  # takes the snapshot
    rival.begin()
    rival.rows("enqueue", **enqueue(mine, "rival"))
    if waits:
        waiting = late.start("enqueue", **enqueue(mine, "late")).wait_until_blocked()
        rival.commit()
    else:
        rival.commit()
        waiting = late.start("enqueue", **enqueue(mine, "late"))

    with pytest.raises(psycopg.Error) as caught:
        waiting.result()
    assert caught.value.sqlstate == "40001"
    late.rollback()
    assert rival.value("depth", queue="q") == 1
    late.begin(mode)  # the whole transaction again, as 40001 asks for
    assert late.rows("enqueue", **enqueue(mine, "late")) == [(mine, True)]
    late.commit()


@pytest.mark.parametrize(
    "mode", ["", "isolation level repeatable read", "isolation level serializable"], ids=["rc", "rr", "ser"]
)
@pytest.mark.parametrize("given", [True, False], ids=["a caller's id", "the database's"])
def test_an_open_dead_letter_has_its_id_in_each_isolation_level(actors, mode, given):
    worker, producer = actors("worker"), actors("producer")
    mine = worker.put(id=uuid4() if given else None)
    producer.begin(mode)
    if given:
        producer.query("select count(*) from postrow.setting")  # takes the snapshot
    worker.settle("bury", worker.take(), reasons=["no"])
    assert producer.rows("enqueue", **enqueue(mine, "again")) == [(mine, True)]
    producer.commit()
    assert worker.find("message", mine) is None
    assert worker.find("dead_letter", mine).resolved_at is None


def test_serializable_producers_of_different_ids_do_not_fail_each_other(actors):
    producers = [actors("one"), actors("two")]
    for producer in producers:
        producer.begin("isolation level serializable")
    for producer in producers:
        producer.rows("enqueue", **enqueue(uuid4(), "x"))
    for producer in producers:
        producer.rows("enqueue", queue="q", payload="no id")
        producer.rows("enqueue_many", queue="q", messages=[{"payload": 1, "id": str(uuid4())}])
    for producer in producers:
        producer.commit()
    assert producers[0].value("depth", queue="q") == 6


def test_lists_with_the_same_ids_in_opposite_order_do_not_deadlock(actors):
    holder, one, two = actors("holder"), actors("one"), actors("two")
    ids = sorted((uuid4(), uuid4()), key=UUID.__str__)
    messages = [{"payload": 1, "id": str(id_)} for id_ in ids]
    holder.begin()
    holder.rows("enqueue", **enqueue(ids[0], "held"))
    # unsorted, `two` would hold the second id by now and wait for the first, which `one` gets and holds
    first = one.start("enqueue_many", queue="q", messages=messages).wait_until_blocked()
    second = two.start("enqueue_many", queue="q", messages=messages[::-1]).wait_until_blocked()
    holder.rollback()

    outcomes = sorted([row.deduplicated for row in running.result()] for running in (first, second))
    assert outcomes == [[False, False], [True, True]]
    assert one.value("depth", queue="q") == 2


def test_a_list_waits_for_the_rival_of_one_of_its_ids(actors):
    rival, late = actors("rival"), actors("late")
    mine, other = uuid4(), uuid4()
    rival.begin()
    rival.rows("enqueue", **enqueue(mine, "rival"))
    messages = [{"payload": 1, "id": str(other)}, {"payload": 2, "id": str(mine)}]
    waiting = late.start("enqueue_many", queue="q", messages=messages).wait_until_blocked()
    rival.commit()

    assert [(row.id, row.deduplicated) for row in waiting.result()] == [(other, False), (mine, True)]


def test_an_id_that_a_rival_took_for_another_queue_is_refused(actors):
    rival, late = actors("rival"), actors("late")
    mine = uuid4()
    rival.begin()
    rival.rows("enqueue", queue="emails", payload=1, id=mine)
    waiting = late.start("enqueue", **enqueue(mine, "late")).wait_until_blocked()
    rival.commit()

    with pytest.raises(psycopg.Error, match="queue emails") as caught:
        waiting.result()
    assert caught.value.sqlstate == "PW006"


def test_a_key_past_its_time_is_taken_over_by_one_of_two(actors):
    one, two = actors("one"), actors("two")
    mine = uuid4()
    one.rows("enqueue", **enqueue(mine, "old"))
    one.settle("ack", one.take())
    one.query("update postrow.seen set until = postrow.clock() - interval '1 s'")
    one.begin()
    assert one.rows("enqueue", **enqueue(mine, "one")) == [(mine, False)]
    waiting = two.start("enqueue", **enqueue(mine, "two")).wait_until_blocked()
    one.commit()

    assert waiting.result() == [(mine, True)]
    assert one.find("message", mine).payload == "one"


def test_two_who_bring_the_id_of_a_message_that_the_database_named(actors):
    one, two = actors("one"), actors("two")
    made = one.put()
    one.begin()
    assert one.rows("enqueue", **enqueue(made, "one")) == [(made, True)]
    waiting = two.start("enqueue", **enqueue(made, "two")).wait_until_blocked()
    one.commit()

    assert waiting.result() == [(made, True)]
    assert one.value("depth", queue="q") == 1
