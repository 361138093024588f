import io
import json

import pytest


def test_a_queue_is_paused_and_resumed(run, db):
    db.rows("select id from postrow.enqueue('emails', '1')")
    found = run("pause", "emails", "--reason", "their server is down")
    assert (found.code, found.out) == (0, "queue emails is paused\n")
    assert run("pause", "emails").out == "queue emails is paused, as before\n"
    assert db.rows("select id from postrow.claim('emails', 1)") == []
    assert "paused: postrow resume" in run("status").out
    assert json.loads(run("status", "--json").out)[0]["paused"] is True
    assert run("resume", "emails").out == "queue emails is resumed\n"
    assert len(db.rows("select id from postrow.claim('emails', 1)")) == 1


def test_a_tenant_and_a_tenants_queue_are_paused(run, db):
    assert run("pause", "--tenant", "acme").out == "tenant acme is paused\n"
    assert run("pause", "emails", "--tenant", "beta").out == "queue emails of tenant beta is paused\n"
    found = run("resume", "emails")
    assert found.code == 3
    assert "Paused: tenant acme; queue emails of tenant beta." in found.err
    run("resume", "--tenant", "acme")
    run("resume", "emails", "--tenant", "beta")
    assert "Nothing is paused." in run("resume", "emails").err


def test_a_pause_of_nothing_says_what_to_give(run):
    for command in ("pause", "resume"):
        found = run(command)
        assert found.code == 2
        assert "neither a queue nor a tenant" in found.err
        assert "Give QUEUE, --tenant TENANT, or both." in found.err


def test_purge_wants_the_number_of_what_it_deletes(run, db):
    db.rows("select count(*) from postrow.enqueue_lines('emails', E'1\\n2\\n3')")
    db.rows("select count(*) from postrow.enqueue_lines('emails', '1', tenant => 'acme')")
    db.rows("select id from postrow.claim('emails', 1, tenant => 'default')")
    found = run("purge", "emails", "--count", "4")
    assert (found.code, db.value("select postrow.depth('emails')")) == (2, 4)
    assert "queue emails has 3 messages: nothing is deleted" in found.err
    assert "--count 3" in found.err
    assert run("purge", "emails", "--tenant", "acme", "--count", "1").out == (
        "1 message of queue emails of tenant acme deleted\n"
    )
    assert run("purge", "emails", "--count", "2").out == "2 messages of queue emails deleted\n"
    assert db.value("select postrow.depth('emails')") == 1
    assert "nothing that nobody holds" in run("purge", "emails").err


@pytest.mark.parametrize(("answer", "code", "left"), [("yes\n", 2, 2), ("\n", 2, 2), ("1\n", 2, 2), ("2\n", 0, 0)])
def test_purge_asks_where_no_number_is_given(run, db, monkeypatch, answer, code, left):
    db.rows("select count(*) from postrow.enqueue_lines('emails', E'1\\n2')")
    terminal = io.StringIO(answer)
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    found = run("purge", "emails")
    assert (found.code, db.value("select postrow.depth('emails')")) == (code, left)
    assert found.err.startswith("This deletes 2 messages of queue emails. Type the number: ")


def test_purge_takes_the_number_as_it_is_printed(run, db, monkeypatch):
    lines = "select string_agg('1', E'\\n') from generate_series(1, 1234)"
    db.rows(f"select count(*) from postrow.enqueue_lines('emails', ({lines}))")
    terminal = io.StringIO("1,234\n")
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    found = run("purge", "emails")
    assert found.err.startswith("This deletes 1,234 messages of queue emails.")
    assert (found.code, db.value("select postrow.depth('emails')")) == (0, 0)


def test_purge_deletes_no_more_than_was_confirmed_while_others_enqueue(run, db, monkeypatch):
    from postrow.cli import pause

    for _ in range(5):
        db.enqueue()
    monkeypatch.setattr(pause, "PURGED_AT_ONCE", 2)
    original = pause.execute

    def execute(conn, op):
        if "postrow.purge(" in op.sql:
            db.enqueue()
        return original(conn, op)

    monkeypatch.setattr(pause, "execute", execute)
    assert run("purge", "emails", "--count", "5").out == "5 messages of queue emails deleted\n"
    assert db.value("select count(*) from postrow.message") == 3


def test_purge_without_a_terminal_and_a_number_deletes_nothing(run, db, monkeypatch):
    db.rows("select id from postrow.enqueue('emails', '1')")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    found = run("purge", "emails")
    assert (found.code, db.value("select postrow.depth('emails')")) == (2, 1)
    assert "--count 1" in found.err
