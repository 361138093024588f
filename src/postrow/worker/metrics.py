"""What a worker counts of its work, where somebody can ask for it: its parts have a `Meter`, or None."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from postrow.queues import Consumer
from postrow.worker.slots import Slot

End = Literal["done", "failed", "released", "buried", "lost"]
"""How a message left this worker. `lost`: another has it, and its outcome was not written."""

ENDS: tuple[End, ...] = ("done", "failed", "released", "buried", "lost")
MOST_QUEUES = 200  # different names; those that come later are counted together ...
OTHER = "other"  # ... under this one

# Upper bounds in seconds. A tap is heard within a millisecond, a handler may run for half an hour, and a message may
# wait for days.
CALL_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
HANDLER_BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
WAIT_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0, 86400.0)


class Meter(Protocol):
    """What the parts of a worker tell, each from the event loop's thread. Times are seconds."""

    def claimed(self, consumer: Consumer, messages: int, started: Sequence[Slot], seconds: float) -> None:
        """A claim was answered, after so long: with so many messages, of which these are started now."""

    def followed(self, slot: Slot) -> None:
        """A message that waited in this worker for another of its group is started."""

    def heard(self, consumer: Consumer, seconds: float) -> None:
        """A claim took something, so long after the tap that called for it."""

    def lost(self, slot: Slot) -> None:
        """Another has a message that this worker held."""

    def ended(self, slot: Slot, end: End) -> None:
        """A message is out of this worker's hands."""

    def swept(self, step: str, found: int) -> None:
        """A step of the sweep found something to do."""


class Labels:
    """Names as labels: a bounded number of them, whatever is made of data."""

    def __init__(self, names: Iterable[str]) -> None:
        self._known: set[str] = set()
        for name in names:
            self.of(name)

    def of(self, name: str) -> str:
        """The name itself, or `other` when there are too many."""
        if name not in self._known:
            if len(self._known) >= MOST_QUEUES:
                return OTHER
            self._known.add(name)
        return name


class Histogram:
    """Observations by their upper bounds. A library's own takes a lock for each."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class QueueCounts:
    """What was counted of one queue."""

    def __init__(self) -> None:
        self.claims = Histogram(CALL_BOUNDS)
        self.claimed = 0
        self.taps = Histogram(CALL_BOUNDS)
        self.waits = Histogram(WAIT_BOUNDS)
        self.handlers = {end: Histogram(HANDLER_BOUNDS) for end in ENDS}
        self.ends = dict.fromkeys(ENDS, 0)
        self.lost = 0


class Counts:
    """A `Meter` that adds up in plain numbers: one thread writes, and another may read at any time.

    A reader may see an observation in a histogram's count and not yet in its sum; the next reading has both.
    """

    def __init__(self, consumers: Iterable[Consumer]) -> None:
        consumers = list(consumers)
        self.labels = Labels(consumer.queue.name for consumer in consumers)
        self.queues: dict[str, QueueCounts] = {}
        self._of: dict[Consumer, QueueCounts] = {}
        for consumer in consumers:
            label = self.labels.of(consumer.queue.name)
            self._of[consumer] = self.queues.setdefault(label, QueueCounts())
        self.sweep: dict[str, int] = {}

    def claimed(self, consumer: Consumer, messages: int, started: Sequence[Slot], seconds: float) -> None:
        """A claim was answered: how long its messages waited, since they were due.

        Until the claim by the database's clock alone, from then on by ours: clocks are never compared. What the claim's
        request took on its way there counts twice, since it was sent before the database looked at its clock.
        """
        counts = self._of[consumer]
        counts.claims.observe(seconds)
        counts.claimed += messages
        waits = counts.waits
        for slot in started:
            waited = slot.claimed.waited + seconds
            waits.counts[bisect_left(WAIT_BOUNDS, waited)] += 1
            waits.total += waited

    def followed(self, slot: Slot) -> None:
        """A message that waited for another of its group is started."""
        self._of[slot.consumer].waits.observe(slot.claimed.waited + time.monotonic() - slot.sent)

    def heard(self, consumer: Consumer, seconds: float) -> None:
        """A claim took something after a tap."""
        self._of[consumer].taps.observe(seconds)

    def lost(self, slot: Slot) -> None:
        """Another has a message that this worker held."""
        self._of[slot.consumer].lost += 1

    def ended(self, slot: Slot, end: End) -> None:
        """A message is out of this worker's hands: how long its handler ran, if that has ended."""
        counts = self._of[slot.consumer]
        counts.ends[end] += 1
        ran = slot.ran
        if ran is not None:
            handler = counts.handlers[end]
            handler.counts[bisect_left(HANDLER_BOUNDS, ran)] += 1
            handler.total += ran

    def swept(self, step: str, found: int) -> None:
        """A step of the sweep found something to do, or nothing."""
        self.sweep[step] = self.sweep.get(step, 0) + found


@dataclass(frozen=True, slots=True)
class State:
    """How a worker is at this moment. `database`: by part, whether it has its connection."""

    running: Mapping[Consumer, int]
    concurrency: int
    held: int
    unwritten: int
    database: Mapping[str, bool]
    loop_blocked_for: float
    ready: bool
