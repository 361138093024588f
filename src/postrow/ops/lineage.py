"""Which message is being handled here: what its handler enqueues and publishes says so."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol
from uuid import UUID


class Parent(Protocol):
    """The message whose handler runs, and how many published messages led to it; of many messages none has the id."""

    @property
    def id(self) -> UUID | None:
        """The message's id."""

    @property
    def hops(self) -> int:
        """How many published messages led to it."""


handled: ContextVar[Parent | None] = ContextVar("postrow.handled", default=None)
"""The message that this task or thread handles; set by the worker around each handler."""


def enqueued() -> tuple[UUID | None, int]:
    """parent_id and hops of a message that is enqueued here: it goes on with the hops of its parent."""
    parent = handled.get()
    return (None, 0) if parent is None else (parent.id, parent.hops)


def published() -> tuple[UUID | None, int]:
    """parent_id and hops of a message that is published here: one hop more than its parent."""
    parent = handled.get()
    return (None, 0) if parent is None else (parent.id, parent.hops + 1)
