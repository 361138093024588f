"""When schedules come: cron over changes of the clocks, intervals, and what becomes of missed times."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import islice, takewhile

import pytest

from postrow import BadArgumentError, schedules
from postrow.schedules import Times, coming, times


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def firsts(spec, zone, now, count):
    return [at.isoformat()[:16] for at in coming(Times("cron", spec, zone), utc(now), count)]


def test_cron_is_meant_in_its_zone_and_given_in_utc():
    assert firsts("30 4 * * *", "Europe/Berlin", "2026-01-10T00:00", 2) == ["2026-01-10T03:30", "2026-01-11T03:30"]
    assert firsts("30 4 * * *", "Asia/Kolkata", "2026-01-10T00:00", 1) == ["2026-01-10T23:00"]


@pytest.mark.parametrize(
    ("zone", "spec", "now", "expected"),
    [
        # Berlin, 29 March 2026: 02:00 to 03:00 does not exist; it comes right after the gap, at 03:00 local
        ("Europe/Berlin", "30 2 * * *", "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:30"]),
        # 25 October 2026: 02:00 to 03:00 comes twice; it comes once
        ("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00", ["2026-10-25T00:30", "2026-10-26T01:30"]),
        # what comes each half hour goes by real time
        (
            "Europe/Berlin",
            "*/30 * * * *",
            "2026-10-24T23:45",
            ["2026-10-25T00:00", "2026-10-25T00:30", "2026-10-25T01:00"],
        ),
        ("Europe/Berlin", "0 * * * *", "2026-03-29T00:30", ["2026-03-29T01:00", "2026-03-29T02:00"]),
        # Lord Howe, half an hour of daylight saving: 4 October 2026, 02:00 to 02:30 does not exist
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03T00:00", ["2026-10-03T15:30", "2026-10-04T15:15"]),
        # 5 April 2026, 01:30 to 02:00 comes twice
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04T00:00", ["2026-04-04T14:45", "2026-04-05T15:15"]),
    ],
)
def test_a_change_of_the_clocks_loses_none_and_doubles_none(zone, spec, now, expected):
    assert firsts(spec, zone, now, len(expected)) == expected


def test_seconds_stand_first_in_six_fields():
    first, second = coming(times(cron="*/20 * * * * *"), utc("2026-01-01T00:00:05"), 2)
    assert (first.second, second - first) == (20, timedelta(seconds=20))


def test_a_schedule_comes_after_the_moment_and_not_at_it():
    assert firsts("0 12 * * *", "UTC", "2026-01-01T12:00", 1) == ["2026-01-02T12:00"]
    before = utc("2026-01-01T12:00") - timedelta(microseconds=1)
    assert next(Times("cron", "0 12 * * *").after(before)) == utc("2026-01-01T12:00")


def test_an_interval_keeps_its_rhythm():
    every = times(every=timedelta(minutes=5))
    start = utc("2026-01-01T00:00:07")
    assert list(islice(every.after(start), 2)) == [start + timedelta(minutes=5), start + timedelta(minutes=10)]
    late = start + timedelta(minutes=17)
    assert next(every.after(late, last=start)) == start + timedelta(minutes=20)
    assert [times(every=timedelta(days=12, seconds=n)).spec for n in (1, 1.5)] == ["1036801", "1036801.5"]


def test_one_moment_comes_once():
    at = datetime(2026, 5, 1, 14, 0, tzinfo=timezone(timedelta(hours=2)))
    once = times(at=at)
    assert list(once.after(at - timedelta(seconds=1))) == [at]
    assert list(once.after(at)) == []
    assert once.due(at, at, "once") == ([at], None)


HOURLY = Times("cron", "0 * * * *")
NOON = utc("2026-01-01T12:00")


@pytest.mark.parametrize(
    ("late", "missed", "hours"),
    [
        (timedelta(seconds=3), "skip", [12]),
        (timedelta(seconds=3), "once", [12]),
        (timedelta(seconds=3), "all", [12]),
        (timedelta(minutes=30), "skip", []),
        (timedelta(hours=3, minutes=30), "skip", []),
        (timedelta(hours=3, seconds=30), "skip", [15]),
        (timedelta(hours=3, minutes=30), "once", [15]),
        (timedelta(hours=3, minutes=30), "all", [12, 13, 14, 15]),
    ],
)
def test_what_becomes_of_missed_times(late, missed, hours):
    due = HOURLY.due(NOON, NOON + late, missed)
    assert [at.hour for at in due.times] == hours
    assert due.next_at == (NOON + late).replace(minute=0, second=0) + timedelta(hours=1)


@pytest.mark.parametrize("times", [Times("cron", "* * * * * *"), Times("every", "1"), Times("cron", "* * * 1 * *")])
@pytest.mark.parametrize("missed", ["once", "all"])
def test_what_was_missed_for_a_year_is_not_counted_one_by_one(times, missed, monkeypatch):
    steps = 0
    original = Times.after

    def counted(self, *args, **options):
        nonlocal steps
        for at in original(self, *args, **options):
            steps += 1
            yield at

    now = NOON + timedelta(days=366)  # the second of a month
    exact = list(takewhile(lambda at: at <= now, times.after(now - timedelta(hours=12, minutes=20))))[-schedules.MOST :]
    monkeypatch.setattr(Times, "after", counted)
    due = times.due(NOON, now, missed)
    assert due.times == (exact if missed == "all" else exact[-1:])
    assert due.next_at == next(times.after(now, last=NOON))
    assert steps < 200_000


def test_an_interval_that_goes_back_is_an_error_not_an_endless_loop():
    with pytest.raises(ValueError, match="every -60 s"):
        Times("every", "-60").due(NOON, NOON + timedelta(days=1), "once")


def test_of_all_missed_times_a_thousand_are_made_up_for():
    minutely = Times("cron", "* * * * *")
    due = minutely.due(NOON, NOON + timedelta(minutes=5000, seconds=1), "all")
    assert (len(due.times), due.times[-1]) == (schedules.MOST, NOON + timedelta(minutes=5000))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "one of cron, every and at"),
        ({"cron": "* * * * *", "every": 5}, "one of cron, every and at"),
        ({"cron": "61 * * * *"}, "cron is"),
        ({"cron": "* * *"}, "cron is"),
        ({"cron": "0 0 31 2 *"}, "cron is"),
        ({"every": 0}, "every is"),
        ({"every": 0.5}, "every is"),
        ({"every": timedelta(days=10_000)}, "every is"),
        ({"at": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001  # that is the case
        ({"cron": "* * * * *", "timezone": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        ({"cron": "* * * * *", "timezone": "../etc/passwd"}, "no time zone"),
    ],
)
def test_what_cannot_be_read_is_refused(given, says):
    with pytest.raises(BadArgumentError, match=says):
        times(**given)
