"""Migrating as a role that may not do everything; a cluster of its own, since roles belong to the whole cluster."""

import os
from pathlib import Path

import psycopg
import pytest

import postrow
from postrow import migrate
from postrow.embedded import Server
from postrow.errors import PrivilegeError


@pytest.fixture(scope="module")
def cluster():
    folder = os.environ.get("POSTROW_TEST_BIN")
    with Server(bin_dir=Path(folder) if folder else None, durable=False) as running:
        with psycopg.connect(running.dsn(), autocommit=True) as conn:
            conn.execute("create role shop login password 'shop'")
            conn.execute("create role guest login password 'guest'")
            conn.execute("create database shop owner shop")
        yield running


def as_role(cluster, role):
    return f"postgresql://{role}:{role}@127.0.0.1:{cluster.port}/shop"


def test_a_role_that_may_not_create_roles_gets_the_sql_and_a_schema_that_works(cluster):
    shop = as_role(cluster, "shop")

    with pytest.raises(PrivilegeError, match="role guest may not migrate") as caught:
        migrate.apply(as_role(cluster, "guest"))
    assert caught.value.hint == "Let a role that may run: grant create on database shop to guest;"

    notices = []
    migrate.apply(shop, notice=notices.append)
    assert len(notices) == 4
    for role, text in zip(migrate.ROLES, notices, strict=True):
        assert f"create role {role} nologin" in text
    with psycopg.connect(shop) as conn:
        postrow.enqueue(conn, "q", 1)
        assert conn.execute("select payload from postrow.claim('q', 1)").fetchone() == (1,)

    with pytest.raises(PrivilegeError) as caught:
        migrate.apply(as_role(cluster, "guest"))
    assert caught.value.hint == "The schema belongs to shop: run postrow migrate as that role."
    with psycopg.connect(as_role(cluster, "guest")) as conn, pytest.raises(PrivilegeError) as caught:
        postrow.enqueue(conn, "q", 1)
    assert "postrow_producer enqueues" in caught.value.hint

    # as the notice says: a role that may creates them, then the migration is run again
    with psycopg.connect(cluster.dsn(), autocommit=True) as conn:
        for role in migrate.ROLES:
            conn.execute(f"create role {role} nologin")
        conn.execute("grant postrow_producer to guest")
    done = migrate.apply(shop)
    assert done.functions
    assert not done.migrations
    assert migrate.apply(shop).empty
    with psycopg.connect(as_role(cluster, "guest")) as conn:
        postrow.enqueue(conn, "q", 2)
        with pytest.raises(PrivilegeError):
            postrow.depth(conn, "q")
