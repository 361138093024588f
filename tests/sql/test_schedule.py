"""Schedules in the database: declared, due, and each time enqueued once."""

from datetime import timedelta

import pytest

HOUR = timedelta(hours=1)


def put(pg, **options):
    given = {"name": "nightly", "queue": "reports", "payload": {"a": 1}, "kind": "cron", "spec": "0 * * * *"}
    given["next_at"] = options.pop("next_at", pg.value("clock") + HOUR)
    return pg.value("put_schedule", **(given | options))


def only(pg):
    (row,) = pg.rows("schedules")
    return row


def test_a_schedule_is_written_where_something_differs(pg):
    assert put(pg, headers={"a": 1}, max_attempts=3, priority=2, missed="all", timezone="Europe/Berlin")
    assert not put(pg, headers={"a": 1}, max_attempts=3, priority=2, missed="all", timezone="Europe/Berlin")
    row = only(pg)
    assert (row.name, row.queue, row.payload, row.headers) == ("nightly", "reports", {"a": 1}, {"a": 1})
    assert (row.missed, row.timezone, row.max_attempts, row.paused) == ("all", "Europe/Berlin", 3, False)
    assert put(pg)


def test_its_next_time_is_kept_until_its_times_are_others(pg):
    first = pg.value("clock") + HOUR
    put(pg, next_at=first)
    put(pg, next_at=first + HOUR, payload=2)
    assert only(pg).next_at == first
    put(pg, next_at=first + HOUR, spec="30 * * * *")
    assert only(pg).next_at == first + HOUR


def test_what_is_due_is_fired_once_and_goes_on(pg, clock):
    due_at = pg.value("clock") + HOUR
    put(pg, next_at=due_at, priority=3, headers={"a": 1}, max_attempts=2)
    assert pg.rows("due_schedules") == []
    assert pg.value("next_schedule") == due_at
    clock.advance(3600)
    (row,) = pg.rows("due_schedules")
    assert row.next_at == due_at
    assert pg.value("fire", name="nightly", times=[due_at], next_at=due_at + HOUR) == 1
    (message,) = pg.query("select * from postrow.message")
    assert (message.queue, message.payload, message.priority, message.max_attempts) == ("reports", {"a": 1}, 3, 2)
    assert message.headers["a"] == 1
    assert message.headers["schedule"] == "nightly"
    assert message.headers["scheduled_for"].endswith("Z")
    assert (only(pg).next_at, only(pg).last_at) == (due_at + HOUR, due_at)
    assert pg.rows("due_schedules") == []


def test_a_time_that_is_fired_again_is_the_same_message(pg):
    now = pg.value("clock")
    put(pg)
    assert pg.value("fire", name="nightly", times=[now, now + HOUR], next_at=None) == 2
    assert pg.value("fire", name="nightly", times=[now + HOUR, now + 2 * HOUR], next_at=None) == 1
    assert pg.value("depth", queue="reports") == 3


def test_the_same_time_of_two_schedules_or_tenants_is_two_messages(pg):
    now = pg.value("clock")
    put(pg)
    put(pg, name="other")
    put(pg, tenant="acme")
    for which in ({"name": "nightly"}, {"name": "other"}, {"name": "nightly", "tenant": "acme"}):
        assert pg.value("fire", **which, times=[now], next_at=None) == 1


def test_what_is_paused_is_not_due_until_it_is_resumed(pg):
    put(pg, next_at=pg.value("clock"))
    assert pg.value("pause_schedule", name="nightly", paused=True)
    assert (pg.rows("due_schedules"), pg.value("next_schedule")) == ([], None)
    assert pg.value("pause_schedule", name="nightly", paused=False)
    assert len(pg.rows("due_schedules")) == 1
    assert not pg.value("pause_schedule", name="other", paused=True)


def test_what_is_dropped_fires_no_more_and_leaves_what_it_enqueued(pg):
    now = pg.value("clock")
    put(pg)
    pg.value("fire", name="nightly", times=[now], next_at=now)
    assert pg.value("drop_schedule", name="nightly")
    assert not pg.value("drop_schedule", name="nightly")
    assert pg.value("fire", name="nightly", times=[now + HOUR], next_at=None) == 0
    assert pg.value("depth", queue="reports") == 1


@pytest.mark.parametrize(
    ("bad", "sqlstate"),
    [
        ({"name": "no good"}, "PW002"),
        ({"queue": "no good"}, "PW002"),
        ({"tenant": "no good"}, "PW002"),
        ({"payload": None}, "PW003"),
        ({"spec": None}, "PW003"),
        ({"kind": "never"}, "PW003"),
        ({"missed": "twice"}, "PW003"),
        ({"priority": 99_999}, "PW003"),
        ({"headers": [1]}, "PW003"),
        ({"max_attempts": 0}, "PW003"),
        ({"next_at": "infinity"}, "PW003"),
        ({"kind": None}, "PW003"),
        ({"timezone": "Mars/Olympus"}, "PW003"),
        ({"spec": "* * *"}, "PW003"),
        ({"kind": "every", "spec": "5 minutes"}, "PW003"),
        ({"kind": "every", "spec": "0"}, "PW003"),
        ({"kind": "every", "spec": "1e400"}, "PW003"),
        ({"kind": "at", "spec": "2026-05-01T12:00:00"}, "PW003"),  # where?
        ({"kind": "at", "spec": "2026-02-31T12:00:00Z"}, "PW003"),
    ],
)
def test_bad_arguments_are_refused(pg, bad, sqlstate):
    given = {"name": "n", "queue": "q", "payload": 1, "kind": "cron", "spec": "* * * * *"}
    given["next_at"] = pg.value("clock")
    assert pg.refused("put_schedule", **(given | bad)).sqlstate == sqlstate


def test_times_with_a_null_are_refused(pg):
    put(pg)
    assert pg.refused("fire", name="nightly", times=None, next_at=None).sqlstate == "PW003"
    assert pg.refused("fire", name="nightly", times=[None], next_at=None).sqlstate == "PW003"
