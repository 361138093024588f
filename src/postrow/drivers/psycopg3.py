"""psycopg 3: `Connection`, `AsyncConnection`, and what `with conn.transaction() as tx` gives.

`RawCursor` takes $1 placeholders as they are, and the row factory is explicit: the connection's own would leak in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any, NoReturn, TypeVar, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from postrow.errors import (
    AbortedTransactionError,
    NotInTransactionError,
    UnsupportedHandleError,
    from_sqlstate,
)
from postrow.ops import Op

T = TypeVar("T")
Sync = psycopg.Connection[Any]
Async = psycopg.AsyncConnection[Any]

AUTOCOMMIT = (
    "this connection is in autocommit mode, so the message would not be part of your transaction.",
    "Open one (with conn.transaction():) or use app.send(...), which opens its own.",
)


def run(handle: Any, op: Op[T]) -> T | Awaitable[T]:
    """Run one op in the handle's transaction."""
    conn = _connection(handle)
    if isinstance(conn, psycopg.AsyncConnection):
        return _run_async(conn, op)
    _check_sync(conn)
    return execute(conn, op)


def run_all(handle: Any, ops: Iterable[Op[list[T]]]) -> list[T] | Awaitable[list[T]]:
    """Run ops one after the other in the handle's transaction, and put their lists together."""
    conn = _connection(handle)
    if isinstance(conn, psycopg.AsyncConnection):
        return _run_all_async(conn, ops)
    _check_sync(conn)
    return [item for op in ops for item in execute(conn, op)]


def send(conn: Sync, op: Op[T]) -> T:
    """Run one op in a transaction of its own, on a connection of the app's."""
    with conn.transaction():
        return execute(conn, op)


def execute(conn: Sync, op: Op[T], *, binary: bool = False) -> T:
    """Run one op on a connection of our own, in whatever state it is; a worker's may be in autocommit mode."""
    try:
        with psycopg.RawCursor(conn, row_factory=tuple_row) as cursor:
            cursor.execute(cast("Any", op.sql), op.params, binary=binary)
            return op.read(cursor.fetchall())
    except psycopg.Error as error:
        translate(error)


async def execute_async(conn: Async, op: Op[T], *, binary: bool = False) -> T:
    """`execute`, for an async connection."""
    try:
        async with psycopg.AsyncRawCursor(conn, row_factory=tuple_row) as cursor:
            await cursor.execute(cast("Any", op.sql), op.params, binary=binary)
            return op.read(await cursor.fetchall())
    except psycopg.Error as error:
        translate(error)


def translate(error: psycopg.Error) -> NoReturn:
    """Raise our exception for an error of the database, or the error itself."""
    ours = from_sqlstate(error.sqlstate, error.diag.message_primary or str(error), error.diag.message_hint)
    if ours is None:
        raise error
    raise ours from error


async def _run_async(conn: Async, op: Op[T]) -> T:
    await _check_async(conn)
    return await execute_async(conn, op)


async def _run_all_async(conn: Async, ops: Iterable[Op[list[T]]]) -> list[T]:
    await _check_async(conn)
    found: list[T] = []
    for op in ops:
        items: list[T] = await execute_async(conn, op)
        found += items
    return found


def _connection(handle: Any) -> Sync | Async:
    if isinstance(handle, psycopg.Connection | psycopg.AsyncConnection):
        return handle
    if isinstance(handle, psycopg.Transaction | psycopg.AsyncTransaction):
        return handle.connection
    kind = type(handle).__name__
    raise UnsupportedHandleError(
        f"psycopg's {kind} is not a connection",
        hint=f"Pass the {'cursor.connection' if 'Cursor' in kind else 'connection'} instead.",
    )


def _check_sync(conn: Sync) -> None:
    if _queued(conn):
        conn.execute("select")  # a BEGIN that stands in a pipeline shows only when an answer has come back
    _check(conn)


async def _check_async(conn: Async) -> None:
    if _queued(conn):
        await conn.execute("select")
    _check(conn)


def _queued(conn: Sync | Async) -> bool:
    return (
        not conn.closed
        and conn.pgconn.pipeline_status != 0
        and conn.autocommit
        and conn.info.transaction_status != TransactionStatus.INTRANS
    )


def _check(conn: Sync | Async) -> None:
    status = conn.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise AbortedTransactionError(
            "this transaction has failed already, and nothing can be added to it.",
            hint="Roll it back (or to a savepoint), then run it again.",
        )
    if conn.autocommit and status == TransactionStatus.IDLE:
        raise NotInTransactionError(AUTOCOMMIT[0], hint=AUTOCOMMIT[1])
