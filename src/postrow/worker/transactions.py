"""`message.transaction()`: a handler's effects and its ack in one transaction, on a connection of the worker's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, LiteralString

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from postrow.drivers.psycopg3 import execute, execute_async
from postrow.errors import BadArgumentError
from postrow.models import Message
from postrow.ops import claims
from postrow.queues import OPEN_AT_ONCE
from postrow.worker.connections import Database, conninfo
from postrow.worker.loops import in_daemon_thread
from postrow.worker.slots import Slot

PATIENCE = 300.0  # seconds that a handler waits for a connection: others have them, or the database is away
IDLE = 60.0  # seconds after which a connection that nobody uses is closed
CLOSING = 2.0  # seconds for a pool's own tasks to end; connections in use are closed when they come back


# What one handler set on its connection, and in its session, is none of the next one's. Not `discard all`: it would
# take away statements that psycopg believes to be prepared. Where sessions are shared it is not run: it would meet
# another's, and none of a transaction's own settings outlive it.
_RESET: LiteralString = (
    "reset all; reset session authorization; discard temp; close all; unlisten *; select pg_advisory_unlock_all()"
)


class Transactions:
    """Connections for handlers, opened when the first one asks: at most `size` for async handlers, and for sync."""

    def __init__(self, database: Database, *, size: int = OPEN_AT_ONCE) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._sync: ConnectionPool[psycopg.Connection[Any]] | None = None
        self._async: AsyncConnectionPool[psycopg.AsyncConnection[Any]] | None = None
        self._opening = asyncio.Lock()
        self._options: dict[str, Any] = {
            "min_size": 0,
            "max_size": size,
            "timeout": PATIENCE,
            "max_idle": IDLE,
        }

    def begin(self, slot: Slot, message: Message[Any]) -> Transaction:
        """What `message.transaction()` gives."""
        return Transaction(self, slot, message)

    @contextmanager
    def sync(self, slot: Slot, message: Message[Any]) -> Iterator[psycopg.Connection[Any]]:
        """A transaction that ends with the ack."""
        acked = False  # the caller may end the block by psycopg.Rollback, which says nothing here
        with self._pool().connection() as conn:
            conn.prepare_threshold = self._database.prepare_threshold
            with conn.transaction():
                yield conn
                execute(conn, claims.ack_with_effects([message]))
                acked = True
            slot.settled = slot.gone = acked

    @asynccontextmanager
    async def asynchronous(self, slot: Slot, message: Message[Any]) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """The same, for an async handler."""
        acked = False
        async with (await self._async_pool()).connection() as conn:
            conn.prepare_threshold = self._database.prepare_threshold
            async with conn.transaction():
                yield conn
                await execute_async(conn, claims.ack_with_effects([message]))
                acked = True
            slot.settled = slot.gone = acked

    async def close(self) -> None:
        """Close what is idle now, and what is in use when it is given back."""
        if self._async is not None:
            await self._async.close(timeout=CLOSING)
        if self._sync is not None:
            pool = self._sync
            await in_daemon_thread(lambda: pool.close(timeout=CLOSING), 2 * CLOSING)

    def _pool(self) -> ConnectionPool[psycopg.Connection[Any]]:
        with self._lock:
            if self._sync is None:
                self._sync = ConnectionPool(
                    conninfo(self._database.dsn, "handler"),
                    **self._options,
                    check=ConnectionPool.check_connection,
                    reset=self._reset,
                    open=True,
                    name="postrow-handlers",
                )
            return self._sync

    async def _async_pool(self) -> AsyncConnectionPool[psycopg.AsyncConnection[Any]]:
        async with self._opening:
            if self._async is None:
                pool: AsyncConnectionPool[psycopg.AsyncConnection[Any]] = AsyncConnectionPool(
                    conninfo(self._database.dsn, "handler"),
                    **self._options,
                    check=AsyncConnectionPool.check_connection,
                    reset=self._reset_async,
                    open=False,
                    name="postrow-async-handlers",
                )
                await pool.open()
                self._async = pool
            return self._async

    def _reset(self, conn: psycopg.Connection[Any]) -> None:
        conn.row_factory = tuple_row
        conn.cursor_factory = psycopg.Cursor
        conn.isolation_level = conn.read_only = conn.deferrable = None
        if not self._database.shared:
            conn.autocommit = True
            conn.execute(_RESET, prepare=False)
        conn.autocommit = False

    async def _reset_async(self, conn: psycopg.AsyncConnection[Any]) -> None:
        conn.row_factory = tuple_row
        conn.cursor_factory = psycopg.AsyncCursor
        await conn.set_isolation_level(None)
        await conn.set_read_only(None)
        await conn.set_deferrable(None)
        if not self._database.shared:
            await conn.set_autocommit(True)
            await conn.execute(_RESET, prepare=False)
        await conn.set_autocommit(False)


class Transaction:
    """One use of `message.transaction()`, entered with `async with` or with `with`, as its handler is."""

    def __init__(self, transactions: Transactions, slot: Slot, message: Message[Any]) -> None:
        self._transactions = transactions
        self._slot = slot
        self._message = message
        self._sync: AbstractContextManager[psycopg.Connection[Any]] | None = None
        self._async: AbstractAsyncContextManager[psycopg.AsyncConnection[Any]] | None = None

    def __enter__(self) -> psycopg.Connection[Any]:
        if self._slot.consumer.is_async:
            raise BadArgumentError(
                "a plain `with` would block the event loop of this async handler",
                hint="Write: async with message.transaction() as tx:",
            )
        self._sync = self._transactions.sync(self._slot, self._message)
        return self._sync.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._sync is not None
        return self._sync.__exit__(kind, error, traceback)

    async def __aenter__(self) -> psycopg.AsyncConnection[Any]:
        self._async = self._transactions.asynchronous(self._slot, self._message)
        return await self._async.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._async is not None
        return await self._async.__aexit__(kind, error, traceback)
