"""Limits under rivals: exact, whoever claims; and a claim that is open holds nobody up for long."""

from collections import Counter

import pytest


def limited(actor, **limits):
    actor.rows("register_consumer", queue="q", handler="h", **limits)
    for n in range(10):
        actor.put(payload=n)


@pytest.mark.parametrize("limits", [{"max_in_flight": 4}, {"rate": 4, "rate_period": "1 hour"}], ids=str)
def test_two_claims_at_once_get_no_more_than_the_limit(actors, limits):
    one, two = actors("one"), actors("two").impatient()
    limited(one, **limits)
    one.begin()
    assert len(one.take(3)) == 3
    assert two.take(10) == [], "it cannot know"
    one.commit()
    assert len(two.take(10)) == 1
    assert one.take(10) == two.take(10) == []


@pytest.mark.parametrize("limits", [{"max_in_flight": 4}, {"rate": 4, "rate_period": "1 hour"}], ids=str)
def test_what_a_rival_took_and_rolled_back_is_there_again(actors, limits):
    one, two = actors("one"), actors("two").impatient()
    limited(one, **limits)
    one.begin()
    assert len(one.take(10)) == 4
    one.rollback()
    assert len(two.take(10)) == 4


def test_a_lane_behind_the_lock_of_another_claim_is_to_be_looked_at_again_soon(actors):
    one, two = actors("one"), actors("two").impatient()
    limited(one, max_in_flight=4)
    one.begin()
    one.take(1)
    (lane,) = two.rows(
        "claim_lanes", queue="q", tenants=["default"], priorities=[0], afters=[None], per_lane=1, limit=1
    )
    assert lane.id is None
    assert 0 < (lane.due_at - lane.claimed_at).total_seconds() < 0.05


def test_an_ack_that_is_not_committed_makes_no_room(actors):
    one, two = actors("one"), actors("two").impatient()
    limited(one, max_in_flight=2)
    rows = one.take(2)
    one.begin()
    one.settle("ack", rows)
    assert two.take(10) == []
    one.commit()
    assert len(two.take(10)) == 2


def test_a_queue_without_limits_is_not_held_up_by_one_that_has_them(actors):
    one, two = actors("one"), actors("two").impatient()
    limited(one, max_in_flight=2)
    two.put("r")
    one.begin()
    one.take(1)
    assert Counter(row.queue for row in two.take(queue="r")) == {"r": 1}
