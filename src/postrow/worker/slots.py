"""What this worker holds: one slot for each claimed message, from the claim until its outcome is written."""

from __future__ import annotations

import asyncio
import threading
import time
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


class Slot:
    """One message that this worker holds. Times are of time.monotonic()."""

    __slots__ = (
        "busy",
        "claimed",
        "consumer",
        "deadline",
        "ended",
        "gone",
        "held_until",
        "id",
        "lost",
        "outcome",
        "ran",
        "renewed",
        "sent",
        "settled",
        "started",
        "task",
        "tenant",
        "then",
        "token",
    )  # fmt: skip

    def __init__(self, claimed: Claimed, token: UUID, consumer: Consumer, renewed: float) -> None:
        self.claimed = claimed
        self.consumer = consumer
        self.tenant = claimed.tenant
        self.id: UUID = claimed.id
        self.token = token
        self.sent = renewed  # when the claim was
        self.renewed = renewed  # when the claim, or its last renewal, was sent
        self.held_until = 0.0  # the handler itself asked for a lease until then
        self.deadline = float("inf")  # no renewal after that: the handler's timeout
        self.lost = False  # another has the message, and that was said: report nothing
        self.ended = False  # its handler has ended, or is not waited for
        self.gone = False  # another has it, or it was settled elsewhere, as by the handler: renew no more
        self.busy = False  # its row was locked when its outcome was to be written
        self.settled = False  # by the handler's own transaction: there is nothing to write
        self.outcome: Outcome | None = None
        self.ran: float | None = None  # seconds of its handler, which has ended
        self.started = False  # its handler was: not so while it waits for another of its group
        self.then: Slot | None = None  # of its group: to be handled after it
        self.task: asyncio.Task[Any] | None = None

    def holds(self, now: float) -> bool:
        """Whether its lease lives for certain, by our own clock; the database may say so for longer."""
        return now < max(self.renewed + self.consumer.lease.total_seconds(), self.held_until)

    def due(self, now: float) -> bool:
        """Whether its lease should be renewed now: after a third of it, unless the handler asked for longer."""
        lease = self.consumer.lease.total_seconds()
        return (
            now - self.renewed >= lease / 3 and now + lease > self.held_until and now < self.deadline and not self.gone
        )


def runs(slots: list[Slot]) -> list[Slot]:
    """Those that can start now: of a group the first alone, which leads to the next, and so on."""
    if all(slot.claimed.group_key is None for slot in slots):
        return slots
    heads: list[Slot] = []
    last: dict[tuple[str, str], Slot] = {}
    for slot in sorted(slots, key=lambda slot: (slot.claimed.enqueued_at, slot.id)):
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

    def add(self, slot: Slot) -> None:
        """Hold a message."""
        with self._lock:
            self._held.add(slot)

    def discard(self, slot: Slot) -> None:
        """Hold it no longer: its outcome is written, or it is lost."""
        with self._lock:
            self._held.discard(slot)

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
            "queue": slot.claimed.queue,
            "tenant": slot.tenant,
            "attempt": slot.claimed.attempt,
            "worker": self._worker,
        }

    def all(self) -> list[Slot]:
        """A copy of what is held now."""
        with self._lock:
            return list(self._held)
