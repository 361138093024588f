"""A watermark skips nothing of what was paused, limited, given back, set free, or stamped by another clock.

As in test_watermarks.py: lanes are claimed from their watermarks whenever there is one.
"""

from datetime import timedelta

import pytest

HOUR = timedelta(hours=1)
ONE = timedelta(seconds=1)


def ids(messages):
    return [message.id for message in messages]


def flat(batches):
    return [id_ for batch in batches for id_ in ids(batch)]


@pytest.fixture
def held(advanced, producer, own_clock):
    """A worker and a message that another has claimed, long before the worker's watermark of now."""
    sent = producer.put()
    (row,) = producer.take()
    assert row.id == sent
    own_clock.advance(100)
    worker = advanced()
    return worker, row


PAUSES = [{"queue": "q"}, {"tenant": "default"}, {"queue": "q", "tenant": "default"}]


@pytest.mark.parametrize("what", PAUSES, ids="+".join)
def test_a_backlog_of_a_pause_comes_when_it_is_resumed_with_what_was_late(
    advanced, own_actors, own_clock, producer, what
):
    worker, late = advanced(), own_actors("late")
    late.begin()
    sent = [late.put()]
    own_clock.advance(10)
    newer = producer.put()
    assert ids(worker.look().claim()) == [newer]
    producer.rows("pause", **what)
    sent += [producer.put() for _ in range(30)]
    for _ in range(3):
        own_clock.advance(10)
        worker.lanes.tapped("default")
        assert worker.claim() == []
        assert worker.look().claim() == []
        sent += [producer.put() for _ in range(10)]
    late.commit()
    producer.rows("resume", **what)
    assert flat(worker.look().drain()) == sent


def test_a_claim_that_met_a_pause_begins_anew(advanced, own_clock, producer):
    """It was on its way when the queue was paused: what it could not see it must not pass."""
    worker = advanced()
    sent = producer.put()
    worker.lanes.tapped("default")
    producer.rows("pause", queue="q")
    own_clock.advance(10)
    assert worker.claim() == []
    worker.assert_from_watermark()
    producer.rows("resume", queue="q")
    worker.lanes.tapped("default")
    assert ids(worker.claim()) == [sent]
    assert worker.began == {("default", 0): None}


LIMITS = [
    {"rate": 5, "rate_period": "1 hour"},
    {"tenant_rate": 5, "tenant_rate_period": "1 hour"},
    {"max_in_flight": 5},
    {"tenant_max_in_flight": 5},
]


@pytest.mark.parametrize("limits", LIMITS, ids=lambda limits: next(iter(limits)))
def test_a_backlog_of_a_limit_comes_when_the_limit_is_taken_away(advanced, own_actors, own_clock, producer, limits):
    worker, late = advanced(), own_actors("late")
    late.begin()
    first = late.put()
    producer.rows("register_consumer", queue="q", handler="h", **limits)
    own_clock.advance(10)
    sent = [producer.put() for _ in range(40)]
    assert ids(worker.look().claim()) == sent[:5]
    late.commit()
    for _ in range(3):
        own_clock.advance(10)
        assert worker.look().claim() == []
    producer.rows("register_consumer", queue="q", handler="h")
    worker.lanes.made_room()  # as the claimer does at that tap
    assert flat(worker.look().drain()) == [first, *sent[5:]]


@pytest.mark.parametrize("kind", ["rate", "tenant_rate"])
def test_a_rate_gives_its_backlog_in_order_and_skips_nothing(advanced, own_clock, producer, kind):
    worker = advanced()
    producer.rows("register_consumer", queue="q", handler="h", **{kind: 4, f"{kind}_period": "4 s"})
    sent = [producer.put() for _ in range(30)]
    got = []
    for _ in range(40):
        worker.lanes.made_room()
        got += ids(worker.look().claim())
        own_clock.advance(1)
    assert got == sent


def test_places_in_flight_give_a_backlog_in_order_and_skip_nothing(advanced, own_clock, producer):
    worker = advanced()
    producer.rows("register_consumer", queue="q", handler="h", max_in_flight=4)
    sent = [producer.put() for _ in range(30)]
    got = []
    while rows := worker.look().claim():
        assert len(rows) <= 4
        got += ids(rows)
        own_clock.advance(1)
        worker.actor.settle("ack", rows)
        worker.lanes.made_room()
    assert got == sent


@pytest.mark.parametrize("back", ["release", "release until", "retry", "swept target"])
def test_what_comes_back_behind_the_watermark_is_claimed_after_the_next_discovery(held, own_clock, producer, back):
    worker, row = held
    past = own_clock.now - timedelta(seconds=90)
    if back == "release":
        assert producer.settle("release", [row]) == ["accepted"]
    elif back == "release until":
        assert producer.settle("release", [row], until=[past]) == ["accepted"]
    elif back == "retry":
        assert producer.settle("fail", [row], errors=["x"], retry_at=[past]) == ["accepted"]
    else:
        producer.query("update postrow.message set target = 'other', target_until = %s where id = %s", [past, row.id])
        producer.settle("release", [row])
        worker.look().claim()
        assert producer.find("message", row.id).claim_token is None
        producer.rows("sweep", step="targets")
    due_at = producer.find("message", row.id).available_at
    assert due_at < own_clock.now - ONE
    assert ids(worker.look().claim()) == [row.id]
    assert worker.began == {("default", 0): due_at}


