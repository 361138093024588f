"""How a discovery of lanes from their beginnings is spread over time, so that it leaves room for claims (lanes.py)."""

from __future__ import annotations

import time

A_PAGE = 0.03  # seconds that a page of lanes is meant to take
FIRST_PAGE = 64  # lanes
PAGES = (1, 8192)  # lanes, the smallest and the largest
SPREAD = 6.0  # seconds over which pages are spread, at most, if they take less
RESTS = 3  # times what a page took, at most, until the next: a quarter of one connection's time


def _rests(expected: float) -> float:
    return max(0.0, min(RESTS, SPREAD / max(expected, 1e-9) - 1))


def _fitting(lanes: int, took: float, most: int) -> int:
    """How many lanes make a page, as so many took so many seconds."""
    fitting = int(lanes * A_PAGE / max(took, 1e-9)) if lanes else most
    return max(PAGES[0], min(fitting, most, PAGES[1]))


def spread(expected: float) -> float:
    """Seconds over which so many seconds of work are spread, in many pages."""
    return expected * (1 + _rests(expected))


class LookBack:
    """One discovery, page by page.

    Args:
        expected: seconds of work that the one before it took.
        lanes: and of how many lanes that was.
    """

    def __init__(self, expected: float = 0.0, lanes: int = 0) -> None:
        self.began = time.monotonic()
        self.worked = 0.0  # seconds that its pages took,
        self.longest = 0.0  # and the longest of them
        self.lanes = 0
        self.pages = 0
        self.most = _fitting(lanes, expected, FIRST_PAGE)  # lanes of the next page
        self._rests = _rests(expected)

    def read(self, lanes: int, took: float) -> float:
        """A page was read, of so many lanes, in so many seconds. How long to rest until the next."""
        self.worked += took
        self.longest = max(self.longest, took)
        self.lanes += lanes
        self.pages += 1
        self.most = _fitting(lanes, took, 2 * self.most)
        return took * self._rests if self.elapsed < SPREAD else 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began
