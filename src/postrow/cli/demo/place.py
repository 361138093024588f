"""Where the demo runs: a private server in a temporary folder, or a database of its own on a given server."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from postrow import embedded
from postrow.cli import database
from postrow.drivers.connecting import conninfo
from postrow.embedded.account import server_account
from postrow.embedded.folders import temporary_folder
from postrow.errors import PrivilegeError

DATABASE = "postrow"  # the one that embedded:/folder means


@dataclass(frozen=True, slots=True)
class Place:
    """A database for the demo alone; `left` is what stays at the end and how to get rid of it, if it is kept."""

    dsn: str
    said: str
    left: str | None


@contextmanager
def found(dsn: str | None, *, keep: bool) -> Iterator[Place]:
    """The database, for as long as the block runs.

    Raises:
        EmbeddedServerError: there is no Postgres on this machine to start.
        DatabaseUnreachableError: the given server cannot be reached.
        PrivilegeError: the given role may not make databases.
    """
    with _private(keep=keep) if dsn is None else _given(database.resolve(dsn), keep=keep) as place:
        yield place


@contextmanager
def _private(*, keep: bool) -> Iterator[Place]:
    embedded.find_binaries()  # before anything is made: its error says what to install
    folder = temporary_folder(server_account()).resolve()
    kept = False
    try:
        with embedded.Server(folder / "data") as server, database.reaching(server.dsn()):
            with psycopg.connect(server.dsn(), autocommit=True) as conn:
                conn.execute(f"create database {DATABASE}")
            yield Place(
                server.dsn(DATABASE),
                f"A private Postgres {server.version} starts, in a folder removed at the end.",
                f"The database stays in {folder}.\n"
                f"Look around:  postrow status --dsn embedded:{folder}/data\n"
                f"Remove it:    rm -r {folder}"
                if keep
                else None,
            )
        kept = keep  # not when the demo was interrupted: nobody would be told where it is
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _given(dsn: str, *, keep: bool) -> Iterator[Place]:
    name = f"postrow_demo_{secrets.token_hex(4)}"
    kept = False
    with database.reaching(dsn), psycopg.connect(conninfo(dsn), autocommit=True) as conn:
        try:
            _make(conn, name)
            yield Place(
                make_conninfo(dsn, dbname=name),
                f"A new database {name} on {database.place(dsn)}, for this demo only.",
                f"The database stays: it is {name} on {database.place(dsn)}.\n"
                f"Look around:  postrow status --dsn …, with that database's name in your DSN\n"
                f"Remove it:    drop database {name}"
                if keep
                else None,
            )
            kept = keep
        finally:
            if not kept and not conn.broken:
                conn.execute(f"drop database if exists {name} with (force)")


def _make(conn: psycopg.Connection[Any], name: str) -> None:
    try:
        conn.execute(f"create database {name}")
    except psycopg.errors.InsufficientPrivilege:
        role = conninfo_to_dict(conn.info.dsn).get("user")
        raise PrivilegeError(
            f"the role {role} may not make a database, and the demo runs in one of its own",
            hint="Give a role with CREATEDB, or leave --dsn out: then the demo starts a private server.",
        ) from None