def test_the_next_of_a_group_is_due_when_it_is_set_free_and_is_claimed_from_the_watermark(
    advanced, own_clock, producer
):
    worker = advanced()
    sent = [producer.put(group_key="g") for _ in range(3)]
    got = []
    for _ in range(3):
        own_clock.advance(10)
        rows = worker.look().claim(1)
        got += ids(rows)
        newer = producer.put()
        own_clock.advance(10)
        assert ids(worker.look().claim()) == [newer]
        worker.actor.settle("ack", rows)
    assert got == sent


ENQUEUES = {
    "enqueue": lambda pg, past: pg.put(available_at=past),
    "enqueue with no delay": lambda pg, past: pg.put(delay=timedelta(0)),
    "enqueue_many": lambda pg, past: pg.row("enqueue_many", queue="q", messages=[{"payload": 1}], available_at=past).id,
    "enqueue_many, its own": lambda pg, past: (
        pg.row("enqueue_many", queue="q", messages=[{"payload": 1, "available_at": past.isoformat()}]).id
    ),
    "enqueue_lines": lambda pg, past: pg.row("enqueue_lines", queue="q", payloads="1", available_at=past).first_id,
    "publish": lambda pg, past: pg.row("publish", topic="t", payload=1, available_at=past).id,
}


@pytest.mark.parametrize("how", ENQUEUES)
def test_what_is_enqueued_for_the_past_is_due_now_and_no_watermark_is_ahead_of_it(advanced, own_clock, producer, how):
    producer.query("select postrow.subscribe('t', 'q')")
    worker = advanced()
    for ago in (timedelta(seconds=0.3), ONE, HOUR, timedelta(days=10_000)):
        own_clock.advance(10)
        worker.look().claim()
        sent = ENQUEUES[how](producer, own_clock.now - ago)
        own_clock.advance(0.01)
        worker.lanes.tapped("default")
        assert ids(worker.claim()) == [sent]  # no discovery was needed
        worker.assert_from_watermark()


def test_after_the_clock_was_set_back_new_messages_are_claimed_after_the_next_discovery(advanced, own_clock, producer):
    worker = advanced()
    own_clock.advance(-60)
    sent = producer.put()
    due_at = producer.find("message", sent).available_at
    assert ids(worker.look().claim()) == [sent]
    assert worker.began == {("default", 0): due_at}
    for _ in range(5):
        own_clock.advance(1)
        sent = producer.put()
        worker.lanes.tapped("default")
        assert ids(worker.claim()) == [sent]
        worker.assert_from_watermark()


def test_what_was_enqueued_before_the_clock_was_set_back_is_due_when_it_was_due(advanced, own_clock, producer):
    worker = advanced()
    sent = [producer.put() for _ in range(3)]
    own_clock.advance(-60)
    assert worker.look().claim() == []
    own_clock.advance(59)
    newer = producer.put()
    assert ids(worker.look().claim()) == [newer]
    own_clock.advance(1)
    assert ids(worker.look().claim()) == sent


@pytest.mark.parametrize("step", [timedelta(minutes=-1), HOUR, -HOUR], ids=str)
def test_a_lease_that_is_renewed_is_not_swept_after_a_step_of_the_clock(advanced, own_clock, producer, step):
    worker = advanced()
    producer.put()
    rows = worker.look().claim()
    own_clock.advance(step.total_seconds())
    assert worker.actor.settle("extend", rows, lease=timedelta(seconds=60)) == ["accepted"]
    producer.rows("sweep", step="leases")
    assert worker.actor.settle("ack", rows) == ["accepted"]


def test_leases_and_retries_of_the_time_when_the_clock_was_an_hour_ahead_end_when_they_would_have(
    advanced, own_clock, producer
):
    """Ahead, the sweep takes what is held; back, what was stamped meanwhile waits until then, and nothing longer."""
    worker = advanced()
    producer.rows("register_consumer", queue="q", handler="h", retry="constant", retry_base="10 s", retry_jitter=False)
    swept = producer.put()
    stale = worker.look().claim()
    own_clock.advance(3600)
    producer.rows("sweep", step="leases")
    assert worker.actor.settle("ack", stale) == ["stale"]
    enqueued, dead = producer.put(), producer.put()
    (row,) = worker.look().claim(1)
    assert row.id == enqueued
    (lost,) = worker.look().claim(1)  # its worker dies
    assert lost.id == dead
    assert worker.actor.settle("fail", [row], errors=["x"]) == ["accepted"]

    own_clock.advance(-3600)
    fresh = producer.put()
    rows = worker.look().claim()
    assert ids(rows) == [fresh]
    worker.actor.settle("ack", rows)
    producer.rows("sweep", step="leases")
    assert worker.look().claim() == []

    own_clock.advance(3600 + 10)
    rows = worker.look().claim()
    assert set(ids(rows)) == {swept, enqueued}
    worker.actor.settle("ack", rows)
    own_clock.advance(50 + 0.001)
    producer.rows("sweep", step="leases")
    own_clock.advance(10)
    assert ids(worker.look().claim()) == [dead]


def test_the_sweep_finds_expired_leases_after_the_clock_was_set_back(advanced, own_clock, producer):
    """Its own frontier, too, is ahead of the clock then."""
    worker = advanced()
    producer.rows("sweep", step="leases")
    own_clock.advance(-600)
    sent = producer.put()
    assert ids(worker.look().claim()) == [sent]
    own_clock.advance(60.001)
    assert producer.row("sweep", step="leases").done == 1
