"""psycopg 3: `Connection`, `AsyncConnection`, and what `with conn.transaction() as tx` gives.

`RawCursor` takes $1 placeholders as they are, and the row factory is explicit: the connection's own would leak in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from itertools import chain, islice
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.bool import BoolBinaryLoader, BoolLoader
from psycopg.types.numeric import Int2BinaryLoader, Int4BinaryLoader, Int8BinaryLoader, IntLoader
from psycopg.types.string import ByteaBinaryLoader, TextBinaryLoader, TextLoader
from psycopg.types.uuid import UUIDBinaryLoader, UUIDLoader

from postrow.drivers.refusals import aborted, in_autocommit, no_handle, translate
from postrow.errors import NotInTransactionError
from postrow.ops import Op, arrays
from postrow.ops.op import Row

T = TypeVar("T")
Sync = psycopg.Connection[Any]
Async = psycopg.AsyncConnection[Any]
_Read = Callable[[Sequence[Row]], list[T]]


def run(handle: Any, op: Op[T]) -> T | Awaitable[T]:
    """Run one op in the handle's transaction."""
    conn = _connection(handle)
    if isinstance(conn, psycopg.AsyncConnection):
        return _run_async(conn, op)
    _check_sync(conn)
    return execute(conn, op)


def run_all(handle: Any, ops: Iterable[Op[list[T]]], *, ahead: bool) -> list[T] | Awaitable[list[T]]:
    """Run ops one after the other in the handle's transaction, and put their lists together.

    With `ahead` they go out in a pipeline, where libpq has one (from 14 on): the server works on up to three while the
    next is made. Otherwise the iterable may use the connection itself, as a server-side cursor does.
    """
    conn = _connection(handle)
    if isinstance(conn, psycopg.AsyncConnection):
        return _run_all_async(conn, ops, ahead=ahead and psycopg.AsyncPipeline.is_supported())
    _check_sync(conn)
    return _run_all_sync(conn, ops, ahead=ahead and psycopg.Pipeline.is_supported())


# What our ops give, read by psycopg's own loaders: those of the connection may be the user's. By number, which saves
# looking the names up for each cursor: three microseconds.
_LOADERS = (
    (psycopg.adapters.types["uuid"].oid, UUIDLoader),
    (psycopg.adapters.types["bool"].oid, BoolLoader),
    (psycopg.adapters.types["int4"].oid, IntLoader),
    (psycopg.adapters.types["int8"].oid, IntLoader),
    (psycopg.adapters.types["text"].oid, TextLoader),
    (psycopg.adapters.types["uuid"].oid, UUIDBinaryLoader),
    (psycopg.adapters.types["bool"].oid, BoolBinaryLoader),
    (psycopg.adapters.types["int4"].oid, Int4BinaryLoader),
    (psycopg.adapters.types["int8"].oid, Int8BinaryLoader),
    (psycopg.adapters.types["text"].oid, TextBinaryLoader),
)


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: arrays.Array) -> arrays.Array:
        return obj


class _TextArrayDumper(_ArrayDumper):
    oid = arrays.TextArray.oid


class _UuidArrayDumper(_ArrayDumper):
    oid = arrays.UuidArray.oid


class _TidArrayDumper(_ArrayDumper):
    oid = arrays.TidArray.oid


_RAW_LOADERS = (
    (psycopg.adapters.types["uuid"].oid, ByteaBinaryLoader),
    (psycopg.adapters.types["tid"].oid, ByteaBinaryLoader),
    (psycopg.adapters.types["timestamptz"].oid, Int8BinaryLoader),
    (psycopg.adapters.types["int2"].oid, Int2BinaryLoader),
    (psycopg.adapters.types["int4"].oid, Int4BinaryLoader),
    (psycopg.adapters.types["text"].oid, TextBinaryLoader),
)
_RAW_DUMPERS = (
    (arrays.TextArray, _TextArrayDumper),
    (arrays.UuidArray, _UuidArrayDumper),
    (arrays.TidArray, _TidArrayDumper),
)


def _adapt(cursor: psycopg.RawCursor[Any] | psycopg.AsyncRawCursor[Any], *, raw: bool) -> None:
    adapters = cursor.adapters
    for number, loader in _RAW_LOADERS if raw else _LOADERS:
        adapters.register_loader(number, loader)
    if raw:
        for kind, dumper in _RAW_DUMPERS:
            adapters.register_dumper(kind, dumper)


def execute(conn: Sync, op: Op[T], *, binary: bool = False) -> T:
    """Run one op on a connection of our own, in whatever state it is; a worker's may be in autocommit mode."""
    try:
        with psycopg.RawCursor(conn, row_factory=tuple_row) as cursor:
            _adapt(cursor, raw=op.raw)
            cursor.execute(op.sql, op.params, binary=binary or op.raw)
            return op.read(cursor.fetchall())
    except psycopg.Error as error:
        translate(error)


