"""How an op runs on the handle that the caller already has.

Handles, each with its transaction open:

- psycopg 3: `Connection`, `AsyncConnection`, a pool's connection, what `with conn.transaction()` gives
- asyncpg: `Connection`, a pool's connection
- SQLAlchemy 2: `Connection`, `Session`, `scoped_session`, their async forms; on psycopg, psycopg2 and asyncpg
- Django: `connection`, `connections[...]`; on Postgres

`run` gives the result on a sync handle and an awaitable of it on an async one. A driver is found by the package
that the handle's class comes from, so that a database library is loaded only by who uses it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol, TypeVar, cast

from postrow.errors import UnsupportedHandleError
from postrow.ops import Op

T = TypeVar("T")

_MODULES = {
    "psycopg": "postrow.drivers.psycopg3",
    "psycopg_pool": "postrow.drivers.psycopg3",
    "asyncpg": "postrow.drivers.asyncpg",
    "sqlalchemy": "postrow.drivers.sqlalchemy",
    "django": "postrow.drivers.django",
}
_HINT = "Pass a connection of psycopg 3, asyncpg, SQLAlchemy or Django, or a SQLAlchemy session, in your transaction."
_HINTS = {  # by package, of what is often at hand where a handle belongs
    "psycopg2": "psycopg2 is supported through SQLAlchemy. " + _HINT,
    "flask_sqlalchemy": "Pass its session (db.session).",
}


class Driver(Protocol):
    """What a driver module has."""

    def run(self, handle: Any, op: Op[T]) -> T | Awaitable[T]:
        """Run one op in the handle's transaction."""

    def run_all(self, handle: Any, ops: Iterable[Op[list[T]]], *, ahead: bool) -> list[T] | Awaitable[list[T]]:
        """Run ops one after the other in the handle's transaction, and put their lists together.

        All or nothing: when one fails, or cannot be made, none of them is left in the transaction. `ahead`: an op may
        be made while the one before it runs; without it, making one may use the handle.
        """


def driver_of(handle: object) -> Driver:
    """The driver for a handle.

    Raises:
        UnsupportedHandleError: no driver knows it.
    """
    for cls in (*type(handle).__mro__, *handle.__class__.__mro__):  # the second is another for a proxy
        module = _MODULES.get(_package(cls.__module__))
        if module is not None:
            return cast("Driver", import_module(module))
    cls = type(handle)
    hint = _HINTS.get(_package(cls.__module__), _HINT)
    if handle is None or isinstance(handle, str):
        hint = "The first argument is the transaction, not a name or a DSN. " + hint
    elif isinstance(handle, ModuleType):
        raise UnsupportedHandleError(f"the module {handle.__name__} is no transaction", hint=hint)
    kind = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    raise UnsupportedHandleError(f"{kind} is no transaction: no driver knows it", hint=hint)


def _package(module: str) -> str:
    return module.partition(".")[0]


def run(handle: object, op: Op[T]) -> T | Awaitable[T]:
    """Run one op in the handle's transaction."""
    return driver_of(handle).run(handle, op)


def run_all(handle: object, ops: Iterable[Op[list[T]]], *, ahead: bool = False) -> list[T] | Awaitable[list[T]]:
    """Run ops one after the other in the handle's transaction, and put their lists together."""
    return driver_of(handle).run_all(handle, ops, ahead=ahead)
