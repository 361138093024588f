"""Databases for tests: each a copy of a template that has the schema, on a private server or one that is given."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo

from postrow import embedded, migrate
from postrow.drivers.connecting import connect
from postrow.dsn import plain
from postrow.errors import BadArgumentError, PrivilegeError

DSN_VARIABLE = "POSTROW_TEST_DSN"
MARK = "made by postrow.testing"  # the comment of the schema `postrow`, which copies of the template have too


class Databases:
    """Makes databases for tests; a context manager.

    Args:
        dsn: a server with a role that may create databases. Default: the environment's POSTROW_TEST_DSN; without that a
            private server is started, and stopped at the end.
        prepare: called once with the DSN of the template, after the schema is there: the place for your own tables.
    """

    def __init__(self, dsn: str | None = None, *, prepare: Callable[[str], object] | None = None) -> None:
        self._given = dsn if dsn is not None else os.environ.get(DSN_VARIABLE) or None
        self._prepare = prepare
        self._server: embedded.Server | None = None
        self._admin: str | None = None
        self._template: str | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        if self._given is None:
            self._server = embedded.Server(durable=False).start()
            self._admin = self._server.dsn()
        else:
            self._admin, self._server = embedded.resolve(plain(self._given))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._template is not None:
                self._drop(self._template)
        finally:
            self._template = self._admin = None
            if self._server is not None:
                self._server.stop()
                self._server = None

    def dsn(self, database: str | None = None) -> str:
        """The DSN of a database on this server; None: the one to make others from.

        Raises:
            BadArgumentError: outside of the `with` block.
        """
        if self._admin is None:
            raise BadArgumentError("the server does not run", hint="Write: with Databases() as databases: ...")
        if database is None:
            return self._admin
        if "://" in self._admin:  # stays a URL, which other drivers need
            return urlsplit(self._admin)._replace(path=f"/{quote(database, safe='')}").geturl()
        return make_conninfo(self._admin, dbname=database)

    @contextmanager
    def new(self) -> Iterator[str]:
        """The DSN of a database of its own, with the schema; it is dropped at the end, whoever is connected to it.

        Raises:
            PrivilegeError: the role may not create databases.
            DatabaseUnreachableError: the server that was given is not there.
        """
        name = f"postrow_test_{uuid4().hex[:12]}"
        with self._lock:
            template = self._template = self._template or self._make_template()
        self._create(name, template)
        try:
            yield self.dsn(name)
        finally:
            self._drop(name)

    def _make_template(self) -> str:
        # a name of its own: test processes that share a server do not share a template, nor its life
        name = f"postrow_template_{uuid4().hex[:12]}"
        self._create(name, "template0")  # nobody can be connected to that one
        try:
            migrate.apply(self.dsn(name))
            with connect(self.dsn(name), name="postrow testing") as conn:
                conn.execute(f"comment on schema postrow is '{MARK}'")
            if self._prepare is not None:
                self._prepare(self.dsn(name))
            self._run(f"alter database {name} with allow_connections false")
            # a pool that was left open there would keep it from being copied
            self._run(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                # not autovacuum's worker: it gives way by itself, and only a superuser may end it
                f"where datname = '{name}' and backend_type = 'client backend'"
            )
        except BaseException:
            self._drop(name)
            raise
        return name

    def _create(self, name: str, template: str) -> None:
        try:
            self._run(f"create database {name} template {template}")
        except psycopg.errors.InsufficientPrivilege as error:
            raise PrivilegeError(
                f"the role may not create databases: {error.diag.message_primary}",
                hint="Run: alter role ... createdb, or unset POSTROW_TEST_DSN for a private server.",
            ) from error

    def _drop(self, name: str) -> None:
        self._run(f"drop database if exists {name} with (force)")

    def _run(self, statement: str) -> None:
        with connect(self.dsn(), name="postrow testing") as conn:
            conn.execute(statement)


def is_for_tests(conn: psycopg.Connection[Any]) -> bool | None:
    """Whether this module made the database of a connection; None: it has no schema of ours."""
    found = conn.execute(
        "select pg_catalog.obj_description(oid, 'pg_namespace') from pg_catalog.pg_namespace where nspname = 'postrow'"
    ).fetchone()
    return None if found is None else found[0] == MARK
