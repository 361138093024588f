import json
import re
from datetime import UTC, datetime

from postrow.cli.life import life


def _story(found):
    # what is not of today has its date before it, and the other lines room for one: at midnight, too
    return [line[2:] for line in found.out.splitlines() if re.match(r" +(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d  ", line)]


def _without_times(found):
    return [re.sub(r"^(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d  ", "", line.strip()) for line in _story(found)]


def test_a_ready_message_says_how_long_it_waits(run, db):
    id_ = db.enqueue("emails", '{"user_id": 17}', tenant="acme", subject="order:17", priority=5)
    found = run("show", str(id_))
    assert found.code == 0
    lines = found.out.splitlines()
    assert lines[0] == "emails / acme   subject order:17   ready"
    enqueued, ready = _without_times(found)
    assert enqueued.startswith("enqueued by ")
    assert re.fullmatch(r"ready: waits for \d+ m?s", ready)
    assert "  priority 5" in lines
    assert lines[-4:] == ["  payload", "    {", '      "user_id": 17', "    }"]


def test_a_delayed_message_says_when_it_is_due(run, db):
    found = run("show", str(db.enqueue(delay="90 min")))
    assert found.out.startswith("emails / default   scheduled\n")
    assert _without_times(found)[-1] == "due in 1 h"


def test_a_claimed_message_says_by_whom_and_until_when(run, db):
    id_ = db.enqueue()
    db.claim(worker="w7", lease="10 min")
    db.rows("update postrow.message set enqueued_at = claimed_at - interval '42 ms' returning id")
    claimed, lease = _without_times(run("show", str(id_)))[1:]
    assert claimed == "claimed by w7 (attempt 1), waited 42 ms"
    assert lease == "its lease ends in 9 min unless it is renewed"


def test_the_whole_life_of_a_message_that_failed_and_was_done(run, db):
    id_ = db.enqueue()
    db.fail(db.claim(worker="w1"), "SMTP down", "SMTPError", "  File x, line 1", datetime.now(UTC))
    db.ack(db.claim(worker="w2"))
    db.rows("update postrow.history set finished_at = started_at + interval '17 ms' returning id")
    found = run("show", str(id_))
    assert found.out.startswith("emails / default   done\n")
    enqueued, failed, claimed, done = _without_times(found)
    assert enqueued.startswith("enqueued by ")
    assert failed == "failed (attempt 1, w1): SMTPError: SMTP down"
    assert claimed == "claimed by w2 (attempt 2)"
    assert done == "done, ran 17 ms"
    assert "File x, line 1" not in found.out
    assert "  traceback of attempt 1\n      File x, line 1" in run("show", str(id_), "--full").out


def test_a_dead_message_and_the_one_that_it_was_redriven_as_name_each_other(run, db):
    old = db.dead(error="no such user")
    new = db.value("select postrow.redrive(%s, 'default')", old)
    dead = run("show", str(old))
    assert dead.out.startswith("emails / default   dead\n")
    assert _without_times(dead)[1:3] == [
        "failed (attempt 1, w1): RuntimeError: no such user",
        "dead: its attempts are spent",
    ]
    assert _without_times(dead)[3].startswith(f"redriven as {new} by ")
    assert f"Its life goes on: postrow show {new}" in dead.out

    alive = _without_times(run("show", str(new)))
    assert alive[0] == "failed (attempt 1, w1): RuntimeError: no such user"
    assert alive[1].endswith(f", redriven from dead letter {old}")


def test_an_id_of_two_tenants_is_shown_for_both_or_the_one_asked_for(run, db):
    id_ = "0192f3a1-0000-7000-8000-000000000001"
    for tenant in ("a", "b"):
        db.enqueue(tenant=tenant, id=id_)
    assert "emails / a" in (both := run("show", id_).out)
    assert "emails / b" in both
    assert "emails / a" not in run("show", id_, "--tenant", "b").out
    assert [row["tenant"] for row in json.loads(run("show", id_, "--json").out)] == ["a", "b"]


def test_a_message_that_is_not_there_is_not_found(run):
    found = run("show", "0192f3a1-0000-7000-8000-000000000001", "--tenant", "acme")
    assert (found.code, found.out) == (3, "")
    assert found.err.startswith("postrow: there is no message 0192f3a1-0000-7000-8000-000000000001 of tenant acme\n")


def test_a_long_payload_is_cut_unless_it_is_asked_for(run, db):
    id_ = db.enqueue("emails", json.dumps(list(range(100))))
    assert "… 82 more lines" in run("show", str(id_)).out
    assert "      99\n" in run("show", str(id_), "--full").out


def test_a_payload_with_a_very_long_integer_is_shown(run, db):
    number = "9" * 5_000
    id_ = db.enqueue("emails", number)
    for words in ([], ["--full"], ["--json"]):
        found = run("show", str(id_), *words)
        assert (found.code, found.err) == (0, "")
    assert number in run("show", str(id_), "--full").out


def test_escapes_are_shown_and_not_sent(run, db):
    id_ = db.dead("emails", payload='"\\u001b[31m"', error="\x1b[2J\nnext", subject="\x1b[5m")
    found = run("show", str(id_), "--full")
    assert "\x1b" not in found.out
    assert r"RuntimeError: \x1b[2J\nnext" in found.out


def test_attempts_that_are_not_kept_are_mentioned():
    at = "2024-05-01T10:00:%02d.5+00:00"
    row = {
        "state": "ready", "enqueued_at": at % 0, "enqueued_by": None, "attempt": 14, "available_at": at % 30,
        "failures": [{"attempt": n, "at": at % n} for n in range(5, 15)],
    }  # fmt: skip
    texts = [event.text for event in life(row, now=datetime(2024, 5, 1, 10, 1, tzinfo=UTC))]
    assert texts[:3] == [
        "enqueued by unknown", "(attempts before 5 are not kept)", "failed (attempt 5): no error text"
    ]  # fmt: skip
    assert texts[-1] == "ready: waits for 29 s"


def test_peek_shows_what_a_claim_would_take_and_takes_nothing(run, db):
    first = db.enqueue("emails", '{"n": 1}', tenant="acme", priority=-1)
    later = db.enqueue("emails", json.dumps({"text": "x" * 500}), delay="2 hours")
    taken = db.enqueue("emails", tenant="zeta")
    db.rows("select * from postrow.claim('emails', 1, tenant => 'zeta')")
    # of a known age: how long the test itself takes is no matter
    age = "update postrow.message set available_at = postrow.clock() - interval '5 min 30 s' where id = %s returning id"
    db.rows(age, first)
    found = run("peek", "emails")
    titles, *lines = found.out.splitlines()
    assert titles.split() == ["id", "tenant", "priority", "due", "attempts", "payload"]
    assert [line.split()[0] for line in lines] == [str(first), str(later)]
    assert re.search(r'acme +-1  5 min ago +0  \{"n": 1\}$', lines[0])
    assert re.search(r' in 1 h +0  \{"text": "x+…$', lines[1])
    assert [row["id"] for row in json.loads(run("peek", "emails", "--limit", "1", "--json").out)] == [str(first)]
    assert run("peek", "emails", "--tenant", "zeta").err == "Nothing waits in emails of tenant zeta.\n"
    assert db.value("select count(*) from postrow.message where claim_token is not null") == 1
    assert taken not in (first, later)


def test_peek_refuses_a_bad_name(run):
    assert run("peek", "bad name").code == 2
