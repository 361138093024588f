"""When a schedule comes: cron expressions in a time zone, intervals, one moment; and what becomes of missed times.

Cron is read by cronsim, which treats daylight saving as Debian's cron does: what is due at a time of day that a change
of the clocks leaves out comes right after the gap, what is due at one that comes twice comes once, and what comes every
hour or more often goes by real time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from postrow.durations import Duration, duration, moment, text
from postrow.errors import BadArgumentError

Kind = Literal["cron", "every", "at"]
Missed = Literal["skip", "once", "all"]

LATE = timedelta(minutes=1)  # a time that passed no longer ago is not missed: a scheduler looks every few seconds
MOST = 1000  # missed times that are made up for
MANY = 10_000  # missed times that are counted one by one


class Due(NamedTuple):
    """What is to be enqueued now, and the next time after it; None: there is none."""

    times: list[datetime]
    next_at: datetime | None


_Passed = tuple[Sequence[datetime], datetime | None]


@dataclass(frozen=True, slots=True)
class Times:
    """When a schedule comes.

    `spec` is a cron expression of five fields (or six, with seconds first), the seconds of an interval, or a moment in
    ISO 8601; `timezone` is the name of the zone that a cron expression is meant in.
    """

    kind: Kind
    spec: str
    timezone: str = "UTC"

    @property
    def said(self) -> str:
        """For a person, such as `30 4 * * * Europe/Berlin`, `every 300 s`, `at 2026-05-01T12:00:00+00:00`."""
        if self.kind == "cron":
            return self.spec if self.timezone == "UTC" else f"{self.spec} {self.timezone}"
        return f"every {self.spec} s" if self.kind == "every" else f"at {self.spec}"

    def after(self, now: datetime, *, last: datetime | None = None) -> Iterator[datetime]:
        """The times after a moment, in order, in UTC. `last`: an earlier time of an interval, which it counts from."""
        if self.kind == "cron":
            for local in CronSim(self.spec, now.astimezone(ZoneInfo(self.timezone))):
                yield local.astimezone(UTC)
        elif self.kind == "every":
            step = timedelta(seconds=float(self.spec))
            if step <= timedelta():
                raise ValueError(f"every {self.spec} s")
            at = now if last is None else last + step * ((now - last) // step)
            while True:
                at += step
                yield at
        elif (at := datetime.fromisoformat(self.spec)) > now:
            yield at.astimezone(UTC)

    def due(self, next_at: datetime, now: datetime, missed: Missed) -> Due:
        """What a schedule whose next time was `next_at` is to enqueue at `now`."""
        found = _passed(self.after(next_at, last=next_at), now, most=MANY) or self._recent(next_at, now)
        times, following = [next_at, *found[0]][-MOST:], found[1]
        if missed == "once":
            times = times[-1:]
        elif missed == "skip":
            times = [at for at in times[-1:] if now - at <= LATE]
        return Due(times, following)

    def _recent(self, next_at: datetime, now: datetime) -> _Passed:
        """Of very many times the last. What comes so often goes by real time: it does not matter where one begins."""
        back = timedelta(minutes=1)
        while True:
            begin = max(next_at, now - back)
            found = _passed(self.after(begin, last=next_at), now)
            assert found is not None
            if begin == next_at or len(found[0]) == MOST:
                return found
            back *= 4


def _passed(times: Iterator[datetime], now: datetime, *, most: int | None = None) -> _Passed | None:
    """The last of these that are not after `now`, and the next one; None: there are over `most`."""
    last: deque[datetime] = deque(maxlen=MOST)
    for n, at in enumerate(times):
        if at > now:
            return last, at
        if n == most:
            return None
        last.append(at)
    return last, None


def times(
    *,
    cron: str | None = None,
    every: Duration | None = None,
    at: datetime | None = None,
    timezone: str = "UTC",
) -> Times:
    """When a schedule comes, from what a person writes.

    Raises:
        BadArgumentError: not one of the three, or one that cannot be read.
    """
    if sum(value is not None for value in (cron, every, at)) != 1:
        raise BadArgumentError("a schedule has one of cron, every and at", hint='Such as cron="30 4 * * *".')
    zone(timezone)
    if cron is not None:
        try:
            next(CronSim(text("cron", cron), datetime.now(UTC)), None)
        except CronSimError as error:
            raise BadArgumentError(
                f"cron is {cron!r}: {error}",
                hint="Five fields: minute, hour, day, month, day of week; or six, seconds first.",
            ) from None
        return Times("cron", " ".join(cron.split()), timezone)
    if every is not None:
        step = duration("every", every)
        if not timedelta(seconds=1) <= step <= timedelta(days=3660):
            raise BadArgumentError(f"every is {step}", hint="Give from a second to ten years.")
        return Times("every", f"{step.total_seconds():.6f}".rstrip("0").rstrip("."), timezone)
    when = moment("at", at)
    assert when is not None
    return Times("at", when.astimezone(UTC).isoformat(), timezone)


def zone(name: str) -> ZoneInfo:
    """A time zone by its name.

    Raises:
        BadArgumentError: there is none.
    """
    try:
        return ZoneInfo(text("timezone", name))
    except (KeyError, ValueError, OSError):
        raise BadArgumentError(f"there is no time zone {name!r}", hint="Such as Europe/Berlin, or UTC.") from None


def coming(schedule: Times, now: datetime, count: int = 5) -> list[datetime]:
    """The next times after a moment."""
    return list(islice(schedule.after(now), count))
