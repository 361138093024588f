"""What the doctor finds that SQL cannot see: this package's version against the schema's, and a pooler in between."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from postrow import migrate
from postrow.drivers.psycopg3 import execute, execute_async
from postrow.errors import LockNotAvailableError, PrivilegeError, SchemaMismatchError
from postrow.models import Finding
from postrow.ops import doctor
from postrow.sql import SCHEMA_VERSION, functions

PATIENCE = 3.0  # seconds for a statement of the second connection: a pooler that has none free lets it wait for minutes
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
    """Whether the connection goes through a pooler in transaction mode, where LISTEN hears nothing.

    A pooler answers the start of a connection itself, with a process id that it makes up. One in transaction mode gives
    our server process to the next who comes, and us another.
    """
    if conn.info.backend_pid == execute(conn, doctor.backend_pid()):
        return Finding("pooler", "ok", "the connection is a direct one")
    try:
        shared = asyncio.run(_shares(conn.info.dsn, conn.info.password))
    except TimeoutError:
        mode = "a pooler whose mode cannot be told: it has no second connection"
    except psycopg.Error as error:
        if "transaction blocks not allowed" in str(
            error
        ):  # PgBouncer's words; its SQLSTATE is that of any protocol error
            text = "the connection goes through a pooler that allows no transactions"
            return Finding(
                "pooler", "problem", text, "Set its pool_mode to transaction or session: nothing works without."
            )
        mode = "a pooler whose mode cannot be told"
    else:
        if not shared:
            return Finding("pooler", "ok", "the connection goes through a pooler in session mode")
        mode = "a pooler in transaction mode"
    return Finding(
        "pooler",
        "warning",
        f"the connection goes through {mode}",
        "Producers may. A worker hears no taps through it: give it a direct DSN, or --listen-dsn, or --transport poll.",
    )


async def _shares(dsn: str, password: str) -> bool:
    """Whether two connections get the same server process in turn, or one gets different ones."""
    async with asyncio.timeout(PATIENCE), contextlib.AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(
                await psycopg.AsyncConnection.connect(
                    make_conninfo(dsn, password=password), autocommit=True, prepare_threshold=None
                )
            )
            for _ in range(2)
        ]
        for _ in range(3):  # a pooler may be making more processes just now
            mine = await execute_async(one, doctor.backend_pid())
            if await execute_async(one, doctor.backend_pid()) != mine:  # it hands them out in turn
                return True
            async with other.transaction():
                theirs = await execute_async(other, doctor.backend_pid())
                if theirs == mine or await execute_async(one, doctor.backend_pid()) != mine:
                    return True
    return False


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
