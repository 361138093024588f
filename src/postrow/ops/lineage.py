"""Which message is being handled here: what its handler enqueues and publishes says so."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple
from uuid import UUID


class Parent(NamedTuple):
    """The message whose handler runs, and how many published messages led to it."""

    id: UUID
    hops: int


handled: ContextVar[Parent | None] = ContextVar("postrow.handled", default=None)
"""The message that this task or thread handles; set by the worker around each handler."""


def enqueued() -> tuple[UUID | None, int]:
    """parent_id and hops of a message that is enqueued here: it goes on with the hops of its parent."""
    return handled.get() or (None, 0)


def published() -> tuple[UUID | None, int]:
    """parent_id and hops of a message that is published here: one hop more than its parent."""
    parent = handled.get()
    return (None, 0) if parent is None else (parent.id, parent.hops + 1)
