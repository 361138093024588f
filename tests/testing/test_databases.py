import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from postrow import App, BadArgumentError, DatabaseUnreachableError, PrivilegeError
from postrow.testing import Databases, clock, drain

pytestmark = pytest.mark.slow  # each waits for real time to pass


def names(server):
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        return {name for (name,) in conn.execute("select datname from pg_database").fetchall()}


def test_each_database_is_fresh_and_has_what_was_prepared(server):
    prepared = []

    def prepare(dsn):
        prepared.append(dsn)
        with psycopg.connect(dsn) as conn:
            conn.execute("create table orders (id int)")

    before = names(server)
    with Databases(server.dsn(), prepare=prepare) as databases:
        for _ in range(2):
            with databases.new() as dsn, psycopg.connect(dsn) as conn:
                assert conn.execute("select count(*) from orders").fetchone() == (0,)
                assert conn.execute("select postrow.depth('q')").fetchone() == (0,)
                conn.execute("insert into orders values (1)")
    assert len(prepared) == 1
    assert names(server) == before


def test_two_databases_may_be_open_at_once(postrow_server):
    with postrow_server.new() as one, postrow_server.new() as other:
        first, second = App(one), App(other)
        second.queue("q").consumer(name="h")(lambda message: None)
        first.send("q", 1)
        assert drain(second).done == 0
        first.close()


def test_a_connection_that_was_left_open_keeps_no_database_from_being_made_or_dropped(server):
    left = []
    before = names(server)
    with (
        Databases(server.dsn(), prepare=lambda dsn: left.append(psycopg.connect(dsn))) as databases,
        databases.new() as dsn,
    ):
        left.append(psycopg.connect(dsn))
    assert names(server) == before
    for conn in left:
        conn.close()


def test_a_preparation_that_fails_leaves_no_template(server):
    before = names(server)

    def prepare(dsn):
        raise LookupError("a migration is broken")

    with (
        Databases(server.dsn(), prepare=prepare) as databases,
        pytest.raises(LookupError, match="broken"),
        databases.new(),
    ):
        pass
    assert names(server) == before


@pytest.mark.parametrize("form", ["url", "keywords"])
def test_the_dsn_of_a_database_has_the_form_of_the_one_that_was_given(server, form, monkeypatch):
    given = server.dsn()
    if form == "keywords":
        given = make_conninfo(**conninfo_to_dict(given))
    monkeypatch.setenv("POSTROW_TEST_DSN", given)
    with Databases() as databases:
        assert databases.dsn() == given
        with databases.new() as dsn, psycopg.connect(dsn) as conn:
            assert dsn.startswith("postgresql://") == (form == "url")
            assert conn.info.dbname.startswith("postrow_test_")


def test_a_role_that_owns_the_database_and_nothing_else_is_enough(server):
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute("create role postrow_tester login createdb password 'secret'")
    dsn = make_conninfo(server.dsn(), user="postrow_tester", password="secret")
    try:
        with Databases(dsn) as databases, databases.new() as own, clock(own) as moved:
            app = App(own)
            app.queue("q").consumer(name="h")(lambda message: None)
            app.send("q", 1, delay=60)
            moved.advance(60)
            assert drain(app).done == 1
            app.close()
    finally:
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("drop role postrow_tester")


def test_a_role_that_may_not_create_databases_is_told_what_to_do(server):
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute("create role postrow_guest login password 'secret'")
    dsn = make_conninfo(server.dsn(), user="postrow_guest", password="secret")
    try:
        with Databases(dsn) as databases, pytest.raises(PrivilegeError, match="alter role"), databases.new():
            pass
    finally:
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("drop role postrow_guest")


def test_a_server_that_is_not_there_is_said():
    with (
        Databases("postgresql://127.0.0.1:1/postgres") as databases,
        pytest.raises(DatabaseUnreachableError),
        databases.new(),
    ):
        pass


def test_databases_are_made_inside_the_block_only(server):
    databases = Databases(server.dsn())
    with pytest.raises(BadArgumentError, match="with Databases"), databases.new():
        pass
    with databases:
        pass
    with pytest.raises(BadArgumentError, match="with Databases"):
        databases.dsn()


@pytest.mark.slow
def test_without_a_dsn_a_private_server_is_started_and_stopped(monkeypatch):
    monkeypatch.delenv("POSTROW_TEST_DSN", raising=False)
    with Databases() as databases:
        own = databases.dsn()
        with databases.new() as dsn, psycopg.connect(dsn) as conn:
            assert conn.execute("select postrow.depth('q')").fetchone() == (0,)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(own)
