import json
import re
import uuid
from contextlib import contextmanager

import psycopg
import pytest
from pgbouncer import POOLED

from postrow import migrate
from postrow.drivers import pooling
from postrow.sql import SCHEMA_VERSION, functions

pytestmark = pytest.mark.slow
one_warning_more = pytest.mark.session("a pooler in between is a warning of its own")
starts_its_own = pytest.mark.session("it starts poolers of its own")

CHECKS = [
    *("schema", "copy", "consumers", "backlog", "targets", "pauses", "groups", "schedules", "leases", "history"),
    *("snapshot", "vacuum", "taps", "freeze", "indexes", "privileges", "clocks", "pooler"),
]
NO_WORKER = "update postrow.message set available_at = available_at - %s::interval"


def finding(run, name, *words, dsn=None):
    """What `postrow doctor --json` has under a name, and its exit code."""
    ended = run("doctor", "--json", *words, dsn=dsn)
    (found,) = [each for each in json.loads(ended.out) if each["name"] == name]
    return found | {"code": ended.code}


@one_warning_more
def test_a_healthy_database_is_said_to_be_so(run):
    ended = run("doctor")
    assert ended.code == 0
    assert ended.err == ""
    place, _, fine, _, summary = ended.out.splitlines()
    assert re.fullmatch(r"127\.0\.0\.1:\d+/test_\w+", place)
    assert fine == f"ok       {', '.join(CHECKS)}"
    assert summary == "nothing is wrong; 18 of 18 checks are fine"


@one_warning_more
def test_all_shows_the_figures_of_what_is_fine(run):
    lines = run("doctor", "--all").out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("ok ")] == CHECKS
    assert any(re.fullmatch(r"ok       taps        the notify queue is \d+\.\d % full", line) for line in lines)


@one_warning_more
def test_json_has_every_check(run):
    found = json.loads(run("doctor", "--json").out)
    assert [each["name"] for each in found] == CHECKS
    assert {(each["level"], each["advice"]) for each in found} == {("ok", None)}
    assert all(set(each) == {"name", "level", "detail", "advice"} for each in found)


@one_warning_more
def test_a_problem_is_said_with_what_to_do_and_exits_1(run, db):
    db.enqueue("emails")
    db.conn.execute(NO_WORKER, ["3 hours"])
    ended = run("doctor")
    assert ended.code == 1
    assert ended.out.splitlines()[2:4] == [
        "problem  consumers   ready messages, and no living worker: emails (3 h)",
        "                     → Start a worker that handles them: postrow worker MODULE:APP. See: postrow status",
    ]
    assert ended.out.splitlines()[-1] == "1 problem; 17 of 18 checks are fine"


@one_warning_more
def test_a_warning_exits_0_and_with_strict_1(run, db):
    db.enqueue("emails")
    db.conn.execute(NO_WORKER, ["3 min"])
    ended = run("doctor")
    assert ended.code == 0
    assert "\nwarning  consumers   ready messages, and no living worker: emails (3 min)\n" in ended.out
    assert ended.out.endswith("1 warning; 17 of 18 checks are fine\n")
    assert run("doctor", "--strict").code == 1
    db.conn.execute("delete from postrow.message")
    assert run("doctor", "--strict").code == 0


@one_warning_more
def test_problems_stand_before_warnings(run, db):
    db.enqueue("emails")
    db.conn.execute(NO_WORKER, ["3 min"])
    db.conn.execute("alter table postrow.seen set (autovacuum_enabled = off)")
    try:
        lines = run("doctor").out.splitlines()
    finally:
        db.conn.execute("alter table postrow.seen reset (autovacuum_enabled)")
    assert [line.split()[0] for line in lines if re.match("[a-z]+ {2,}", line)] == ["problem", "warning", "ok"]
    assert lines[-1] == "1 problem, 1 warning; 16 of 18 checks are fine"


def test_what_is_in_the_database_cannot_steer_the_terminal(run, db):
    db.enqueue("emails")
    db.rows("select postrow.pause(tenant => 'default', reason => %s)", "\x1b[2Jgone")
    db.conn.execute(NO_WORKER, ["3 hours"])
    db.conn.execute("update postrow.pause set paused_at = paused_at - interval '3 hours'")
    ended = run("doctor")
    assert r"\x1b[2Jgone" in ended.out
    assert "\x1b" not in ended.out


