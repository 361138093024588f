"""Whether a connection goes through a pooler, and what that one does with sessions."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Literal

import psycopg
from psycopg.conninfo import make_conninfo

from postrow.drivers.psycopg3 import execute_async
from postrow.ops import doctor

PATIENCE = 3.0  # seconds for a statement of the second connection: a pooler that has none free lets it wait for minutes

NEEDS_TRANSACTIONS = "Set its pool_mode to transaction or session: nothing works without."  # of one in statement mode

Way = Literal["direct", "session", "transaction", "statement", "busy", "unknown"]
"""How the database is reached: `direct`, or through a pooler in one of its three modes; `busy`: through one whose mode
cannot be told because it has no second connection, `unknown`: because of an error."""


async def way(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], backend_pid: int) -> Way:
    """How a connection reaches the database; `backend_pid` is what pg_backend_pid() said on it.

    A pooler answers the start of a connection itself, with a process id that it makes up. One in transaction mode gives
    our server process to the next who comes, and us another.
    """
    if conn.info.backend_pid == backend_pid:
        return "direct"
    try:
        shared = await _shares(make_conninfo(conn.info.dsn, password=conn.info.password))
    except TimeoutError:
        return "busy"
    except psycopg.Error as error:
        # PgBouncer's words; its SQLSTATE is that of any protocol error
        return "statement" if "transaction blocks not allowed" in str(error) else "unknown"
    return "transaction" if shared else "session"


async def _shares(dsn: str) -> bool:
    """Whether two connections get the same server process in turn, or one gets different ones."""
    async with asyncio.timeout(PATIENCE), contextlib.AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(
                await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=None)
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
