"""One consumer of a worker, with what its claimer remembers of the queue: when it is worth asking, and for what."""

from __future__ import annotations

import logging
import math
import random
import time

from postrow.queues import Consumer
from postrow.worker.lanes import Lanes
from postrow.worker.second_look import SecondLook

log = logging.getLogger("postrow.worker")

# seconds until who got no turn asks again, by chance half more or less: at first, and, as it doubles, for each worker
NEXT_TURN, NEXT_TURN_OF_ALL = 0.005, 0.02


class Feed:
    """One consumer with what the claimer remembers of its queue."""

    def __init__(self, consumer: Consumer, poll_interval: float) -> None:
        self.consumer = consumer
        self.lanes = Lanes()
        self.second_look = SecondLook(poll_interval)
        self.asked_at = -math.inf  # who consumes the queue
        self.replaced_by: str | None = None
        self.others: frozenset[str] = frozenset()  # tenants with another handler of their own
        self.tapped_at: float | None = None  # the first tap since the last claim
        self.put_off = False  # whether a claim for a tap has gone before a look that was due
        self._asks_at = -math.inf  # when it may ask for a turn again
        self._turned_away = 0  # times, one after the other

    def turned(self, *, away: bool, fleet: int) -> None:
        """A claim had its turn, or was turned away: of a queue of which others claim as much as they can."""
        self._turned_away = self._turned_away + 1 if away else 0
        if away:
            pause = min(NEXT_TURN * 2 ** min(self._turned_away - 1, 20), NEXT_TURN_OF_ALL * fleet)
            self._asks_at = time.monotonic() + pause * random.uniform(0.5, 1.5)  # noqa: S311  # jitter, not a secret

    @property
    def turn_in(self) -> float:
        """Seconds until it asks for a turn again; not above 0: now."""
        return self._asks_at - time.monotonic()

    def due_in(self, *, may_look_back: bool) -> float:
        """Seconds until a claim or a look is worth it. Who waits for a turn looks at nothing meanwhile."""
        return max(self.turn_in, self.lanes.due_in if may_look_back else self.lanes.message_due_in)

    @property
    def held_for(self) -> float:
        """Seconds until a claim that a limit holds back, or that had no turn, is worth another; else infinity."""
        turn_in = self.turn_in
        return min(self.lanes.held_for, turn_in if turn_in > 0 else math.inf)

    @property
    def second_look_in(self) -> float:
        """Seconds until messages are looked for whose taps were kept back."""
        return max(self.turn_in, self.second_look.due_at - time.monotonic(), 0.0)

    def registered(self, handlers: dict[str, str]) -> None:
        """Who consumes the queue now, by tenant. A worker whose handler was replaced takes nothing more."""
        self.asked_at = time.monotonic()
        own = handlers.get(self.consumer.tenant, self.consumer.name)
        replaced_by = own if own != self.consumer.name else None
        if replaced_by != self.replaced_by:
            if replaced_by is not None:
                log.warning(
                    "queue %s is consumed by handler %s now, not %s: this worker takes nothing more of it",
                    self.consumer.queue.name,
                    replaced_by,
                    self.consumer.name,
                )
            self.replaced_by = replaced_by
        if self.consumer.tenant == "*":
            self.others = frozenset(t for t, name in handlers.items() if t != "*" and name != self.consumer.name)