# the schema


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.9", "has Postrow schema 0.9, and this package needs"),
        ("99.0", "has Postrow schema 99.0, and this package works with"),
    ],
)
def test_a_schema_of_another_version_is_a_problem_that_exits_1(run, database, version, said):
    with psycopg.connect(database) as conn:
        conn.execute(
            f"create or replace function postrow.schema_version() returns text language sql as $$select '{version}'$$"
        )
    found = finding(run, "schema", dsn=database)
    assert (found["level"], found["code"]) == ("problem", 1)
    assert said in found["detail"]
    assert found["advice"]


def test_a_newer_minor_version_is_fine(run, database):
    version = f"{SCHEMA_VERSION[0]}.{SCHEMA_VERSION[1] + 1}"
    with psycopg.connect(database) as conn:
        conn.execute(
            f"create or replace function postrow.schema_version() returns text language sql as $$select '{version}'$$"
        )
        conn.execute("update postrow.function_file set checksum = 'another'")
    found = finding(run, "schema", dsn=database)
    assert (found["level"], found["code"]) == ("ok", 0)
    assert f"the schema is {version}, newer" in found["detail"]


def test_no_schema_is_a_problem_that_exits_1(run, empty_database):
    ended = run("doctor", dsn=empty_database)
    assert ended.code == 1
    assert "problem  schema      this database has no Postrow schema\n" in ended.out
    assert "→ Run: postrow migrate\n" in ended.out


def test_function_files_that_differ_are_named(run, database):
    with psycopg.connect(database) as conn:
        conn.execute("update postrow.function_file set checksum = 'another' where name ~ '^(60|80)'")
    found = finding(run, "schema", dsn=database)
    assert (found["level"], found["code"]) == ("problem", 1)
    assert found["detail"].endswith("and has another form of: 60_claim, 80_sweep")

    with psycopg.connect(database) as conn:
        conn.execute("delete from postrow.function_file")
    found = finding(run, "schema", dsn=database)
    assert found["detail"].endswith(f" and {len(functions()) - 10} more")
    migrate.apply(database)
    assert finding(run, "schema", dsn=database)["level"] == "ok"


def test_a_migration_of_another_form_is_a_problem(run, database):
    with psycopg.connect(database) as conn:
        conn.execute("update postrow.migration set checksum = 'another' where version = 1")
    found = finding(run, "schema", dsn=database)
    assert (found["level"], found["code"]) == ("problem", 1)
    assert "another form than this package has" in found["detail"]


# who looks


@contextmanager
def login(dsn, member_of):
    """The DSN of a new role on the same database; it is dropped at the end."""
    name = f"shop_{uuid.uuid4().hex[:8]}"
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"create role {name} login password 'x'" + (f" in role {member_of}" if member_of else ""))
        try:
            yield f"postgresql://{name}:x@{parts['host']}:{parts['port']}/{parts['dbname']}", name
        finally:
            conn.execute(f"drop role {name}")


@pytest.mark.parametrize("role", ["postrow_worker", "postrow_reader", "postrow_admin"])
def test_whoever_may_look_gets_every_check(run, committed, role):
    with login(committed, role) as (dsn, name):
        found = json.loads(run("doctor", "--json", dsn=dsn).out)
    assert [each["name"] for each in found] == CHECKS
    assert {each["name"] for each in found if each["level"] != "ok"} == ({"pooler"} if POOLED else set())
    by_name = {each["name"]: each["detail"] for each in found}
    assert by_name["privileges"] == f"role {name} has {role}"
    assert ("cannot be compared" in by_name["schema"]) == (role == "postrow_worker")


@pytest.mark.parametrize("role", ["postrow_producer", None])
def test_a_role_that_may_not_look_is_told_what_to_grant(run, committed, role):
    with login(committed, role) as (dsn, name):
        found = finding(run, "privileges", dsn=dsn)
    assert (found["level"], found["code"]) == ("problem", 1)
    assert f"role {name} may not look" in found["detail"]
    assert f'grant postrow_reader to "{name}";' in found["advice"]


