from pathlib import Path

import psycopg
import pytest

from postrow import migrate, sql
from postrow.drivers import psycopg3
from postrow.errors import SchemaMismatchError
from postrow.ops import fleet
from postrow.sql import SCHEMA_VERSION

MAJOR, MINOR = SCHEMA_VERSION


def pretend(dsn, version):
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "create or replace function postrow.schema_version() returns text language sql immutable "
            f"as $$select '{version}'$$"
        )


def test_the_package_and_its_sql_say_the_same_version(conn):
    assert conn.execute("select postrow.schema_version()").fetchone() == (f"{MAJOR}.{MINOR}",)
    assert psycopg3.execute(conn, fleet.schema_version()) == SCHEMA_VERSION
    assert migrate.version(conn) == SCHEMA_VERSION


def test_the_list_of_checksums_is_up_to_date():
    listed = Path(sql.__file__).with_name("checksums.txt").read_text(encoding="utf-8")
    assert listed == sql.checksums(), (
        "the SQL has changed. A released migration never changes: write a new one. "
        "For anything else raise SCHEMA_VERSION if it was released, and run: make checksums"
    )


def test_migrations_are_numbered_without_a_gap():
    assert [file.version for file in sql.migrations()] == list(range(1, len(sql.migrations()) + 1))


def test_a_statement_is_never_empty_and_never_ends_with_a_semicolon():
    """The script of `migrate.sql` puts one behind each."""
    for file in (*sql.migrations(), *sql.functions()):
        for statement in file.statements:
            last = statement.rstrip().splitlines()[-1]
            assert not last.endswith(";"), file.name
            assert not last.startswith("--"), file.name


@pytest.mark.parametrize(
    ("present", "words"),
    [
        (None, "has no Postrow schema"),
        ((MAJOR, MINOR - 1), f"needs {MAJOR}.{MINOR}"),
        ((MAJOR - 1, MINOR + 7), f"needs {MAJOR}.{MINOR}"),
    ],
)
def test_no_schema_or_an_older_one_is_refused_with_the_command_to_run(present, words):
    with pytest.raises(SchemaMismatchError, match=words) as caught:
        migrate.verify(present)
    assert caught.value.hint == "Run: postrow migrate"


def test_a_newer_minor_version_works():
    migrate.verify(SCHEMA_VERSION)
    migrate.verify((MAJOR, MINOR + 5))


def test_a_newer_major_version_is_refused_with_the_package_to_install():
    with pytest.raises(SchemaMismatchError, match=rf"schema {MAJOR + 1}\.0") as caught:
        migrate.verify((MAJOR + 1, 0))
    assert "pip install --upgrade postrow" in caught.value.hint


def test_a_database_of_a_newer_minor_version_is_left_alone(database):
    pretend(database, f"{MAJOR}.{MINOR + 1}")
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("update postrow.function_file set checksum = 'newer'")
        done = migrate.apply(database)
        assert done.newer
        assert done.empty
        assert migrate.version(conn) == (MAJOR, MINOR + 1)


def test_a_database_of_a_newer_major_version_is_refused(database):
    pretend(database, f"{MAJOR + 1}.0")
    with pytest.raises(SchemaMismatchError, match=f"works with {MAJOR}"):
        migrate.apply(database)


@pytest.mark.parametrize("older", [f"{MAJOR}.{MINOR - 1}", f"{MAJOR - 1}.9"])
def test_a_database_of_an_older_version_is_brought_up(database, older):
    pretend(database, older)
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("update postrow.function_file set checksum = 'older' where name like '90%'")
        assert migrate.apply(database).present == tuple(map(int, older.split(".")))
        assert migrate.version(conn) == SCHEMA_VERSION


def test_a_migration_that_was_applied_in_another_form_is_refused(database):
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("update postrow.migration set checksum = 'x' where version = 2")
    with pytest.raises(SchemaMismatchError, match="0002_roles was applied here in another form"):
        migrate.apply(database)


async def test_a_client_on_a_database_without_the_schema_is_told_what_to_run(empty_database):
    import postrow

    with psycopg.connect(empty_database) as conn, pytest.raises(SchemaMismatchError) as caught:
        postrow.enqueue(conn, "q", 1)
    assert caught.value.hint == "Run: postrow migrate"
    with psycopg.connect(empty_database, autocommit=True) as conn:
        assert migrate.version(conn) is None
        conn.execute("create schema postrow")
        assert migrate.version(conn) is None
        with conn.transaction(), pytest.raises(SchemaMismatchError):
            postrow.enqueue(conn, "q", 1)
