"""Durations and moments as callers give them, checked before they reach the database."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from postrow.errors import BadArgumentError

Duration = float | timedelta
"""Seconds, or a timedelta."""


def duration(what: str, value: Duration) -> timedelta:
    """A duration from seconds or a timedelta; `what` names the parameter in the error.

    Raises:
        BadArgumentError: not a number of seconds nor a timedelta, not finite, or beyond what a timedelta holds.
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadArgumentError(f"{what} is {value!r}", hint="Give seconds as a number, or a timedelta.")
    try:
        return timedelta(seconds=value)
    except OverflowError:
        raise BadArgumentError(f"{what} is {value!r} seconds: too long") from None


def optional_duration(what: str, value: Duration | None) -> timedelta | None:
    """`duration`, and None for None."""
    return None if value is None else duration(what, value)


def moment(what: str, value: datetime | None) -> datetime | None:
    """A moment with a time zone, or None; `what` names the parameter in the error.

    Raises:
        BadArgumentError: not a datetime, or one without a time zone: it would mean another moment on another machine.
    """
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise BadArgumentError(f"{what} is {value!r}", hint="Give a datetime with a time zone.")
    if value.tzinfo is None:
        raise BadArgumentError(
            f"{what} has no time zone: {value.isoformat()}", hint="Use datetime.now(timezone.utc) or the like."
        )
    return value


def whole(what: str, value: int | None, *, least: int, most: int = 2**31 - 1) -> int | None:
    """A whole number in a range, or None; `what` names the parameter in the error.

    Raises:
        BadArgumentError: not an int (a bool is none), or outside the range.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadArgumentError(f"{what} is {value!r}", hint=f"Give a whole number from {least} to {most}.")
    return value