def test_grants_that_were_lost_come_back_as_advised(run, database):
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("revoke all on all functions in schema postrow from postrow_worker")
        found = finding(run, "privileges", dsn=database)
        assert (found["level"], found["code"]) == ("problem", 1)
        conn.execute(re.search(r"delete from [\w.]+;", found["advice"])[0])
    assert run("migrate", dsn=database).code == 0
    assert finding(run, "privileges", dsn=database)["level"] == "ok"


def test_no_database_and_no_dsn_are_errors_and_no_page(run, monkeypatch):
    ended = run("doctor", dsn="postgresql://postrow@127.0.0.1:1/shop")
    assert (ended.code, ended.out) == (4, "")
    assert ended.err.startswith("postrow: cannot reach the database at 127.0.0.1:1: ")
    monkeypatch.delenv("POSTROW_DSN")
    ended = run("doctor")
    assert (ended.code, ended.out) == (2, "")


def test_a_table_that_is_locked_makes_no_doctor_hang(run, committed):
    with psycopg.connect(committed) as rival:
        rival.execute("lock table postrow.message")
        found = finding(run, "locks")
    assert (found["level"], found["code"]) == ("problem", 1)
    assert "pg_locks" in found["advice"]


# poolers


@starts_its_own
def test_a_pooler_in_transaction_mode_is_a_warning(run, committed, bouncer):
    way = bouncer(committed, "transaction").dsn()
    found = finding(run, "pooler", dsn=way)
    assert (found["level"], found["code"]) == ("warning", 0)
    assert found["detail"] == "the connection goes through a pooler in transaction mode"
    assert "--listen-dsn" in found["advice"]


@starts_its_own
def test_a_pooler_that_hands_out_its_connections_in_turn_is_found_out_too(run, committed, bouncer):
    way = bouncer(committed, "transaction", server_round_robin=1, min_pool_size=5).dsn()
    assert finding(run, "pooler", dsn=way)["detail"] == "the connection goes through a pooler in transaction mode"


@starts_its_own
def test_a_pooler_that_has_two_connections_and_hands_them_out_in_turn_is_found_out(run, committed, bouncer):
    way = bouncer(committed, "transaction", server_round_robin=1, default_pool_size=2).dsn()
    with psycopg.connect(way) as one, psycopg.connect(way) as other:  # so it has both
        for each in (one, other):
            each.execute("select 1")
    assert finding(run, "pooler", dsn=way)["detail"] == "the connection goes through a pooler in transaction mode"


@starts_its_own
def test_a_pooler_in_statement_mode_is_a_problem(run, committed, bouncer):
    found = finding(run, "pooler", dsn=bouncer(committed, "statement").dsn())
    assert (found["level"], found["code"]) == ("problem", 1)
    assert found["detail"] == "the connection goes through a pooler that allows no transactions"


@starts_its_own
def test_a_pooler_in_session_mode_is_fine(run, committed, bouncer):
    found = finding(run, "pooler", dsn=bouncer(committed, "session").dsn())
    assert (found["level"], found["detail"]) == ("ok", "the connection goes through a pooler in session mode")


@starts_its_own
def test_a_pooler_that_has_no_connection_left_does_not_make_the_doctor_wait(run, committed, bouncer, monkeypatch):
    monkeypatch.setattr(pooling, "PATIENCE", 0.3)
    found = finding(run, "pooler", dsn=bouncer(committed, "session", default_pool_size=1).dsn())
    assert found["level"] == "warning"
    assert "whose mode cannot be told" in found["detail"]


@starts_its_own
def test_a_listener_behind_the_pooler_that_it_warns_of_hears_nothing(committed, bouncer, db):
    # the reason for the warning
    with psycopg.connect(bouncer(committed, "transaction").dsn(), autocommit=True) as deaf:
        deaf.execute("listen postrow")
        with psycopg.connect(committed, autocommit=True) as direct:
            direct.execute("listen postrow")
            db.enqueue("emails")
            assert [tap.payload for tap in direct.notifies(timeout=20, stop_after=1)] == ["emails default"]
        assert list(deaf.notifies(timeout=0.2)) == []