class OwnConnection(psycopg.AsyncConnection[Any]):
    """A connection of a worker's part, for one call at a time: `execute_async` keeps its cursors.

    To make one is a fourth of what a short call takes a worker that was idle.
    """

    # a cursor holds on to its last result: one with more rows is not kept, nor, where there may be payloads, one with
    # more of these rows or bytes
    MOST_ROWS, MOST_RAW_ROWS, MOST_BYTES = 100, 10, 1_000_000

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.kept: dict[bool, psycopg.AsyncRawCursor[Any]] = {}  # by whether its rows are raw; taken out for a call

    def keep(self, cursor: psycopg.AsyncRawCursor[Any], rows: Sequence[Row], *, raw: bool) -> None:
        """Let the next call have this cursor, if what it holds on to is little."""
        if len(rows) > (self.MOST_RAW_ROWS if raw else self.MOST_ROWS):
            return
        if raw and sum(len(cell) for row in rows for cell in row if isinstance(cell, str | bytes)) > self.MOST_BYTES:
            return
        self.kept[raw] = cursor


def _cursor(conn: Async, *, raw: bool) -> psycopg.AsyncRawCursor[Any]:
    cursor = psycopg.AsyncRawCursor(conn, row_factory=tuple_row)
    _adapt(cursor, raw=raw)
    return cursor


async def execute_async(conn: Async, op: Op[T], *, binary: bool = False) -> T:
    """`execute`, for an async connection."""
    own = conn if isinstance(conn, OwnConnection) else None
    kept = None if own is None else own.kept.pop(op.raw, None)
    cursor = kept or _cursor(conn, raw=op.raw)
    try:
        await cursor.execute(op.sql, op.params, binary=binary or op.raw)
        rows = await cursor.fetchall()
    except psycopg.Error as error:
        translate(error)
    if own is not None:
        own.keep(cursor, rows, raw=op.raw)
    return op.read(rows)


async def _run_async(conn: Async, op: Op[T]) -> T:
    await _check_async(conn)
    return await execute_async(conn, op)


# A list is cut into several statements, and one of them, or the making of the next, may fail. A savepoint of our own
# then takes the first ones back, so that a caller who handles the error and commits does not commit a part of the list.
# One statement needs none, and a pipeline of the caller's has none: its errors abort the transaction anyway.
_SAVEPOINT: LiteralString = "savepoint postrow_many"
_RELEASE: LiteralString = "release savepoint postrow_many"
_BACK: LiteralString = "rollback to savepoint postrow_many"


def _run_all_sync(conn: Sync, ops: Iterable[Op[list[T]]], *, ahead: bool) -> list[T]:
    ops = iter(ops)
    first = list(islice(ops, 2))
    if len(first) < 2 or conn.pgconn.pipeline_status:  # one statement
        # in a pipeline all are made before the first is sent: one that cannot be made is no error of the database
        return [item for op in [*first, *ops] for item in execute(conn, op)]
    _command(conn, _SAVEPOINT)
    found: list[T] = []
    try:
        with _pipeline(conn) if ahead else nullcontext():
            sent: list[tuple[_Read[T], psycopg.RawCursor[Any]]] = []
            answers: list[tuple[_Read[T], list[Row]]] = []
            for op in chain(first, ops):  # made while the server works on what was sent
                if len(sent) > 2 * ahead:  # in a pipeline psycopg waits for all answers at once
                    answers += [(read, cursor.fetchall()) for read, cursor in sent]
                    sent.clear()
                sent.append((op.read, _sent(conn, op)))
                if len(sent) > ahead:  # the server has enough to do meanwhile
                    found += chain.from_iterable(read(rows) for read, rows in answers)
                    answers.clear()
            answers += [(read, cursor.fetchall()) for read, cursor in sent]
        found += chain.from_iterable(read(rows) for read, rows in answers)
    except BaseException as error:
        if _alive(conn):
            _command(conn, _BACK)
            _command(conn, _RELEASE)
        if isinstance(error, psycopg.Error):
            translate(error)
        raise
    _command(conn, _RELEASE)
    return found


