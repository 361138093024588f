"""asyncpg: `Connection`, also of a pool, inside of `async with conn.transaction()` or after a BEGIN."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from inspect import signature
from itertools import chain, islice
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from postrow.drivers.refusals import in_autocommit, no_handle, translate
from postrow.ops import Op

T = TypeVar("T")

# asyncpg's own word for a statement that the user's codecs (conn.set_type_codec) have no part in: those may give, and
# take, anything for a uuid or a text. It is not documented: without it such codecs leak in, and nothing else changes.
_CAN_IGNORE_CODECS = "ignore_custom_codec" in signature(asyncpg.Connection._execute).parameters  # noqa: SLF001  # as above


def run(handle: Any, op: Op[T]) -> Awaitable[T]:
    """Run one op in the handle's transaction."""
    return _run(_connection(handle), op)


def run_all(handle: Any, ops: Iterable[Op[list[T]]], *, ahead: bool) -> Awaitable[list[T]]:  # noqa: ARG001  # no pipeline
    """Run ops one after the other in the handle's transaction, and put their lists together."""
    return _run_all(_connection(handle), ops)


def _connection(handle: Any) -> Any:
    if isinstance(handle, asyncpg.Connection | PoolConnectionProxy):
        return handle
    instead = "the connection that it belongs to"
    if "Pool" in type(handle).__name__:
        instead = "a connection of it (async with pool.acquire() as conn, conn.transaction():)"
    raise no_handle("asyncpg", handle, instead)


def _check(conn: Any) -> None:
    # A closed one has asyncpg's own error at its first statement. One whose transaction has failed is in it still: the
    # database says so.
    if not conn.is_closed() and not conn.is_in_transaction():
        raise in_autocommit("this asyncpg connection", "Open one (async with conn.transaction():)")


async def _run(conn: Any, op: Op[T]) -> T:
    _check(conn)
    return await _execute(conn, op)


async def _execute(conn: Any, op: Op[T]) -> T:
    try:
        if _CAN_IGNORE_CODECS:
            rows = await conn._execute(  # noqa: SLF001  # as above
                op.sql, op.params, 0, None, record_class=asyncpg.Record, ignore_custom_codec=True
            )
        else:
            rows = await conn.fetch(op.sql, *op.params, record_class=asyncpg.Record)
    except asyncpg.PostgresError as error:
        translate(error)
    return op.read(_own(rows))


def _own(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows of Python's own UUIDs: asyncpg has a class of its own for them."""
    return [tuple(UUID(int=value.int) if isinstance(value, UUID) else value for value in row) for row in rows]


async def _run_all(conn: Any, ops: Iterable[Op[list[T]]]) -> list[T]:
    """As `statements.all_of`, awaited. In plain SQL: `conn.transaction()` refuses a transaction begun by a BEGIN."""
    _check(conn)
    ops = iter(ops)
    first = list(islice(ops, 2))
    if len(first) < 2:  # one statement needs no savepoint
        return await _execute(conn, first[0]) if first else []
    await _command(conn, "savepoint postrow_many")
    found: list[T] = []
    try:
        for op in chain(first, ops):
            part = await _execute(conn, op)
            found += part
    except BaseException:
        if not conn.is_closed() and conn.is_in_transaction():
            await _command(conn, "rollback to savepoint postrow_many; release savepoint postrow_many")
        raise
    await _command(conn, "release savepoint postrow_many")
    return found


async def _command(conn: Any, statement: str) -> None:
    try:
        await conn.execute(statement)
    except asyncpg.PostgresError as error:  # the transaction had failed before
        translate(error)
