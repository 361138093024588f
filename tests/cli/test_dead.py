import json
import os

import psycopg
import pytest


@pytest.fixture
def three(db):
    """Dead letters of emails/acme, emails/default and reports/acme, oldest first; the oldest died two hours ago."""
    ids = [
        db.dead("emails", tenant="acme", error="first"),
        db.dead("emails", error="second"),
        db.dead("reports", tenant="acme", error="third", kind=None),
    ]
    db.conn.execute("update postrow.dead_letter set died_at = died_at - interval '2 hours' where id = %s", [ids[0]])
    return list(map(str, ids))


def _ids(found):
    return [line.split()[0] for line in found.out.splitlines()[1:]]


def test_list_shows_the_newest_first_with_the_last_error(run, three):
    found = run("dead", "list")
    assert _ids(found) == three[::-1]
    assert "1 attempts" in found.out
    assert found.out.splitlines()[1].endswith("  third")
    assert found.out.splitlines()[3].endswith("  RuntimeError: first")
    assert "2 h ago" in found.out


def test_list_filters_by_queue_tenant_and_age(run, three):
    assert _ids(run("dead", "list", "--queue", "emails")) == [three[1], three[0]]
    assert _ids(run("dead", "list", "--tenant", "acme")) == [three[2], three[0]]
    assert _ids(run("dead", "list", "--since", "1h")) == [three[2], three[1]]
    nothing = run("dead", "list", "--queue", "nosuch")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "There are no dead letters that fit.\n")


def test_list_says_when_there_are_more(run, three):
    found = run("dead", "list", "--limit", "2")
    assert _ids(found) == [three[2], three[1]]
    assert found.err == "There are more: --limit 20 shows them.\n"


def test_list_as_json(run, three):
    rows = json.loads(run("dead", "list", "--json").out)
    assert [row["id"] for row in rows] == three[::-1]
    assert rows[0]["failures"][0]["message"] == "third"


def test_show_has_the_payload_and_every_traceback(run, db):
    id_ = db.dead("emails", payload='{"user_id": 17}', traceback="File a\nFile b")
    found = run("dead", "show", str(id_))
    assert found.code == 0
    assert '      "user_id": 17\n' in found.out
    assert found.out.endswith("  traceback of attempt 1\n    File a\n    File b\n")


def test_show_of_a_message_that_is_not_dead_is_not_found(run, db):
    found = run("dead", "show", str(db.enqueue()))
    assert found.code == 3
    assert "there is no dead letter" in found.err


def test_redrive_by_id_gives_the_new_id(run, db, three):
    found = run("dead", "redrive", three[0])
    assert found.code == 0
    old, _, _, new = found.out.split()
    assert old == three[0]
    assert db.rows("select id::text, tenant, queue, attempt from postrow.message") == [(new, "acme", "emails", 0)]
    again = run("dead", "redrive", three[0])
    assert again.code == 3
    assert "was redriven at" in again.err


def test_redrive_by_filter_reports_each_row(run, db, three):
    found = run("dead", "redrive", "--queue", "emails", "--yes")
    assert found.code == 0
    assert [line.split()[0] for line in found.out.splitlines()] == three[:2]
    assert found.err == "2 of 2 dead letters of queue emails: done.\n"
    assert db.value("select count(*) from postrow.message") == 2
    assert _ids(run("dead", "list")) == [three[2]]
    assert set(_ids(run("dead", "list", "--resolved"))) == set(three)


def test_redrive_at_a_rate_takes_its_time(run, db, three, monkeypatch):
    pauses = []
    monkeypatch.setattr("postrow.cli.dead.time.sleep", pauses.append)
    assert run("dead", "redrive", "--all", "--yes", "--rate", "4").code == 0
    assert pauses == [0.25, 0.25]
    assert db.value("select count(*) from postrow.message") == 3


def test_redrive_since_takes_only_the_young(run, db, three):
    assert run("dead", "redrive", "--since", "1h", "--yes").code == 0
    assert _ids(run("dead", "list")) == [three[0]]


