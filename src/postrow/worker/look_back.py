"""How a discovery of lanes from their beginnings is spread over time, so that it leaves room for claims (lanes.py)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator

A_PAGE = 0.03  # seconds that a page is meant to take
SPREAD = 6.0  # seconds over which pages are spread, at most, if they take less
RESTS = 3  # times what a page took, at most, until the next: a quarter of one connection's time


def _rests(expected: float) -> float:
    return max(0.0, min(RESTS, SPREAD / max(expected, 1e-9) - 1))


def spread(expected: float, tenants: int) -> float:
    """Seconds over which pages with so many seconds of work are spread; one page is not."""
    return expected * (1 + _rests(expected)) if tenants > 1 else 0.0


class LookBack:
    """One discovery, a page of tenants after the other: their dead entries are what takes time, be there lanes or not.

    Args:
        tenants: those that are known. The pages are the stretches between them, so that they have all others, too.
        expected: seconds of work that the one before it took.
    """

    def __init__(self, tenants: Iterable[str], expected: float) -> None:
        self.began = time.monotonic()
        self.worked = 0.0  # seconds that its pages took,
        self.longest = 0.0  # and the longest of them
        self.lanes = 0
        self.pages = 0
        self._tenants = sorted(tenants)
        self._rests = _rests(expected)
        self._most = self._fitting(len(self._tenants), expected, math.inf)
        self._page = 0  # tenants of the page that is being read

    def stretches(self) -> Iterator[tuple[str | None, str | None]]:
        """Behind which tenant, and up to which, each page is; None: from the first, to the last."""
        after: str | None = None
        done = 0
        while True:
            end = min(done + self._most, len(self._tenants))
            to = self._tenants[end - 1] if end < len(self._tenants) else None
            self._page = end - done
            yield after, to
            if to is None:
                return
            after, done = to, end

    def read(self, lanes: int, took: float) -> float:
        """A page was read, with so many lanes, in so many seconds. How long to rest until the next."""
        self.worked += took
        self.longest = max(self.longest, took)
        self.lanes += lanes
        self.pages += 1
        self._most = self._fitting(self._page, took, 2 * self._most)
        return took * self._rests if self.elapsed < SPREAD else 0.0

    def _fitting(self, tenants: int, took: float, most: float) -> int:
        """How many tenants make a page, as so many took so many seconds."""
        fitting = tenants * A_PAGE / took if took > 0 else math.inf
        return int(max(1, min(fitting, most, len(self._tenants) + 1)))

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began
