"""The database that a command works on: which one it is, how it is reached, and what is said when it is not."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import psycopg
import typer
from psycopg.conninfo import conninfo_to_dict

from postrow import embedded, migrate
from postrow.app import DSN_VARIABLE
from postrow.drivers.connecting import HINT, conninfo, refused_setting
from postrow.dsn import plain
from postrow.errors import BadArgumentError, DatabaseUnreachableError, PostrowError, from_sqlstate

Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        envvar=DSN_VARIABLE,
        metavar="DSN",
        help="The database: a Postgres URL, or embedded: or embedded:/folder for a private server.",
        show_default=False,
    ),
]

_EXAMPLE = "It looks like postgresql://user:password@host:5432/database, or embedded: for a private server."
_LOST = ("08", "57P")  # the connection, or the server behind it, went away


class DatabaseRefusedError(PostrowError):
    """The database refused a statement for a reason of its own: a full disk, a deadlock, a cancelled query."""

    exit_code = 4


def resolve(dsn: str | None) -> str:
    """The DSN to connect with; an embedded server is joined, or started for as long as this process lives.

    Raises:
        BadArgumentError: there is none, or it cannot be read.
        EmbeddedServerError: the private server cannot be started.
    """
    if not dsn:
        raise BadArgumentError(
            "no database is given",
            hint=f"Set {DSN_VARIABLE}, or add --dsn. {_EXAMPLE}",
        )
    resolved, _server = embedded.resolve(plain(dsn))
    _parts(resolved)
    return resolved


def place(dsn: str) -> str:
    """host:port of a DSN."""
    parts = _parts(dsn)
    host = parts.get("host") or parts.get("hostaddr") or os.environ.get("PGHOST") or "the local socket"
    return f"{host}:{parts.get('port') or os.environ.get('PGPORT') or 5432}"


def name(dsn: str) -> str:
    """host:port/database of a DSN."""
    parts = _parts(dsn)
    database = parts.get("dbname") or os.environ.get("PGDATABASE") or parts.get("user") or ""
    return f"{place(dsn)}/{database}"


def connect(dsn: str, *, command: str, verified: bool = True) -> psycopg.Connection[Any]:
    """A connection in autocommit mode to a resolved DSN; its schema is one that this package can work with.

    It prepares no statements, so that a pooler in transaction mode can stand in between.

    Raises:
        DatabaseUnreachableError: it cannot be reached, or it closed the connection.
        SchemaMismatchError: there is no schema, or one that does not fit; not asked for without `verified`.
    """
    _parts(dsn)  # refuses what cannot be read
    with reaching(dsn):
        conn = psycopg.connect(
            conninfo(dsn), autocommit=True, prepare_threshold=None, fallback_application_name=f"postrow {command}"
        )
    if verified:
        try:
            with reaching(dsn, connected=True):
                migrate.verify(migrate.version(conn))
        except BaseException:
            conn.close()
            raise
    return conn


@contextmanager
def connected(dsn: str | None, *, command: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection for a command, as `connect` makes it, with errors of the database translated."""
    resolved = resolve(dsn)
    with connect(resolved, command=command) as conn, reaching(resolved, connected=True):
        yield conn


@contextmanager
def reaching(dsn: str, *, connected: bool = False) -> Iterator[None]:
    """Translate what psycopg raises into one clear line; it never has the password in it."""
    try:
        yield
    except psycopg.Error as error:
        raise translated(error, dsn, connected=connected) from error


def translated(error: psycopg.Error, dsn: str, *, connected: bool) -> PostrowError:
    """The exception of ours for an error of psycopg's."""
    code = error.sqlstate
    message = error.diag.message_primary or _reason(error)
    ours = from_sqlstate(code, message, error.diag.message_hint)
    if ours is not None:
        return ours
    if isinstance(error, psycopg.OperationalError) and (code is None or code.startswith(_LOST) or not connected):
        verb = "lost the connection to" if connected else "cannot reach"
        hint = refused_setting(error) or HINT
        return DatabaseUnreachableError(f"{verb} the database at {place(dsn)}: {message}", hint=hint)
    return DatabaseRefusedError(f"the database says: {message}" + (f" ({code})" if code else ""))


def _reason(error: psycopg.Error) -> str:
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return re.sub(r"^(.* failed: )?(FATAL:\s*)?", "", line)


def _parts(dsn: str) -> dict[str, Any]:
    """The parts of a DSN. What cannot be read is not repeated: the password may be in it."""
    scheme = re.match(r"([a-z][a-z0-9+.-]*)://", dsn, re.IGNORECASE)
    if scheme and scheme[1] not in {"postgres", "postgresql"}:
        raise BadArgumentError(f"the DSN begins with {scheme[1]}://, which is not Postgres's", hint=_EXAMPLE)
    try:
        parts = dict(conninfo_to_dict(dsn))
    except psycopg.Error:
        raise BadArgumentError("the DSN cannot be read", hint=_EXAMPLE) from None
    misread = [str(parts.get(part) or "") for part in ("host", "port", "dbname")]
    if scheme and ("@" in "".join(misread) or not re.fullmatch(r"[0-9,]*", misread[1])):
        raise BadArgumentError(
            "the DSN cannot be read: the password seems to have a / or an @ in it",
            hint="Write / as %2F, @ as %40, : as %3A in a password.",
        )
    return parts
