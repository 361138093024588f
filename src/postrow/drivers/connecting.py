"""Connections of our own, by psycopg: how they are opened, and what is said when they cannot be."""

from __future__ import annotations

import os
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from postrow.dsn import plain
from postrow.errors import DatabaseUnreachableError

REFUSED = "unsupported startup parameter"  # PgBouncer's words, before the parameter's name
CONNECT_TIMEOUT = 10  # seconds; libpq would wait for minutes on a host that drops packets
# a peer that vanished without a word is noticed within half a minute, not after the kernel's two hours
KEEPALIVE = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
HINT = "Check that the server runs and that the DSN is right, then try again."


def conninfo(dsn: str, **defaults: str) -> str:
    """The DSN with keep-alive settings, and these defaults, where it has none of its own.

    Always in UTF-8, whatever the environment or the role says: messages have any text in them.

    Raises:
        psycopg.ProgrammingError: it cannot be read.
    """
    settings: dict[str, Any] = {**KEEPALIVE, **defaults, **conninfo_to_dict(plain(dsn)), "client_encoding": "UTF8"}
    if "PGCONNECT_TIMEOUT" not in os.environ:
        settings.setdefault("connect_timeout", CONNECT_TIMEOUT)
    return make_conninfo(**settings)


def connect(dsn: str, *, name: str) -> psycopg.Connection[Any]:
    """A connection in autocommit mode.

    `name` is its application_name, if neither the DSN nor PGAPPNAME gives one. It prepares no statements, so that
    a pooler in transaction mode can stand in between.

    Raises:
        DatabaseUnreachableError: with the reason, without the password.
    """
    try:
        return psycopg.connect(conninfo(dsn), autocommit=True, prepare_threshold=None, fallback_application_name=name)
    except psycopg.Error as error:
        reason = unreachable(dsn, error)
    raise reason  # outside of the handler: the driver's own error may show the DSN


async def connect_async(dsn: str, *, name: str) -> psycopg.AsyncConnection[Any]:
    """`connect`, for an event loop."""
    try:
        return await psycopg.AsyncConnection.connect(
            conninfo(dsn), autocommit=True, prepare_threshold=None, fallback_application_name=name
        )
    except psycopg.Error as error:
        reason = unreachable(dsn, error)
    raise reason


def unreachable(dsn: str, error: psycopg.Error) -> DatabaseUnreachableError:
    """What to raise for a connection that could not be made; it never holds the password.

    The database's own words do not hold it, but a DSN that is read wrongly has parts of it anywhere: then there are no
    words of the driver's.
    """
    try:
        parts = conninfo_to_dict(plain(dsn))
    except psycopg.Error:
        parts = None
    if parts is None or any("@" in str(parts.get(key, "")) for key in ("host", "hostaddr", "port", "dbname")):
        return DatabaseUnreachableError(
            "the DSN cannot be read.",
            hint="Write postgresql://user:password@host:port/database, with %40 for an @ in the password, %2F for a / "
            "and %25 for a %.",
        )
    port = str(parts.get("port", ""))
    if port and not port.replace(",", "").isdigit():
        return DatabaseUnreachableError("the DSN's port is not a number.", hint=HINT)
    hint = refused_setting(error) or HINT
    return DatabaseUnreachableError(f"cannot connect to the database: {' '.join(str(error).split())}", hint=hint)


def refused_setting(error: Exception) -> str | None:
    """What to do where a pooler refuses a setting at the start of a connection; None for another error."""
    if REFUSED not in str(error):
        return None
    return (
        "PgBouncer passes on no such setting (as `options=-c ...` in the DSN, or PGOPTIONS, has it): take it out, and "
        "set it for the role: alter role ... set ..."
    )