def test_redrive_without_a_terminal_and_yes_changes_nothing(process, db, three):
    found = process("dead", "redrive", "--all")
    assert found.code == 2
    assert found.err.startswith("postrow: Redrive 3 dead letters? There is no terminal to ask on.\n")
    assert db.value("select count(*) from postrow.message") == 0


@pytest.mark.parametrize(("answer", "code", "left"), [("n\n", 1, 3), ("\n", 1, 3), ("", 1, 3), ("y\n", 0, 0)])
def test_redrive_asks_first(run, db, three, monkeypatch, answer, code, left):
    monkeypatch.setattr("sys.stdin", _Terminal(answer))
    found = run("dead", "redrive", "--all")
    assert found.code == code
    assert found.err.startswith("Redrive 3 dead letters? [y/N] ")
    assert db.value("select count(*) from postrow.dead_letter where resolved_at is null") == left


class _Terminal:
    def __init__(self, answer):
        self.answer = answer

    def isatty(self):
        return True

    def readline(self):
        return self.answer


def test_a_row_that_somebody_else_decides_meanwhile_is_reported(run, db, three, monkeypatch, committed):
    class Meanwhile(_Terminal):
        def readline(self):
            with psycopg.connect(committed) as conn:
                conn.execute("select postrow.resolve(%s, 'default', 'ignored', 'meanwhile')", [three[1]])
            return "y\n"

    monkeypatch.setattr("sys.stdin", Meanwhile(""))
    found = run("dead", "redrive", "--all")
    assert found.code == 3
    assert [line.split()[0] for line in found.out.splitlines()] == [three[0], three[2]]
    assert f"{three[1]}  not changed: dead letter {three[1]} was ignored" in found.err
    assert found.err.endswith("2 of 3 dead letters: done.\n")


@pytest.mark.parametrize("words", [[], ["ID", "--queue", "emails"], ["ID", "--all"]])
def test_redrive_wants_an_id_or_filters(run, three, words):
    found = run("dead", "redrive", *[three[0] if word == "ID" else word for word in words])
    assert found.code == 2


def test_resolve_records_who_and_why(run, db, three):
    found = run("dead", "resolve", three[0], "--as", "handled", "--reason", "paid by hand")
    assert (found.code, found.out) == (0, f"{three[0]}  handled\n")
    assert db.rows("select resolution, resolution_reason from postrow.dead_letter where id = %s", three[0]) == [
        ("handled", "paid by hand")
    ]
    assert "handled by " in run("show", three[0]).out
    assert ": paid by hand" in run("show", three[0]).out


def test_resolve_by_filter_and_its_options(run, db, three):
    assert run("dead", "resolve", "--all", "--as", "ignored", "--reason", "old", "--yes").code == 0
    assert db.value("select count(*) from postrow.dead_letter where resolution = 'ignored'") == 3
    assert run("dead", "resolve", three[0], "--reason", "x").code == 2
    assert run("dead", "resolve", three[0], "--as", "lost", "--reason", "x").code == 2
    assert "reason is empty" in run("dead", "resolve", three[0], "--as", "ignored", "--reason", "").err


def test_an_id_that_is_dead_for_two_tenants_needs_the_tenant(run, db):
    id_ = "0192f3a1-0000-7000-8000-000000000001"
    for tenant in ("a", "b"):
        db.dead(tenant=tenant, id=id_)
    found = run("dead", "redrive", id_)
    assert found.code == 2
    assert "of tenants a, b" in found.err
    assert run("dead", "redrive", id_, "--tenant", "b").code == 0
    assert db.rows("select tenant from postrow.message") == [("b",)]


def test_a_reader_may_look_and_not_redrive(run, db, three, committed):
    role = f"cli_reader_{os.getpid()}"
    db.conn.execute(f"create role {role} login password 'x' in role postrow_reader")
    dsn = psycopg.conninfo.make_conninfo(committed, user=role, password="x")
    try:
        for words in (["status"], ["dead", "list"], ["show", three[0]], ["peek", "emails"], ["consumer", "list"]):
            assert run(*words, dsn=dsn).code == 0
        found = run("dead", "redrive", three[0], dsn=dsn)
    finally:
        db.conn.execute(f"drop role {role}")
    assert found.code == 4
    assert "postrow_admin decides" in found.err
