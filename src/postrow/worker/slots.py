"""What this worker holds: one slot for each claimed message, from the claim until its outcome is written."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from postrow.models import Claimed
from postrow.queues import Consumer

Verdict = Literal["done", "fail", "release", "bury"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a handler's run led to. `retry_after` for a failure, `until` for a release; None is the policy, or now."""

    verdict: Verdict
    error: str = ""
    type: str | None = None
    traceback: str | None = None
    retry_after: timedelta | None = None
    until: datetime | timedelta | None = None


DONE = Outcome("done")
NEVER = float("inf")


class Slot:
    """One message that this worker holds. Times are of time.monotonic()."""

    __slots__ = (
        "busy",
        "call",
        "claimed",
        "consumer",
        "deadline",
        "ended",
        "gone",
        "held_until",
        "lost",
        "outcome",
        "ran",
        "renewed",
        "sent",
        "settled",
        "started",
        "task",
        "then",
        "token",
    )

    def __init__(self, claimed: Claimed, token: UUID, consumer: Consumer, renewed: float) -> None:
        self.claimed = claimed
        self.consumer = consumer
        self.token = token
        self.sent = self.renewed = renewed  # when the claim was sent; when that or its last renewal was
        self.held_until = 0.0  # the handler itself asked for a lease until then
        self.deadline = NEVER  # no renewal after that: the handler's timeout
        self.lost = False  # another has the message, and that was said: report nothing
        self.started = False  # its handler was: not so while it waits for another of its group
        self.ended = False  # its handler has ended, or is not waited for
        self.gone = False  # another has it, or it was settled elsewhere, as by the handler: renew no more
        self.busy = False  # its row was locked when its outcome was to be written
        self.settled = False  # by the handler's own transaction: there is nothing to write
        self.outcome: Outcome | None = None
        self.ran: float | None = None  # seconds of its handler, which has ended
        self.then: Slot | None = None  # of its group: to be handled after it
        self.task: asyncio.Task[Any] | None = None  # that runs its handler, which has begun
        self.call: Call | None = None  # of a handler that takes many messages: with which others

    @property
    def tenant(self) -> str:
        """The message's tenant."""
        return self.claimed.tenant

    @property
    def queue(self) -> str:
        """The message's queue."""
        return self.consumer.queue.name

    @property
    def id(self) -> UUID:
        """The message's id."""
        return self.claimed.id

    def holds(self, now: float) -> bool:
        """Whether its lease lives for certain, by our own clock; the database may say so for longer."""
        return now < max(self.renewed + self.consumer.lease.total_seconds(), self.held_until)

    def due(self, now: float) -> bool:
        """Whether its lease should be renewed now: after a third of it, unless the handler asked for longer."""
        lease = self.consumer.lease.total_seconds()
        return (
            now - self.renewed >= lease / 3 and now + lease > self.held_until and now < self.deadline and not self.gone
        )


class Call:
    """One call of a handler of many messages: how many of them have not ended, and what follows in their groups."""

    __slots__ = ("after", "left", "slots")

    def __init__(self, slots: list[Slot]) -> None:
        self.slots = slots
        self.left = len(slots)
        self.after: list[Slot] = []
        for slot in slots:
            slot.call = self


def runs(slots: list[Slot]) -> list[Slot]:
    """Those that can start now: of a group the first alone, which leads to the next, and so on."""
    if all(slot.claimed.group_key is None for slot in slots):
        return slots
    heads: list[Slot] = []
    last: dict[tuple[str, str], Slot] = {}
    for slot in sorted(slots, key=lambda slot: (slot.claimed.enqueued, slot.claimed.key)):
        key = slot.claimed.group_key
        before = None if key is None else last.get((slot.tenant, key))
        if before is None:
            heads.append(slot)
        else:
            before.then = slot
        if key is not None:
            last[slot.tenant, key] = slot
    return heads


class Slots:
    """All slots, for the event loop that fills and empties them and for the heartbeat's thread that reads them."""

    def __init__(self, worker: str = "") -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._held: set[Slot] = set()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, slots: Iterable[Slot]) -> None:
        """Hold messages."""
        with self._lock:
            self._held.update(slots)

    def discard(self, slots: Iterable[Slot]) -> None:
        """Hold them no longer: their outcomes are written, or they are lost."""
        with self._lock:
            self._held.difference_update(slots)

    def __contains__(self, slot: object) -> bool:
        return slot in self._held

    def due(self) -> list[Slot]:
        """Those whose lease should be renewed now."""
        now = time.monotonic()
        with self._lock:
            return [slot for slot in self._held if slot.due(now)]

    def about(self, slot: Slot) -> dict[str, object]:
        """The fields of a log record about a message."""
        return {
            "message_id": str(slot.id),
            "queue": slot.queue,
            "tenant": slot.tenant,
            "attempt": slot.claimed.attempt,
            "worker": self._worker,
        }

    def all(self) -> list[Slot]:
        """A copy of what is held now."""
        with self._lock:
            return list(self._held)
