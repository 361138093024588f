"""What the doctor finds that SQL cannot see: this package's version against the schema's, and a pooler in between."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

from postrow import migrate
from postrow.drivers import pooling
from postrow.drivers.psycopg3 import execute
from postrow.errors import LockNotAvailableError, PrivilegeError, SchemaMismatchError
from postrow.models import Finding
from postrow.ops import doctor
from postrow.sql import SCHEMA_VERSION, functions

NAMED = 10  # files in a sentence
HINT = "Run: postrow migrate"


def examine(conn: psycopg.Connection[Any]) -> list[Finding]:
    """Every check that can be made: on a connection in autocommit mode, whatever schema its database has."""
    try:
        present = migrate.version(conn)
        migrate.verify(present)
    except SchemaMismatchError as error:
        return [Finding("schema", "problem", error.message, error.hint), pooler(conn)]
    except psycopg.errors.InsufficientPrivilege:
        return [_no_privileges(conn), pooler(conn)]
    try:
        found = execute(conn, doctor.doctor())
    except PrivilegeError:
        found = [_no_privileges(conn)]
    except LockNotAvailableError as error:
        found = [_locked(error)]
    return [schema(conn, present), *found, pooler(conn)]


def schema(conn: psycopg.Connection[Any], present: tuple[int, int] | None) -> Finding:
    """Whether the schema is the one of this package, migrations and functions; a version that fits is given."""
    is_now, ours = (".".join(map(str, version or ())) for version in (present, SCHEMA_VERSION))
    if present is not None and present > SCHEMA_VERSION:
        return Finding("schema", "ok", f"the schema is {is_now}, newer than this package's {ours}, and fits")
    try:
        missing = migrate.plan(conn)
        recorded = execute(conn, doctor.function_files())
    except (psycopg.errors.InsufficientPrivilege, PrivilegeError):
        return Finding(
            "schema", "ok", f"the schema is {is_now}; its files cannot be compared by a role that reads no tables"
        )
    except SchemaMismatchError as error:
        return Finding("schema", "problem", error.message, error.hint)
    files = [file.name for file in missing.migrations]
    files += [file.name for file in functions() if recorded.get(file.name) != file.checksum]
    if files:
        more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
        text = f"the schema is {is_now}, and has another form of: {', '.join(files[:NAMED])}{more}"
        return Finding("schema", "problem", text, HINT)
    if missing.functions:
        return Finding("schema", "problem", "a role of ours was made after the migration, and has no grants", HINT)
    return Finding("schema", "ok", f"the schema is {is_now}, as this package has it")


def pooler(conn: psycopg.Connection[Any]) -> Finding:
    """Whether the connection goes through a pooler in transaction mode, where LISTEN hears nothing."""
    way = asyncio.run(pooling.way(conn, execute(conn, doctor.backend_pid())))
    if way == "direct":
        return Finding("pooler", "ok", "the connection is a direct one")
    if way == "session":
        return Finding("pooler", "ok", "the connection goes through a pooler in session mode")
    if way == "statement":
        text = "the connection goes through a pooler that allows no transactions"
        return Finding("pooler", "problem", text, pooling.NEEDS_TRANSACTIONS)
    mode = {
        "transaction": "a pooler in transaction mode",
        "busy": "a pooler whose mode cannot be told: it has no second connection",
    }.get(way, "a pooler whose mode cannot be told")
    return Finding(
        "pooler",
        "warning",
        f"the connection goes through {mode}",
        "All works through it but LISTEN: start workers with --listen-dsn and a DSN that leads to Postgres itself, or "
        "with --transport poll.",
    )


def _no_privileges(conn: psycopg.Connection[Any]) -> Finding:
    role = conn.info.user
    return Finding(
        "privileges",
        "problem",
        f"role {role} may not look: it is a member of none of our roles, or of postrow_producer alone",
        f'Grant it one that may: grant postrow_reader to "{role}"; (or postrow_worker, postrow_admin)',
    )


def _locked(error: LockNotAvailableError) -> Finding:
    return Finding(
        "locks",
        "problem",
        f"a table of the schema is locked, and the database's own checks could not be made: {error.message}",
        "See who: select pid, query from pg_stat_activity where pid in (select pid from pg_locks where granted "
        "and mode = 'AccessExclusiveLock');",
    )
