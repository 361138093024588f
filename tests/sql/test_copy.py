"""Telling a copy of a database from its original: what is remembered, when, and what is refused."""

import uuid
from contextlib import contextmanager

import psycopg
import pytest


@contextmanager
def copy_of(server, dsn, functions_on):
    """A copy of a database, by `create database ... template`, and the SQL functions on it."""
    name = f"copy_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(f"create database {name} template {psycopg.conninfo.conninfo_to_dict(dsn)['dbname']}")
        try:
            with psycopg.connect(server.dsn(name), autocommit=True) as conn:
                yield functions_on(conn)
        finally:
            admin.execute(f"drop database {name} with (force)")


def test_the_first_worker_makes_the_database_its_home_and_later_ones_find_it_so(pg, clock):
    assert pg.value("copied_from") is None
    pg.query("delete from postrow.home")
    pg.rows("refuse_copy")
    home = pg.query("select * from postrow.home")
    clock.advance(60)
    pg.rows("refuse_copy")

    assert pg.query("select * from postrow.home") == home
    assert home[0].database_name == pg.conn.info.dbname
    assert home[0].system_identifier == pg.query("select system_identifier from pg_control_system()")[0][0]
    assert pg.value("copied_from") is None
    assert pg.value("adopt") is False


def test_a_template_that_no_worker_has_worked_on_can_be_copied_at_will(server, database, functions_on):
    with copy_of(server, database, functions_on) as pg:
        pg.rows("refuse_copy")
        assert pg.value("copied_from") is None


@pytest.mark.session("the server copies no database, and renames none, that a pooler is connected to")
def test_a_copy_within_the_server_is_refused_until_it_is_adopted(server, database, functions_on):
    with psycopg.connect(database, autocommit=True) as conn:
        functions_on(conn).rows("refuse_copy")
    original = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    with copy_of(server, database, functions_on) as pg:
        assert pg.value("copied_from") == f"database {original} of this server"
        error = pg.refused("refuse_copy")
        assert error.sqlstate == "PW010"
        assert f"has the messages of database {original} of this server" in str(error)
        assert "postrow adopt" in error.diag.message_hint

        assert pg.value("adopt") is True
        pg.rows("refuse_copy")
        assert pg.value("copied_from") is None
    with psycopg.connect(database, autocommit=True) as conn:
        functions_on(conn).rows("refuse_copy")  # the original is none the wiser


@pytest.mark.session("the server copies no database, and renames none, that a pooler is connected to")
def test_a_database_that_is_renamed_is_no_copy(server, database, functions_on):
    with psycopg.connect(database, autocommit=True) as conn:
        functions_on(conn).rows("refuse_copy")
    old, new = psycopg.conninfo.conninfo_to_dict(database)["dbname"], f"renamed_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(f"alter database {old} rename to {new}")
        try:
            with psycopg.connect(server.dsn(new), autocommit=True) as conn:
                functions_on(conn).rows("refuse_copy")
        finally:
            admin.execute(f"alter database {new} rename to {old}")


@pytest.mark.parametrize("remembered", [None, 4711])
def test_a_server_whose_number_cannot_be_read_is_told_by_the_database_alone(pg, remembered):
    pg.rows("refuse_copy")
    pg.query("update postrow.home set system_identifier = %s", [remembered])
    pg.query("revoke execute on function pg_catalog.pg_control_system() from public")
    pg.query("create role owner")
    pg.query("grant usage on schema postrow to owner")
    for function in ("copied_from", "system_identifier"):
        pg.query(f"alter function postrow.{function}() owner to owner")
    pg.query("grant select on postrow.home to owner")

    assert pg.value("copied_from") is None
    pg.query("update postrow.home set database_oid = 1")
    assert pg.value("copied_from") == f"database {pg.conn.info.dbname} of this server"
