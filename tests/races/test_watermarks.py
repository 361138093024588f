"""A watermark skips nothing: a worker's lanes against the database, claim by claim, under a clock that stands still.

Each claim counts as slow here, so that from the third one on a lane is claimed from its watermark; and the look from
its beginning that comes each ten seconds does not come at all. The tests in tests/worker have the same with workers.
"""

from collections import Counter
from datetime import timedelta

import pytest

TRAIL = timedelta(seconds=0.2)


def ids(messages):
    return [message.id for message in messages]


def test_what_commits_far_behind_the_watermark_is_claimed_after_the_next_discovery(advanced, own_actors, own_clock):
    worker, late, other = advanced(), own_actors("late"), own_actors("other")
    late.begin()
    sent = late.put()
    for _ in range(5):
        own_clock.advance(1)
        newer = other.put()
        assert ids(worker.look().claim()) == [newer]
        worker.assert_from_watermark()
    late.commit()
    assert worker.claim() == []
    worker.assert_from_watermark()
    due_at = other.find("message", sent).available_at
    assert ids(worker.look().claim()) == [sent]
    assert worker.began == {("default", 0): due_at}
    newer = other.put()
    assert ids(worker.look().claim()) == [newer]
    worker.assert_from_watermark()  # once is enough


def test_what_commits_within_the_trail_is_claimed_at_once(advanced, own_actors, own_clock):
    worker, late, other = advanced(), own_actors("late"), own_actors("other")
    late.begin()
    sent = late.put()
    own_clock.advance(0.15)
    newer = other.put()
    assert ids(worker.look().claim()) == [newer]
    late.commit()
    worker.lanes.tapped("default")
    assert ids(worker.claim()) == [sent]
    worker.assert_from_watermark()


def test_each_worker_finds_what_is_left_behind_its_own_watermark(advanced, own_actors, own_clock):
    one, two, late = advanced("one"), advanced("two"), own_actors("late")
    late.begin()
    sent = {late.put() for _ in range(6)}
    own_clock.advance(10)
    for worker in (one, two):
        worker.actor.put()
        worker.look().claim()
        worker.assert_from_watermark()
    late.commit()
    assert set(ids(one.look().claim(3)) + ids(two.look().claim(3))) == sent


@pytest.mark.slow
def test_a_hundred_thousand_late_messages_come_in_full_batches(advanced, own_actors, own_clock):
    """Of one transaction that was open for ten seconds, beside others that committed meanwhile."""
    batch = 500
    worker, late, other = advanced(), own_actors("late"), own_actors("other")
    late.begin()
    for _ in range(10):
        late.query(
            "select count(*) from postrow.enqueue_many('q', (select jsonb_agg('{\"payload\": 1}'::jsonb) "
            "from generate_series(1, 10000)))"
        )
        own_clock.advance(1)
        newer = {other.put() for _ in range(20)}
        assert set(ids(worker.look().claim(batch))) == newer
        worker.assert_from_watermark()
    late.commit()
    worker.look()
    sizes, seen = [], Counter()
    while messages := worker.claim(batch):
        seen.update(ids(messages))
        sizes.append(len(messages))
        if len(sizes) > 1:
            worker.assert_from_watermark()
    assert sizes == [batch] * 200
    assert len(seen) == seen.total() == 100_000


def test_five_thousand_messages_of_one_moment_all_come_once_and_each_claim_gets_on(advanced, own_clock, producer):
    """The watermark of two workers stays within that moment, and neither meets what the other has."""
    workers = [advanced("one"), advanced("two")]
    moment = own_clock.now + timedelta(seconds=5)
    producer.query(
        "select count(*) from postrow.enqueue_many('q', (select jsonb_agg('{\"payload\": 1}'::jsonb) "
        "from generate_series(1, 5000)), available_at => %s)",
        [moment],
    )
    assert producer.query("select distinct available_at from postrow.message") == [(moment,)]
    own_clock.advance(6)
    seen, sizes = Counter(), []
    for turn in range(1, 1000):
        worker = workers[turn % 2]
        if turn <= 2:
            worker.look()
        messages = worker.claim(300)
        if not messages:
            break
        worker.assert_from_watermark()
        seen.update(ids(messages))
        sizes.append(len(messages))
    assert sizes == [300] * 16 + [200]
    assert len(seen) == seen.total() == 5000


def test_messages_of_one_moment_all_come_once_through_claim_with_after(own_actors, own_clock, producer):
    """The same for a client in another language."""
    claimer = own_actors("claimer")
    moment = own_clock.now + timedelta(seconds=1)
    producer.rows("enqueue_many", queue="q", messages=[{"payload": 1}] * 500, available_at=moment)
    assert producer.query("select distinct available_at from postrow.message") == [(moment,)]
    own_clock.advance(1)
    after, seen = "-infinity", Counter()
    for _ in range(10):
        rows = claimer.take(50, after=after)
        assert len(rows) == 50
        seen.update(ids(rows))
        after = rows[0].frontier
    assert len(seen) == seen.total() == 500
    assert after == moment - TRAIL
    assert claimer.take(50, after=after) == []
