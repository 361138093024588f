"""What a drain gives, and how it raises what failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal
from uuid import UUID

SHOWN = 200  # characters of a payload in the note of an exception


@dataclass(frozen=True, slots=True)
class Handled:
    """One run of a handler.

    `outcome`: `done`; `failed`, it will be tried again; `dead`, it is a dead letter now; `snoozed`; `lost`, another
    worker took it meanwhile. `payload` is of the queue's type, or plain JSON values where it does not fit that.
    `error` is what the handler raised, for one that failed or was buried.
    """

    id: UUID
    tenant: str
    queue: str
    payload: Any
    attempt: int
    outcome: Literal["done", "failed", "dead", "snoozed", "lost"]
    error: BaseException | None = None
    _traceback: TracebackType | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain did: its runs, in their order, and how many of them ended how."""

    messages: tuple[Handled, ...]

    @property
    def done(self) -> int:
        """How many runs succeeded."""
        return self._count("done")

    @property
    def failed(self) -> int:
        """How many failed with attempts left: these messages wait for their next attempt."""
        return self._count("failed")

    @property
    def dead(self) -> int:
        """How many made their message a dead letter."""
        return self._count("dead")

    @property
    def snoozed(self) -> int:
        """How many put their message off."""
        return self._count("snoozed")

    def _count(self, outcome: str) -> int:
        return sum(1 for handled in self.messages if handled.outcome == outcome)


def failures(messages: Sequence[Handled]) -> list[BaseException]:
    """The errors of the messages whose last run failed, each with its own traceback and a note that says whose."""
    last = {(handled.tenant, handled.id): handled for handled in messages}
    found = []
    for handled in last.values():
        if handled.error is None:
            continue
        shown = repr(handled.payload)
        shown = shown if len(shown) <= SHOWN else shown[: SHOWN - 1] + "…"
        # the worker's frames go: the test's reader wants the handler's
        error = handled.error.with_traceback(handled._traceback)  # noqa: SLF001  # this module's own class
        error.add_note(
            f"postrow: message {handled.id} of queue {handled.queue} (tenant {handled.tenant}), "
            f"attempt {handled.attempt}: {handled.outcome}; payload {shown}"
        )
        found.append(error)
    return found


def raise_failed(messages: Sequence[Handled]) -> None:
    """Raise what failed: one error as it is, several as a group."""
    __tracebackhide__ = True
    errors = failures(messages)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise BaseExceptionGroup(f"{len(errors)} messages failed", errors)
