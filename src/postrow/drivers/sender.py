"""One connection of an app's own, for who has no transaction: `App.send`."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from uuid import UUID

import psycopg

from postrow.drivers.connecting import connect, connect_async
from postrow.drivers.psycopg3 import execute, execute_async
from postrow.errors import DatabaseUnreachableError, SerializationError
from postrow.models import Enqueued
from postrow.ops import Op

NAME = "postrow send"
TRIES = 3  # of one message: a connection that has died shows at its next use, and the new one may be refused once, too


class Sender:
    """Runs enqueues in autocommit mode, each a transaction of its own, and again where the first try is in doubt.

    That is safe because the op carries an id: enqueued twice, it is one message. Safe from many threads and event
    loops: the threads share one connection, and each loop has its own.

    Raises:
        DatabaseUnreachableError: no connection could be made, or each of them broke.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._lock = threading.Lock()
        self._conn: psycopg.Connection[Any] | None = None
        self._lines: dict[asyncio.AbstractEventLoop, _Line] = {}
        self._inherited: list[object] = []

    def send(self, op: Op[Enqueued], id_: UUID) -> Enqueued:
        """Run the op of the message `id_`, on the threads' connection."""
        tries = _Tries(id_)
        with self._lock:
            while True:
                try:
                    if self._conn is None or self._conn.closed:
                        self._conn = connect(self._dsn, name=NAME)
                    return execute(self._conn, op)
                except _FAILED as error:
                    tries.failed(error, self._conn)

    async def send_async(self, op: Op[Enqueued], id_: UUID) -> Enqueued:
        """Run the op of the message `id_`, on the running loop's connection."""
        line = self._line()
        tries = _Tries(id_)
        async with line.lock:
            while True:
                try:
                    if line.conn is None or line.conn.closed:
                        line.conn = await connect_async(self._dsn, name=NAME)
                    return await execute_async(line.conn, op)
                except _FAILED as error:
                    tries.failed(error, line.conn)

    def close(self) -> None:
        """Close all connections; the next send opens one again."""
        with self._lock:
            if self._conn is not None:
                self._conn.close()
            for line in self._lines.values():
                line.close()
            self._conn, self._lines = None, {}

    def forget(self) -> None:
        """In a process made by `fork`: the connections are the parent's, not to be used, closed or collected here."""
        self._inherited += [self._conn, self._lines]
        self._lock = threading.Lock()
        self._conn, self._lines = None, {}

    def _line(self) -> _Line:
        loop = asyncio.get_running_loop()
        with self._lock:
            for other in [other for other in self._lines if other.is_closed()]:
                self._lines.pop(other).close()
            return self._lines.setdefault(loop, _Line())


class _Line:
    """The connection of one event loop."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.conn: psycopg.AsyncConnection[Any] | None = None

    def close(self) -> None:
        if self.conn is not None:
            self.conn.pgconn.finish()  # not `await conn.close()`: the loop may be another, or be closed


class _Tries:
    """Counts the tries of one message, and says when it is enough."""

    def __init__(self, id_: UUID) -> None:
        self.id = id_
        self.left = TRIES
        self.in_doubt = False

    def failed(self, error: Exception, conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any] | None) -> None:
        """Return if the message is to be tried again, else raise."""
        self.left -= 1
        if conn is not None and getattr(error, "sqlstate", None) in _DROP:
            conn.pgconn.finish()
        if isinstance(error, psycopg.OperationalError) and conn is not None and conn.closed:
            self.in_doubt = True
        elif not isinstance(error, psycopg.errors.ReadOnlySqlTransaction | SerializationError):
            self.left = 0
        if self.left > 0:
            return
        if not self.in_doubt:
            raise error
        raise DatabaseUnreachableError(
            f"the connection broke while message {self.id} was sent: it may be in its queue now, or not ({error})",
            hint=f"Send it again with id=UUID('{self.id}'): that is the same message, never a second one.",
        ) from error


_FAILED = (
    psycopg.OperationalError,
    psycopg.errors.ReadOnlySqlTransaction,
    SerializationError,
    DatabaseUnreachableError,
)
# The server ends the session (shutdown, crash), though the socket is open still; or it is read-only: a standby since a
# fail-over, whose successor a new connection may find.
_DROP = frozenset({"57P01", "57P02", "57P03", "25006"})
