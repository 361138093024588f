"""Django's database connections around a handler, as Django treats them around a request.

A connection that has grown too old (CONN_MAX_AGE) or that broke is closed before the handler and after it, so a worker
that runs for months survives restarts of the database, and does not keep the log of its queries (with DEBUG).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import django.db  # the package, not this one
from asgiref.sync import sync_to_async

Handler = Callable[..., Any]

_MARK = "closes_old_connections"


def closing(handler: Handler) -> Handler:
    """The handler, with Django's connections looked after before and after it; once, also if asked for twice.

    Connections belong to threads. A sync handler has those of its thread; an async one those of the thread in which
    Django's async ORM, and `sync_to_async`, run for all of them.
    """
    if hasattr(handler, _MARK):
        return handler

    @functools.wraps(handler)
    def sync_handler(message: Any) -> Any:
        _before()
        try:
            return handler(message)
        finally:
            _after()

    @functools.wraps(handler)
    async def async_handler(message: Any) -> Any:
        await sync_to_async(_before)()
        try:
            return await handler(message)
        finally:
            await sync_to_async(_after)()

    call = type(handler).__call__  # of an object whose class has an async __call__
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
    chosen = async_handler if is_async else sync_handler
    setattr(chosen, _MARK, True)
    return chosen


def _before() -> None:
    for conn in django.db.connections.all(initialized_only=True):
        if not conn.in_atomic_block:
            conn.queries_log.clear()
    _after()


def _after() -> None:
    """As `django.db.close_old_connections`, but not inside of a transaction, as in a TestCase: that one closes it."""
    for conn in django.db.connections.all(initialized_only=True):
        if not conn.in_atomic_block:
            conn.close_if_unusable_or_obsolete()
