"""The types of the handles, as type checkers see them: by what a handle can do, so that no library has to be installed.

At run time a handle is known by the package of its class (`postrow.drivers.driver_of`), and this module is not needed.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol


class Rows(Protocol):
    """What a sync statement gives."""

    def fetchall(self) -> Any:
        """All of them."""


class Connection(Protocol):
    """psycopg.Connection; sqlalchemy.Connection, Session, scoped_session."""

    def execute(self, *args: Any, **kwargs: Any) -> Rows:
        """A statement."""

    def commit(self) -> None:
        """Its end."""


class Transaction(Protocol):
    """What `with conn.transaction() as tx` of psycopg gives."""

    @property
    def savepoint_name(self) -> str | None:
        """A cursor has none."""

    @property
    def connection(self) -> Connection:
        """Of which connection it is."""


class DjangoConnection(Protocol):
    """django.db.connection, and each of django.db.connections."""

    in_atomic_block: bool

    def cursor(self) -> Any:
        """Through which its statements go."""


class AsyncConnection(Protocol):
    """psycopg.AsyncConnection; sqlalchemy's AsyncConnection, AsyncSession, async_scoped_session."""

    def execute(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """A statement."""

    def commit(self) -> Awaitable[None]:
        """Its end."""


class AsyncTransaction(Protocol):
    """What `async with conn.transaction() as tx` of psycopg gives."""

    @property
    def savepoint_name(self) -> str | None:
        """A cursor has none."""

    @property
    def connection(self) -> AsyncConnection:
        """Of which connection it is."""


class AsyncpgConnection(Protocol):
    """asyncpg.Connection."""

    def fetch(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """A statement."""

    def is_in_transaction(self) -> bool:
        """Whether `async with conn.transaction():` is around it."""


class AsyncpgProxy(Protocol):
    """What a pool of asyncpg's gives: it passes on all that a connection has, which no type says."""

    _con: Any
    _holder: Any


SyncHandle = Connection | Transaction | DjangoConnection
AsyncHandle = AsyncConnection | AsyncTransaction | AsyncpgConnection | AsyncpgProxy
