"""Who claims at the same time, and what a claim sees of producers that have not committed."""

import threading
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest

from postrow.drivers.psycopg3 import execute
from postrow.ops import claims


def ids(rows):
    return [row.id for row in rows]


def put_many(actor, count, **options):
    return ids(actor.rows("enqueue_many", queue="q", messages=[{"payload": 1}] * count, **options))


def test_two_claimers_get_different_messages_and_do_not_wait(actors):
    one, two = actors("one"), actors("two")
    sent = put_many(one, 10)
    one.begin()
    first = ids(one.take(6))
    second = ids(two.impatient().take(10))
    one.commit()

    assert (first, second) == (sent[:6], sent[6:])


def test_a_third_turn_of_a_queue_is_refused_while_two_go_on_and_one_of_another_queue_is_not(actors):
    one, two, three = actors("one"), actors("two"), actors("three").impatient()
    for actor in (one, two):
        actor.begin()
        assert actor.impatient().value("claim_turn", queue="q") is True
    assert three.value("claim_turn", queue="q") is False
    assert three.value("claim_turn", queue="r") is True
    one.commit()
    assert three.value("claim_turn", queue="q") is True


def test_a_claim_without_its_turn_takes_nothing_and_says_so(own_actors):
    one, two, three = own_actors("one"), own_actors("two"), own_actors("three")
    put_many(three, 3)
    for actor in (one, two):
        actor.begin()
        actor.value("claim_turn", queue="q")
    options = {"per_lane": 10, "limit": 10, "lease": timedelta(seconds=60), "worker": "w"}

    def claim(**more):
        return execute(three.conn, claims.claim_lanes("q", [("default", 0, None)], token=uuid4(), **options, **more))

    refused = claim(turn=True)
    assert (refused.turn, refused.messages, refused.edges) == (False, [], [])
    two.commit()
    given = claim(turn=True)
    assert (given.turn, len(given.messages)) == (True, 3)
    empty = claim()
    assert (empty.turn, empty.messages, len(empty.edges)) == (True, [], 1)


def test_what_a_claim_took_and_rolled_back_is_given_again_with_no_attempt_spent(actors):
    one, two = actors("one"), actors("two")
    put_many(one, 3)
    one.begin()
    one.take(3)
    one.rollback()

    assert [row.attempt for row in two.take(10)] == [1, 1, 1]


def test_two_claimers_in_claim_lanes_get_different_messages(actors):
    one, two = actors("one"), actors("two")
    for tenant in "ab":
        put_many(one, 4, tenant=tenant)
    lanes = {"tenants": ["a", "b"], "priorities": [0, 0], "afters": [None, None], "per_lane": 3, "limit": 100}
    one.begin()
    first = one.rows("claim_lanes", queue="q", **lanes)
    second = two.impatient().rows("claim_lanes", queue="q", **lanes)
    one.commit()

    assert (Counter(row.tenant for row in first), Counter(row.tenant for row in second)) == (
        {"a": 3, "b": 3},
        {"a": 1, "b": 1},
    )
    assert not set(ids(first)) & set(ids(second))


def test_two_workers_of_one_name_do_not_share_a_targeted_message(actors):
    one, two = actors("one"), actors("two")
    mine = one.put(target="laptop")
    one.begin()
    assert ids(one.take(worker="laptop")) == [mine]
    assert two.impatient().take(worker="laptop") == []
    one.commit()


def test_six_claimers_at_once_take_each_message_once(actors):
    claimers = [actors(f"claimer{number}") for number in range(6)]
    for tenant in "abc":
        put_many(claimers[0], 100, tenant=tenant)
    taken, errors = [], []

    def work(claimer, size):
        try:
            while rows := claimer.take(size):
                taken.extend(rows)  # atomic: one call of list.extend
                claimer.settle("ack", rows[::2])
        except psycopg.Error as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(claimer, size)) for size, claimer in enumerate(claimers, start=3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert Counter(ids(taken)).most_common(1)[0][1] == 1
    # a claimer that met only locked rows may have stopped early; nothing is lost
    assert len(taken) + len(claimers[0].take(300)) == 300


def test_an_enqueue_is_claimed_when_it_is_committed_and_not_before(actors):
    producer, worker = actors("producer"), actors("worker")
    producer.begin()
    sent = producer.put()
    newer = worker.put()
    assert ids(worker.impatient().take(10)) == [newer]
    assert worker.take(10) == []
    assert worker.value("depth", queue="q") == 1  # the claimed one

    producer.commit()
    assert ids(worker.take(10)) == [sent]


def test_an_enqueue_that_rolls_back_never_was(actors):
    producer, worker = actors("producer"), actors("worker")
    producer.begin()
    producer.put()
    put_many(producer, 5)
    producer.rollback()

    assert worker.take(10) == []
    assert worker.value("depth", queue="q") == 0


def test_a_claim_and_its_settlement_by_another_session(actors):
    one, two = actors("one"), actors("two")
    one.put()
    one.begin()
    rows = one.take()
    waiting = two.settle("ack", rows)  # the claim is not committed: two sees a free message
    assert waiting == ["stale"]
    one.commit()

    assert two.settle("ack", rows) == ["accepted"]


@pytest.mark.parametrize("mode", ["isolation level repeatable read", "isolation level serializable"], ids=["rr", "ser"])
def test_a_claim_under_an_older_snapshot_is_40001_and_never_a_second_claim(actors, mode):
    rival, late = actors("rival"), actors("late")
    sent = rival.put()
    late.begin(mode)
    late.query("select count(*) from postrow.setting")  # takes the snapshot
    (got,) = rival.take()

    with pytest.raises(psycopg.Error) as caught:
        late.take()
    assert caught.value.sqlstate == "40001"
    late.rollback()
    assert rival.find("message", sent).claim_token == got.claim_token
    assert late.take() == []


@pytest.mark.parametrize("mode", ["isolation level repeatable read", "isolation level serializable"], ids=["rr", "ser"])
def test_claimers_in_strict_isolation_skip_what_the_other_has_locked(actors, mode):
    one, two = actors("one"), actors("two")
    put_many(one, 4)
    one.begin(mode)
    two.begin(mode)
    first = ids(one.take(2))
    second = ids(two.impatient().take(2))
    one.commit()
    committed = False
    with suppress(psycopg.errors.SerializationFailure):  # it may ask for a retry; it may not claim twice
        two.commit()
        committed = True

    assert not set(first) & set(second)
    left = len(one.take(10))
    assert left == (0 if committed else 2)


@pytest.mark.parametrize("mode", ["isolation level repeatable read", "isolation level serializable"], ids=["rr", "ser"])
def test_an_ack_under_an_older_snapshot_than_the_sweep_is_never_accepted(actors, mode):
    worker, sweeper = actors("worker"), actors("sweeper")
    worker.put()
    rows = worker.take()
    worker.expire(rows[0].id)
    worker.begin(mode)
    worker.query("select count(*) from postrow.setting")
    sweeper.rows("sweep", step="leases")

    with pytest.raises(psycopg.Error) as caught:
        worker.settle("ack", rows)
    assert caught.value.sqlstate == "40001"
    worker.rollback()
    assert worker.settle("ack", rows) == ["stale"]
    assert worker.find("history", rows[0].id) is None
