import psycopg

from postrow import migrate as migrations


def test_migrate_brings_the_schema_up_and_says_what_it_did(run, empty_database):
    behind = run("migrate", "--check", dsn=empty_database)
    assert behind.code == 1
    assert behind.out.startswith("behind: there is no schema, this package needs 1.1; missing: 0001_tables, 0002_roles")
    assert behind.err == "Run: postrow migrate\n"

    first = run("migrate", dsn=empty_database)
    assert first.code == 0
    assert first.out.startswith("the schema is now 1.1 (there was none): applied 0001_tables, 0002_roles, ")

    assert run("migrate", dsn=empty_database).out == "the schema is up to date: 1.1\n"
    fine = run("migrate", "--check", dsn=empty_database)
    assert (fine.code, fine.out, fine.err) == (0, "the schema is up to date: 1.1\n", "")


def test_check_changes_nothing(run, empty_database):
    run("migrate", "--check", dsn=empty_database)
    with psycopg.connect(empty_database) as conn:
        assert conn.execute("select to_regnamespace('postrow') is null").fetchone() == (True,)


def test_check_finds_a_function_that_is_behind(run, database):
    with psycopg.connect(database) as conn:
        conn.execute("update postrow.function_file set checksum = 'old' where name = '50_enqueue'")
    found = run("migrate", "--check", dsn=database)
    assert found.code == 1
    assert "files of functions" in found.out


def test_the_sql_for_a_dba_needs_no_database_and_is_what_migrate_runs(run, monkeypatch):
    monkeypatch.delenv("POSTROW_DSN")
    found = run("migrate", "--sql")
    assert found.code == 0
    assert found.out.strip() == migrations.sql().strip()
    assert "-- 0001_tables" not in run("migrate", "--sql", "--from", "1").out


def test_options_that_exclude_each_other_are_refused(run):
    assert run("migrate", "--sql", "--check").code == 2
    assert run("migrate", "--from", "1").code == 2


def test_a_newer_major_version_is_refused(run, database):
    with psycopg.connect(database) as conn:
        conn.execute(
            "create or replace function postrow.schema_version() returns text language sql immutable "
            "as $$select '9.0'$$"
        )
    for words in (["migrate"], ["migrate", "--check"], ["status"]):
        found = run(*words, dsn=database)
        assert found.code == 4
        assert "this database has Postrow schema 9.0" in found.err
