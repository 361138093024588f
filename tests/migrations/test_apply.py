import subprocess
import sys

import psycopg
import pytest

from postrow import migrate, sql
from postrow.errors import DatabaseUnreachableError, LockNotAvailableError
from postrow.sql import SCHEMA_VERSION, SqlFile

pytestmark = pytest.mark.slow

KILL = "select pg_terminate_backend(pg_backend_pid(), 5000)"


def with_statement(file, statement, at):
    """The file with one more statement, under the same checksum."""
    statements = [*file.statements]
    statements.insert(at, statement)
    return SqlFile(file.name, tuple(statements), file.checksum)


def test_an_empty_database_gets_the_whole_schema(empty_database, catalog):
    done = migrate.apply(empty_database)
    assert done == migrate.Plan(None, sql.migrations(), sql.functions())
    catalog(empty_database)


def test_a_second_run_finds_nothing_to_do(database):
    with psycopg.connect(database, autocommit=True) as conn:
        before = conn.execute("select name, applied_at from postrow.function_file order by name").fetchall()
        assert migrate.plan(conn).empty
    done = migrate.apply(database)
    assert done.empty
    assert not done.newer
    assert done.present == SCHEMA_VERSION
    with psycopg.connect(database) as conn:
        assert conn.execute("select name, applied_at from postrow.function_file order by name").fetchall() == before


def test_a_run_makes_the_partitions_of_the_coming_days(empty_database):
    migrate.apply(empty_database)
    with psycopg.connect(empty_database) as conn:
        days = conn.execute("select count(*) from pg_inherits where inhparent = 'postrow.history'::regclass").fetchone()
    assert days == (9,)  # today, seven more, and the default


def test_a_changed_function_file_is_applied_again(database, monkeypatch):
    first, *others = sql.functions()
    changed = with_statement(first, "create function postrow.marker() returns int language sql return 1", 0)
    changed = SqlFile(changed.name, changed.statements, "another checksum")
    monkeypatch.setattr(sql, "functions", lambda: (changed, *others))
    assert migrate.apply(database).functions == (changed, *others)
    with psycopg.connect(database, autocommit=True) as conn:
        assert conn.execute("select postrow.marker()").fetchone() == (1,)
        granted = "select has_function_privilege('public', 'postrow.marker()', 'execute')"
        assert conn.execute(granted).fetchone() == (False,)
        assert migrate.plan(conn).empty


