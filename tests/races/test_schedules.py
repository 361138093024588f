"""Two schedulers at once: each time is enqueued once."""

from datetime import timedelta


def declare(actor):
    now = actor.value("clock")
    actor.value(
        "put_schedule", name="n", queue="q", payload=1, kind="every", spec="60", next_at=now - timedelta(seconds=1)
    )
    return now - timedelta(seconds=1)


def test_a_schedule_that_another_has_is_passed_by(actors):
    one, two = actors("one"), actors("two").impatient()
    due_at = declare(one)
    one.begin()
    assert len(one.rows("due_schedules")) == 1
    assert two.rows("due_schedules") == []
    one.value("fire", name="n", times=[due_at], next_at=due_at + timedelta(seconds=60))
    one.commit()
    assert two.rows("due_schedules") == []
    assert two.value("depth", queue="q") == 1


def test_a_scheduler_that_dies_before_its_commit_leaves_the_time_to_another(actors):
    one, two = actors("one"), actors("two")
    due_at = declare(one)
    one.begin()
    one.rows("due_schedules")
    one.value("fire", name="n", times=[due_at], next_at=due_at + timedelta(seconds=60))
    one.rollback()
    (row,) = two.rows("due_schedules")
    assert two.value("fire", name="n", times=[row.next_at], next_at=None) == 1


def test_two_who_fire_one_time_enqueue_one_message(actors):
    """Though the second did not ask which are due, as after a change of its times."""
    one, two = actors("one"), actors("two")
    due_at = declare(one)
    one.begin()
    one.value("fire", name="n", times=[due_at], next_at=due_at + timedelta(seconds=60))
    waiting = two.start("fire", name="n", times=[due_at], next_at=due_at + timedelta(seconds=60)).wait_until_blocked()
    one.commit()
    assert waiting.result() == [(0,)]
    assert two.value("depth", queue="q") == 1
