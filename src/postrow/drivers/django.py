"""Django: `django.db.connection`, `connections[alias]`, inside of `transaction.atomic()`, on Postgres.

The statement goes through Django's cursor, so that its wrappers and its log see it. As with any statement in SQL, an
error in it aborts the transaction, and a block that goes on after it needs an `atomic()` of its own around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import Error
from django.utils.connection import ConnectionProxy

from postrow.drivers.refusals import aborted, in_autocommit, no_handle, translate
from postrow.drivers.statements import all_of, by_name, own_rows, values_by_name
from postrow.errors import UnsupportedHandleError
from postrow.ops import Op

T = TypeVar("T")


def run(handle: Any, op: Op[T]) -> T:
    """Run one op in the handle's transaction."""
    return _execute(_connection(handle), op)


def run_all(handle: Any, ops: Iterable[Op[list[T]]], *, ahead: bool) -> list[T]:  # noqa: ARG001  # no pipeline
    """Run ops one after the other in the handle's transaction, and put their lists together."""
    conn = _connection(handle)
    return all_of(ops, lambda op: _execute(conn, op), lambda: _savepoint(conn))


def _connection(handle: Any) -> Any:
    if not isinstance(handle, BaseDatabaseWrapper | ConnectionProxy):
        raise no_handle("Django", handle, "django.db.connection, inside of with transaction.atomic():")
    conn: Any = handle
    if conn.vendor != "postgresql":
        raise UnsupportedHandleError(
            f"Django's connection {conn.alias!r} is of {conn.vendor}, and Postrow is in Postgres.",
            hint="Pass django.db.connections[...] of the Postgres database that has Postrow's schema.",
        )
    if conn.needs_rollback:
        raise aborted("Django's transaction")
    if not conn.in_atomic_block and conn.get_autocommit():
        raise in_autocommit(f"Django's connection {conn.alias!r}", "Open one (with transaction.atomic():)")
    return conn


def _execute(conn: Any, op: Op[T]) -> T:
    try:
        with conn.cursor() as cursor:
            cursor.execute(by_name(op.sql), values_by_name(op.params))
            oids = [column[1] for column in cursor.description]
            rows = cursor.fetchall()
    except Error as error:
        translate(error, error.__cause__)
    return op.read(own_rows(rows, oids))


@contextmanager
def _savepoint(conn: Any) -> Iterator[None]:
    """As `atomic()`, on this very connection: that one takes the thread's of the same alias."""
    try:
        point = conn.savepoint()
    except Error as error:  # the transaction had failed before
        translate(error, error.__cause__)
    try:
        yield
    except BaseException:
        conn.needs_rollback = False  # as it was; the iterable may have failed in a query
        try:
            conn.savepoint_rollback(point)
            conn.savepoint_commit(point)
        except Error:
            conn.needs_rollback = True
        raise
    conn.savepoint_commit(point)
