"""Rivals for one key, of deduplication or of `once`: nothing is lost, and nothing is there twice."""

from uuid import uuid4

import psycopg
import pytest

RULES = [{"dedup_for": "1 hour"}, {"dedup_while": "waiting"}, {"dedup_while": "alive"}]
MODES = {"rc": "", "rr": "isolation level repeatable read", "ser": "isolation level serializable"}


def keyed(payload=1, **options):
    return {"queue": "q", "payload": payload, "dedup_key": "k", **options}


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_second_waits_and_is_swallowed_when_the_rival_commits(actors, rule):
    rival, late = actors("rival"), actors("late")
    rival.begin()
    first = rival.row("enqueue", **keyed("rival", **rule))
    waiting = late.start("enqueue", **keyed("late", **rule)).wait_until_blocked()
    rival.commit()

    assert waiting.result() == [(first.id, True)]
    assert late.value("depth", queue="q") == 1


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_the_second_waits_and_puts_its_own_when_the_rival_rolls_back(actors, rule, mode):
    rival, late = actors("rival"), actors("late")
    rival.begin()
    rival.row("enqueue", **keyed("rival", **rule))
    late.begin(mode)
    waiting = late.start("enqueue", **keyed("late", **rule)).wait_until_blocked()
    rival.rollback()

    ((id_, deduplicated),) = waiting.result()
    late.commit()
    assert (deduplicated, late.find("message", id_).payload) == (False, "late")
    assert late.value("depth", queue="q") == 1


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("mode", [MODES["rr"], MODES["ser"]], ids=["rr", "ser"])
def test_a_rival_that_a_snapshot_does_not_see_is_a_serialization_failure(actors, rule, mode):
    rival, late = actors("rival"), actors("late")
    late.begin(mode)
    late.query("select 1 from postrow.message")  # takes the snapshot
    rival.row("enqueue", **keyed(**rule))
    with pytest.raises(psycopg.errors.SerializationFailure):
        late.row("enqueue", **keyed(**rule))


def test_a_message_that_swallowed_another_is_not_claimed_before_that_one_commits(actors):
    """Its run has to see what the producer wrote."""
    producer, worker = actors("producer"), actors("worker").impatient()
    first = worker.row("enqueue", **keyed())
    producer.begin()
    assert producer.row("enqueue", **keyed()) == (first.id, True)
    assert worker.take() == []
    producer.commit()
    assert [row.id for row in worker.take()] == [first.id]


def test_two_producers_who_are_swallowed_by_one_message_do_not_wait_for_each_other(actors):
    one, two = actors("one"), actors("two").impatient()
    first = two.row("enqueue", **keyed())
    one.begin()
    two.begin()
    assert one.row("enqueue", **keyed()) == two.row("enqueue", **keyed()) == (first.id, True)


def test_a_message_that_is_being_claimed_counts_as_claimed(actors):
    producer, worker = actors("producer").impatient(), actors("worker")
    first = producer.row("enqueue", **keyed())
    worker.begin()
    assert len(worker.take()) == 1
    second = producer.row("enqueue", **keyed())
    assert (second.deduplicated, second.id != first.id) == (False, True)
    worker.commit()
    assert producer.row("enqueue", **keyed()) == (second.id, True)


def test_of_two_who_find_the_keys_message_claimed_one_enqueues_and_the_other_is_swallowed(actors):
    one, two, worker = actors("one"), actors("two"), actors("worker")
    worker.row("enqueue", **keyed())
    worker.take()
    one.begin()
    mine = one.row("enqueue", **keyed())
    assert mine.deduplicated is False
    waiting = two.start("enqueue", **keyed()).wait_until_blocked()
    one.commit()
    assert waiting.result() == [(mine.id, True)]
    assert worker.value("depth", queue="q") == 2


def test_of_two_who_find_the_keys_message_claimed_the_other_enqueues_when_the_first_rolls_back(actors):
    one, two, worker = actors("one"), actors("two"), actors("worker")
    worker.row("enqueue", **keyed())
    worker.take()
    one.begin()
    one.row("enqueue", **keyed())
    waiting = two.start("enqueue", **keyed()).wait_until_blocked()
    one.rollback()
    ((_, deduplicated),) = waiting.result()
    assert deduplicated is False
    assert worker.value("depth", queue="q") == 2


def test_a_key_that_is_being_swept_is_taken_anew(actors):
    producer, sweeper = actors("producer"), actors("sweeper")
    old = producer.row("enqueue", **keyed())
    producer.query("delete from postrow.message")
    producer.query("update postrow.seen set until = postrow.clock() - interval '1 s'")
    sweeper.begin()
    sweeper.rows("sweep", step="seen")
    waiting = producer.start("enqueue", **keyed()).wait_until_blocked()
    sweeper.commit()
    ((id_, deduplicated),) = waiting.result()
    assert (deduplicated, id_ != old.id) == (False, True)
    assert producer.value("depth", queue="q") == 1


def test_lists_with_the_same_keys_in_opposite_order_do_not_deadlock(actors):
    holder, one, two = actors("holder"), actors("one"), actors("two")
    messages = [{"payload": 1, "dedup_key": key} for key in "ab"]
    holder.begin()
    holder.row("enqueue", queue="q", payload=1, dedup_key="a")
    first = one.start("enqueue_many", queue="q", messages=messages).wait_until_blocked()
    second = two.start("enqueue_many", queue="q", messages=messages[::-1]).wait_until_blocked()
    holder.rollback()
    outcomes = sorted([row.deduplicated for row in running.result()] for running in (first, second))
    assert outcomes == [[False, False], [True, True]]


def test_lists_with_ids_and_keys_take_all_ids_before_any_key(actors):
    holder, one, two = actors("holder"), actors("one"), actors("two")
    mine = uuid4()
    holder.begin()
    holder.row("enqueue", queue="q", payload=1, id=mine)
    messages = [{"payload": 1, "dedup_key": "k"}, {"payload": 2, "id": str(mine)}]
    first = one.start("enqueue_many", queue="q", messages=messages).wait_until_blocked()
    # had the first taken its key, this one would wait too
    assert two.impatient().row("enqueue", **keyed()).deduplicated is False
    holder.rollback()
    assert [row.deduplicated for row in first.result()] == [True, False]


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_once_is_true_for_one_of_many_and_a_rollback_frees_it(actors, wait_for, mode):
    callers = [actors(f"caller{n}") for n in range(5)]
    for caller in callers:
        caller.begin(mode)
    assert callers[0].value("once", key="k")
    waiting = [(caller, caller.start("once", key="k").wait_until_blocked()) for caller in callers[1:]]
    callers[0].rollback()
    winner = wait_for(lambda: next((pair for pair in waiting if pair[1].done), None), what="one to get the key")
    waiting.remove(winner)
    assert winner[1].result() == [(True,)]
    winner[0].commit()
    for _, running in waiting:
        if mode:
            with pytest.raises(psycopg.errors.SerializationFailure):
                running.result()
        else:
            assert running.result() == [(False,)]


@pytest.mark.parametrize("mode", [MODES["rr"], MODES["ser"]], ids=["rr", "ser"])
def test_a_message_that_ended_since_the_snapshot_stands_for_nobody(actors, mode):
    producer, worker = actors("producer"), actors("worker")
    worker.row("enqueue", **keyed())
    producer.begin(mode)
    producer.query("select 1 from postrow.message")  # takes the snapshot
    worker.settle("ack", worker.take())
    with pytest.raises(psycopg.errors.SerializationFailure):
        producer.row("enqueue", **keyed(dedup_while="alive"))
