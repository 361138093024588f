"""When to look again after a tap, for messages that kept theirs back as that one was on its way (30_tap.sql)."""

from __future__ import annotations

import math
import random
import time

NEAR = 0.018  # seconds after a tap that was heard: 16 ms for which others relied on it once it was committed
# seconds after it, too: others may have relied on a later one, asked for within 100 ms, and that for 40 ms, and it was
# rolled back
FAR = 0.145
# times what the last discovery took the server, at least, for each worker, until the next: those of all workers take a
# twentieth of a session's time
SHARE = 20
SHARE_OF_WAY = 3  # times what its way there and back took: a quarter of one connection's time
LONGEST_REST = 10.0  # seconds
FEW = 4  # workers that all look as soon as they may; of more, so many as a rule, and the others later


class SecondLook:
    """The looks that a worker owes a queue after a tap: a near one, a far one, and more while a transaction stays open.

    A tap does not put off a near look that is owed already: under a stream of taps there is one each 18 ms. Many
    workers of one queue would all do the same: `fleet` is how many there are, and the more the later each looks, by
    chance.
    """

    fleet = 1

    def __init__(self, longest: float) -> None:
        """`longest`: seconds between looks while a transaction that kept its tap back stays open; they double."""
        self._longest = longest
        self._heard_at = -math.inf  # the last tap
        self._near = math.inf
        self._far = math.inf
        self._pause = NEAR
        self._rests_until = -math.inf
        self._later = 1.0  # times as late as it could be

    def heard(self) -> None:
        """A tap of the queue was heard, or may have been missed."""
        now = self._heard_at = time.monotonic()
        self._near = min(self._near, now + NEAR * self._later)
        self._far = now + FAR * self._later
        self._pause = NEAR

    @property
    def due_at(self) -> float:
        """When the next is due, by time.monotonic(); infinity where none is owed."""
        return max(min(self._near, self._far), self._rests_until)

    def looks(self, *, kept_back: bool, asked_at: float) -> None:
        """A look begins; `kept_back`: a transaction that was open when that was asked may need another after its end.

        For a tap that was heard since it was asked a near look is owed as for any other: this one may be too early.
        """
        now = time.monotonic()
        if now >= self._far:
            self._far = math.inf
        self._later = random.uniform(1.0, max(1.0, self.fleet / FEW))  # noqa: S311  # jitter, not a secret
        self._near = self._heard_at + NEAR * self._later if self._heard_at > asked_at else math.inf
        if kept_back:
            self._near = min(self._near, now + self._pause)
            self._pause = min(self._pause * 2, self._longest)

    def took(self, seconds: float, *, on_the_way: float = 0.0) -> None:
        """So long took a discovery of the queue's lanes, and so much longer the way there and back."""
        rest = max(min(SHARE * seconds * self.fleet, LONGEST_REST), SHARE * seconds, SHARE_OF_WAY * on_the_way)
        self._rests_until = time.monotonic() + rest
