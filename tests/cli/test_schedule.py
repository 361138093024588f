import json
from datetime import datetime

import pytest


def lines(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_schedule_is_added_listed_paused_and_removed(run, db):
    found = run(
        "schedule", "add", "nightly", "reports", '{"a": 1}', "--cron", "30 4 * * *", "--timezone", "Asia/Kolkata"
    )
    assert found.code == 0
    assert found.out.startswith("nightly (30 4 * * * Asia/Kolkata) goes to reports, next at ")
    assert found.out.rstrip().endswith("23:00:00+00:00")
    listed = lines(run("schedule", "list").out)
    assert listed[0] == "name tenant when queue missed next"
    assert listed[1].startswith("nightly default 30 4 * * * Asia/Kolkata reports once 20")
    assert db.value("select payload from postrow.schedule") == {"a": 1}
    assert run("schedule", "pause", "nightly").out == "nightly is paused\n"
    assert lines(run("schedule", "list").out)[1].endswith("paused")
    assert run("schedule", "resume", "nightly").out == "nightly is resumed\n"
    assert run("schedule", "remove", "nightly").out == "nightly is removed\n"
    assert "There are no schedules" in run("schedule", "list").err


def test_added_again_it_is_as_before_and_changed_where_it_differs(run, db):
    run("schedule", "add", "n", "q", "--every", "5min")
    assert run("schedule", "add", "n", "q", "--every", "5min").out.endswith(", as before\n")
    run("schedule", "add", "n", "q", "--every", "1h", "--missed", "all")
    assert db.rows("select spec, missed from postrow.schedule") == [("3600", "all")]
    (row,) = json.loads(run("schedule", "list", "--json").out)
    assert (row["kind"], row["spec"], row["missed"], row["paused"]) == ("every", "3600", "all", False)
    assert (row["payload"], row["priority"], row["headers"], row["max_attempts"]) == ("null", 0, None, None)


def test_the_next_times_are_shown_in_the_zone(run):
    run("schedule", "add", "n", "q", "--cron", "30 4 * * *", "--timezone", "Europe/Berlin")
    shown = [datetime.fromisoformat(line) for line in run("schedule", "next", "n").out.splitlines()]
    assert [(at.hour, at.minute) for at in shown] == [(4, 30)] * 5
    assert len(run("schedule", "next", "--cron", "0 * * * *", "--count", "3").out.splitlines()) == 3


def test_a_moment_that_has_passed_is_said_to(run):
    found = run("schedule", "add", "n", "q", "--at", "2020-01-01T00:00:00Z")
    assert "it never comes" in found.out
    assert "does not come any more" in run("schedule", "next", "n").err


@pytest.mark.parametrize(
    ("spec", "zone", "why"), [("61 * * * *", "UTC", "Bad minute"), ("0 4 * * *", "PST", "there is no time zone 'PST'")]
)
def test_a_schedule_that_another_client_wrote_and_cannot_be_read_is_said_to_be_so(run, db, spec, zone, why):
    run("schedule", "add", "n", "q", "--cron", "30 4 * * *")
    db.rows("update postrow.schedule set spec = %s, timezone = %s returning name", spec, zone)
    found = run("schedule", "next", "n")
    assert (found.code, found.out) == (2, "")
    assert "the schedule n cannot be read here: " in found.err
    assert why in found.err
    assert "postrow schedule add" in found.err


def test_what_is_not_there_is_not_found(run):
    for words in (["pause", "n"], ["resume", "n"], ["remove", "n"], ["next", "n"]):
        found = run("schedule", *words)
        assert found.code == 3, words
        assert "postrow schedule list" in found.err


def test_what_cannot_be_read_says_what_to_give(run):
    assert "Five fields" in run("schedule", "add", "n", "q", "--cron", "x").err
    assert "one of cron, every and at" in run("schedule", "add", "n", "q").err
    assert "Europe/Berlin" in run("schedule", "next", "--cron", "* * * * *", "--timezone", "x").err
