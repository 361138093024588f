"""SQLAlchemy 2: `Connection`, `Session`, `scoped_session`, their async forms; on psycopg, psycopg2 and asyncpg.

A session is used by its connection: nothing is flushed and nothing expires. So what the session was given and has not
flushed is sent after the message, in the same transaction. A session or connection begins by itself, as ever.

The driver's own connection is never used past SQLAlchemy's: on asyncpg the transaction may not have begun there, and
the message would stay after a rollback.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import sqlalchemy
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, InvalidRequestError, PendingRollbackError, UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session

from postrow.drivers.refusals import aborted, in_autocommit, no_handle, translate
from postrow.drivers.statements import all_of, by_name, by_number, own_rows, values_by_name, values_by_number
from postrow.errors import NotInTransactionError, UnsupportedHandleError
from postrow.ops import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

try:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
except ImportError:  # no greenlet, so nobody has one
    _ASYNC: Any = ()
    _SCOPED: Any = (scoped_session,)
else:
    _ASYNC = (AsyncConnection, AsyncSession)
    _SCOPED = (scoped_session, async_scoped_session)

T = TypeVar("T")

_DRIVERS = ("psycopg", "psycopg2", "asyncpg")  # of SQLAlchemy's dialect, as in postgresql+asyncpg://
_PLAIN_RESULT = {"stream_results": False, "yield_per": None}  # the connection's own options may say otherwise


def run(handle: Any, op: Op[T]) -> T | Awaitable[T]:
    """Run one op in the handle's transaction."""
    handle = _handle(handle)
    if isinstance(handle, _ASYNC):
        return cast("Awaitable[T]", handle.run_sync(_run, op))
    return _run(handle, op)


def run_all(handle: Any, ops: Iterable[Op[list[T]]], *, ahead: bool) -> list[T] | Awaitable[list[T]]:  # noqa: ARG001  # no pipeline
    """Run ops one after the other in the handle's transaction, and put their lists together."""
    handle = _handle(handle)
    if isinstance(handle, _ASYNC):
        return cast("Awaitable[list[T]]", handle.run_sync(_run_all, ops))
    return _run_all(handle, ops)


def _handle(handle: Any) -> Any:
    """A connection or session; of a scoped one the session of this thread or task."""
    if isinstance(handle, _SCOPED):
        handle = handle()
    if isinstance(handle, (Connection, Session, *_ASYNC)):
        if sqlalchemy.__version__.startswith("1."):
            raise UnsupportedHandleError(
                f"SQLAlchemy {sqlalchemy.__version__} is too old for Postrow", hint="Install SQLAlchemy 2."
            )
        return handle
    kind = type(handle).__name__
    instead = "the connection or session that it belongs to"
    if "Engine" in kind:
        instead = "a connection of it (with engine.begin() as conn:)"
    elif "sessionmaker" in kind:
        instead = "a session of it (with Session.begin() as session:)"
    raise no_handle("SQLAlchemy", handle, instead)


def _run(handle: Connection | Session, op: Op[T]) -> T:
    with _refusals():
        return _execute(_connection(handle), op)


def _run_all(handle: Connection | Session, ops: Iterable[Op[list[T]]]) -> list[T]:
    with _refusals():  # not around the iterable, whose errors are the caller's
        conn = _connection(handle)
    return all_of(ops, lambda op: _refusing(_execute, conn, op), lambda: _refusing(Connection.begin_nested, conn))


def _refusing(function: Callable[..., T], *args: Any) -> T:
    with _refusals():
        return function(*args)


@contextmanager
def _refusals() -> Iterator[None]:
    """What SQLAlchemy and the database say of a transaction that takes no statement, in our words."""
    try:
        yield
    except DBAPIError as error:
        # with asyncpg `orig` is SQLAlchemy's, and asyncpg's own error is behind it
        translate(error, error.orig if hasattr(error.orig, "diag") else getattr(error.orig, "__cause__", None))
    except PendingRollbackError as error:
        raise aborted("this SQLAlchemy transaction") from error
    except InvalidRequestError as error:
        if type(error) is not InvalidRequestError:  # closed, or used from two tasks: its own words are best
            raise
        raise NotInTransactionError(
            f"SQLAlchemy runs nothing on this handle now: {error}",
            hint="Begin a transaction on it first; in a with block whose transaction has ended, end the block.",
        ) from error


def _connection(handle: Connection | Session) -> Connection:
    """The handle's connection, in its transaction.

    Raises:
        UnsupportedHandleError: it is not to Postgres, by a driver that is tested, or the session does not say to which.
        NotInTransactionError: it is in autocommit mode.
    """
    if isinstance(handle, Session):
        try:
            bind = handle.get_bind()
        except UnboundExecutionError as error:
            raise UnsupportedHandleError(
                f"this SQLAlchemy {type(handle).__name__} has no default engine, so its database is not known.",
                hint="Pass its connection: session.connection(bind_arguments={'mapper': A_MODEL_OF_THAT_DATABASE}).",
            ) from error
        _check_dialect(handle, bind.dialect)
        conn = handle.connection(bind_arguments={"bind": bind})
    else:
        conn = handle
        _check_dialect(handle, conn.dialect)
    if getattr(conn.connection.dbapi_connection, "autocommit", False):
        raise in_autocommit(
            f"this SQLAlchemy {type(handle).__name__}",
            "Use an engine, or the execution option, with another isolation_level than AUTOCOMMIT,",
        )
    return conn


def _check_dialect(handle: object, dialect: sqlalchemy.Dialect) -> None:
    if dialect.name != "postgresql":
        raise UnsupportedHandleError(
            f"this SQLAlchemy {type(handle).__name__} is of {dialect.name}, and Postrow is in Postgres.",
            hint="Pass one of the Postgres database that has Postrow's schema.",
        )
    if dialect.driver not in _DRIVERS:
        raise UnsupportedHandleError(
            f"SQLAlchemy's driver {dialect.driver} is not one that Postrow knows.",
            hint=f"Use one of {', '.join(f'postgresql+{driver}://' for driver in _DRIVERS)}.",
        )


def _execute(conn: Connection, op: Op[T]) -> T:
    sql: str
    values: Any
    if conn.dialect.driver == "asyncpg":
        sql, values = by_number(op.sql), values_by_number(op.params)
    else:
        sql, values = by_name(op.sql), values_by_name(op.params)
    result = conn.exec_driver_sql(sql, values, execution_options=_PLAIN_RESULT)
    oids: list[Any] = [column[1] for column in result.cursor.description or ()]  # numbers, with these drivers
    return op.read(own_rows(result.fetchall(), oids))