async def _run_all_async(conn: Async, ops: Iterable[Op[list[T]]], *, ahead: bool) -> list[T]:
    await _check_async(conn)
    ops = iter(ops)
    first = list(islice(ops, 2))
    found: list[T] = []
    if len(first) < 2 or conn.pgconn.pipeline_status:  # as above
        for op in [*first, *ops]:
            items: list[T] = await execute_async(conn, op)
            found += items
        return found
    await _command_async(conn, _SAVEPOINT)
    try:
        async with _pipeline_async(conn) if ahead else nullcontext():
            sent: list[tuple[_Read[T], psycopg.AsyncRawCursor[Any]]] = []
            answers: list[tuple[_Read[T], list[Row]]] = []
            for op in chain(first, ops):  # made while the server works on what was sent
                if len(sent) > 2 * ahead:  # in a pipeline psycopg waits for all answers at once
                    answers += [(read, await cursor.fetchall()) for read, cursor in sent]
                    sent.clear()
                sent.append((op.read, await _sent_async(conn, op)))
                if len(sent) > ahead:  # the server has enough to do meanwhile
                    found += chain.from_iterable(read(rows) for read, rows in answers)
                    answers.clear()
            answers += [(read, await cursor.fetchall()) for read, cursor in sent]
        found += chain.from_iterable(read(rows) for read, rows in answers)
    except BaseException as error:
        if _alive(conn):
            await _command_async(conn, _BACK)
            await _command_async(conn, _RELEASE)
        if isinstance(error, psycopg.Error):
            translate(error)
        raise
    await _command_async(conn, _RELEASE)
    return found


# Not prepared: when an earlier statement of a pipeline fails, the server skips a later one's preparation, but psycopg
# takes it for done, and the statement fails on this connection for ever.


def _sent(conn: Sync, op: Op[Any]) -> psycopg.RawCursor[Any]:
    cursor = psycopg.RawCursor(conn, row_factory=tuple_row)
    _adapt(cursor, raw=False)
    cursor.execute(op.sql, op.params, prepare=False)
    return cursor


async def _sent_async(conn: Async, op: Op[Any]) -> psycopg.AsyncRawCursor[Any]:
    cursor = psycopg.AsyncRawCursor(conn, row_factory=tuple_row)
    _adapt(cursor, raw=False)
    await cursor.execute(op.sql, op.params, prepare=False)
    return cursor


# After an error the server skips what else was sent. That has to be taken note of, or the pipeline warns at its end: to
# fetch from any cursor takes all.


@contextmanager
def _pipeline(conn: Sync) -> Iterator[None]:
    with conn.pipeline():
        try:
            yield
        except psycopg.Error:
            with suppress(psycopg.Error):
                psycopg.RawCursor(conn).fetchall()
            raise


@asynccontextmanager
async def _pipeline_async(conn: Async) -> AsyncIterator[None]:
    async with conn.pipeline():
        try:
            yield
        except psycopg.Error:
            with suppress(psycopg.Error):
                await psycopg.AsyncRawCursor(conn).fetchall()
            raise


def _command(conn: Sync, statement: LiteralString) -> None:
    with psycopg.RawCursor(conn, row_factory=tuple_row) as cursor:
        cursor.execute(statement)


async def _command_async(conn: Async, statement: LiteralString) -> None:
    async with psycopg.AsyncRawCursor(conn, row_factory=tuple_row) as cursor:
        await cursor.execute(statement)


def _alive(conn: Sync | Async) -> bool:
    return conn.info.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}


def _connection(handle: Any) -> Sync | Async:
    if isinstance(handle, psycopg.Connection | psycopg.AsyncConnection):
        return handle
    if isinstance(handle, psycopg.Transaction | psycopg.AsyncTransaction):
        return handle.connection
    kind = type(handle).__name__
    instead = "the connection"
    if "Cursor" in kind:
        instead = "cursor.connection"
    elif "Pool" in kind:
        instead = "a connection of it (with pool.connection() as conn:)"
    raise no_handle("psycopg", handle, f"{instead} instead")


def _check_sync(conn: Sync) -> None:
    if _queued(conn):
        with conn.pipeline():  # nested: waits for the answers, without an end of the outer one
            pass
    _check(conn)


async def _check_async(conn: Async) -> None:
    if _queued(conn):
        async with conn.pipeline():
            pass
    _check(conn)


def _queued(conn: Sync | Async) -> bool:
    """Whether a pipeline holds statements that are not answered yet.

    Only the answers show if they began a transaction; and what they raise is the caller's, not to be translated.
    """
    pipeline = conn.pgconn.pipeline_status
    if pipeline == PipelineStatus.ON:
        return conn.info.transaction_status != TransactionStatus.INTRANS
    return pipeline == PipelineStatus.ABORTED


def _check(conn: Sync | Async) -> None:
    status = conn.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise aborted("this transaction")
    if not conn.autocommit:
        return
    if status == TransactionStatus.IDLE:
        raise in_autocommit("this connection", "Open one (with conn.transaction():)")
    if status == TransactionStatus.ACTIVE:  # another thread or task uses it, so whose transaction it will be is unknown
        raise NotInTransactionError(
            "this connection is in autocommit mode and busy with another statement.",
            hint="Give each thread and task its own connection, and open a transaction on it.",
        )
