"""Other migration tools run our SQL, in a transaction of theirs; Alembic does as the how-to says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from postrow import migrate, sql
from postrow.errors import BadArgumentError

pytestmark = pytest.mark.slow

HOWTO = Path(__file__).parents[2] / "docs/howto/migrate-with-alembic.md"
LAST = sql.migrations()[-1].version


def run_all(conn, statements):
    for statement in statements:
        conn.execute(statement)


def partitions(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        while conn.execute("select more from postrow.sweep('history')").fetchone()[0]:
            pass


def test_the_statements_make_the_schema_in_one_transaction(empty_database, catalog):
    with psycopg.connect(empty_database) as conn:
        run_all(conn, migrate.statements())
    partitions(empty_database)
    with psycopg.connect(empty_database, autocommit=True) as conn:
        assert migrate.plan(conn).empty
    catalog(empty_database)


def test_the_statements_leave_the_settings_of_the_transaction_as_they_were(empty_database):
    settings = "select current_setting('search_path'), current_setting('statement_timeout')"
    with psycopg.connect(empty_database) as conn:
        conn.execute("create schema mine")
        conn.execute("set local search_path = mine, public")
        conn.execute("set local statement_timeout = '5s'")
        run_all(conn, migrate.statements())
        assert conn.execute(settings).fetchone() == ("mine, public", "5s")
        conn.execute("create table here (id int)")
        assert conn.execute("select from mine.here").fetchall() == []
    with psycopg.connect(empty_database) as conn:
        assert conn.execute("select current_setting('search_path')").fetchone() == ('"$user", public',)


def test_a_part_of_the_statements_goes_on_where_the_last_one_ended(empty_database, catalog):
    for begin in range(LAST):
        with psycopg.connect(empty_database) as conn:
            run_all(conn, migrate.statements(begin, begin + 1))
    with psycopg.connect(empty_database) as conn:
        run_all(conn, migrate.statements(LAST, LAST))  # the functions again, as after a change of them
    partitions(empty_database)
    catalog(empty_database)


def test_functions_come_with_the_last_migration_only():
    early = "\n".join(migrate.statements(0, LAST - 1))
    assert "create table postrow.message" in early
    assert "function postrow.claim" not in early
    assert "function postrow.claim" not in migrate.sql(0, LAST - 1)
    assert "function postrow.claim" in "\n".join(migrate.statements(LAST))


@pytest.mark.parametrize("numbers", [(LAST + 1,), (-1,), (0, LAST + 1), (2, 1)])
@pytest.mark.parametrize("function", [migrate.sql, migrate.statements])
def test_numbers_that_are_no_migrations_are_refused(function, numbers):
    with pytest.raises(BadArgumentError, match=f"this package has 1 to {LAST}"):
        function(*numbers)


def test_apply_on_leaves_the_connection_as_it_was(empty_database, catalog):
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        assert migrate.apply_on(conn).functions == sql.functions()
        assert conn.isolation_level is psycopg.IsolationLevel.SERIALIZABLE
        assert conn.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        assert migrate.apply_on(conn).empty
    catalog(empty_database)


def test_apply_on_refuses_a_connection_that_is_in_a_transaction(empty_database):
    with psycopg.connect(empty_database) as conn, pytest.raises(BadArgumentError, match="is in a transaction"):
        migrate.apply_on(conn)
    with (
        psycopg.connect(empty_database, autocommit=True) as conn,
        conn.transaction(),
        pytest.raises(BadArgumentError, match="is in a transaction"),
    ):
        migrate.apply_on(conn)


class Alembic:
    """A folder that `alembic init` made, with the revision of the how-to."""

    def __init__(self, folder, dsn, driver):
        self.folder = folder
        self.dsn = dsn
        self.run("init", "--template", "async" if driver == "asyncpg" else "generic", "steps")
        ini = folder / "alembic.ini"
        url = dsn.replace("postgresql://", f"postgresql+{driver}://").replace("%", "%%")
        text = re.sub(r"(?m)^sqlalchemy\.url = .*$", lambda _: f"sqlalchemy.url = {url}", ini.read_text())
        ini.write_text(text)
        block = re.search(r"```python\n(.*?)```", HOWTO.read_text(encoding="utf-8"), re.DOTALL)[1]
        assert f"statements(0, {LAST})" in block, "the how-to stops before the last migration"
        (folder / "steps/versions/a1b2c3d4e5f6_postrow.py").write_text(block, encoding="utf-8")

    def run(self, *words, module="alembic"):
        done = subprocess.run(
            [sys.executable, "-m", module, *words],
            cwd=self.folder,
            env={**os.environ, "POSTROW_DSN": self.dsn},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "asyncpg"])
def test_alembic_upgrades_an_empty_database(tmp_path, empty_database, catalog, driver):
    alembic = Alembic(tmp_path, empty_database, driver)
    alembic.run("upgrade", "head")
    assert "up to date" in alembic.run("migrate", "--check", module="postrow")
    assert "a1b2c3d4e5f6 (head)" in alembic.run("current")
    partitions(empty_database)
    catalog(empty_database)


def test_alembic_prints_the_sql_for_a_dba(tmp_path, empty_database, catalog):
    alembic = Alembic(tmp_path, empty_database, "psycopg")
    script = alembic.run("upgrade", "head", "--sql")
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute(script)
    assert "a1b2c3d4e5f6 (head)" in alembic.run("current")
    partitions(empty_database)
    catalog(empty_database)