TEN = """
import os, sys
import psycopg
from postrow import migrate

read, write = os.pipe()
children = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # until all are there
        migrate.apply(sys.argv[1])
        os._exit(0)
    children.append(child)
os.close(write)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


def test_ten_processes_at_once_make_one_schema(empty_database, catalog):
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", TEN, empty_database],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    catalog(empty_database)


def test_the_printed_script_makes_the_same_schema(empty_database, catalog):
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute(migrate.sql())
        while conn.execute("select more from postrow.sweep('history')").fetchone()[0]:
            pass
        assert migrate.plan(conn).empty
    catalog(empty_database)


def test_a_printed_script_may_begin_after_a_migration(empty_database, catalog):
    with psycopg.connect(empty_database, autocommit=True) as conn:
        first, *_ = sql.migrations()
        with conn.transaction():
            for statement in (*first.statements, migrate._record(first)):
                conn.execute(statement)
        script = migrate.sql(from_=1)
        assert "create table postrow.message" not in script
        conn.execute(script)
    migrate.apply(empty_database)  # the partitions
    catalog(empty_database)


def test_a_script_up_to_a_migration_has_none_after_it():
    assert "0002_roles" not in migrate.sql(to=1)


def test_a_run_gives_up_clearly_while_another_one_holds_the_lock(empty_database, catalog):
    with psycopg.connect(empty_database) as other:
        other.execute("select pg_advisory_xact_lock(%s, %s)", migrate.LOCK_KEYS)
        with pytest.raises(LockNotAvailableError, match="could not be locked") as caught:
            migrate.apply(empty_database, wait=0.3)
        assert "run postrow migrate again" in caught.value.hint
    migrate.apply(empty_database)
    catalog(empty_database)


def test_a_run_that_meets_a_locked_table_gives_up_and_goes_on_later(database, monkeypatch):
    extra = SqlFile("0003_test", ("alter table postrow.message add column test int",), "sum")
    present = sql.migrations()
    monkeypatch.setattr(sql, "migrations", lambda: (*present, extra))
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT", "50ms")
    with psycopg.connect(database) as reader:
        reader.execute("select from postrow.message")
        with pytest.raises(LockNotAvailableError, match="a long transaction"):
            migrate.apply(database, wait=0.3)
        assert reader.execute("select count(*) from postrow.migration").fetchone() == (2,)
    assert migrate.apply(database).migrations == (extra,)
    with psycopg.connect(database) as conn:
        conn.execute("select test from postrow.message")


def test_an_open_reader_of_the_history_does_not_hold_up_a_run(empty_database, catalog, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(migrate, "_partition", lambda _conn: False)
        migrate.apply(empty_database)
    with psycopg.connect(empty_database) as reader:
        reader.execute("select from postrow.history")
        migrate.apply(empty_database)  # makes no partition: a worker's sweep will, or the next run
    migrate.apply(empty_database)
    catalog(empty_database)


@pytest.mark.parametrize(
    ("step", "place"),
    [
        ("0001_tables", "start"),
        ("0001_tables", "end"),
        ("0002_roles", "end"),
        ("10_clock", "end"),
        ("95_grants", "end"),
    ],
)
def test_an_interrupted_run_is_finished_by_the_next(empty_database, catalog, monkeypatch, step, place):
    def broken(files):
        return tuple(
            with_statement(file, KILL, 0 if place == "start" else len(file.statements)) if file.name == step else file
            for file in files
        )

    migrations, functions = broken(sql.migrations()), broken(sql.functions())
    with monkeypatch.context() as patch:
        patch.setattr(sql, "migrations", lambda: migrations)
        patch.setattr(sql, "functions", lambda: functions)
        with pytest.raises(DatabaseUnreachableError, match="interrupted") as caught:
            migrate.apply(empty_database)
        assert "what is done stays done" in caught.value.hint
    migrate.apply(empty_database)
    catalog(empty_database)


def test_a_run_interrupted_between_partitions_is_finished_by_the_next(empty_database, catalog, monkeypatch):
    partition = migrate._partition

    def one_and_out(conn):
        partition(conn)
        conn.execute(KILL)

    with monkeypatch.context() as patch:
        patch.setattr(migrate, "_partition", one_and_out)
        with pytest.raises(DatabaseUnreachableError):
            migrate.apply(empty_database)
    assert migrate.apply(empty_database).empty
    catalog(empty_database)


def test_settings_of_the_database_do_not_reach_into_a_run(
    empty_database, server, catalog, monkeypatch, forget_sessions
):
    name = empty_database.rpartition("/")[2]
    settings = {
        "statement_timeout": "300ms",
        "search_path": "nowhere",
        "default_transaction_isolation": "serializable",
    }
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        for setting, value in settings.items():
            conn.execute(f"alter database {name} set {setting} = '{value}'")
    first, *others = sql.migrations()
    slow = with_statement(first, "select pg_sleep(0.4)", 0)
    monkeypatch.setattr(sql, "migrations", lambda: (slow, *others))
    migrate.apply(empty_database)
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(f"alter database {name} reset all")
    forget_sessions(empty_database)
    catalog(empty_database)


def test_a_server_that_is_not_there_is_said_without_the_password():
    with pytest.raises(DatabaseUnreachableError) as caught:
        migrate.apply("postgresql://u:s3cret@127.0.0.1:1/x")
    assert "s3cret" not in str(caught.value)


def test_a_plan_sees_what_another_process_did_meanwhile(empty_database):
    """Also in a transaction that has seen that there was nothing: a session's caches may be behind its lock."""
    with psycopg.connect(empty_database, autocommit=True) as conn, conn.transaction():
        assert migrate.plan(conn).present is None
        migrate.apply(empty_database)
        assert migrate.plan(conn).empty
