"""Arguments as callers give them: durations, moments, numbers, texts; checked before they reach the database."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from postrow.errors import BadArgumentError, BadNameError

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


def whole(what: str, value: int, *, least: int, most: int = 2**31 - 1) -> int:
    """A whole number in a range; `what` names the parameter in the error.

    Raises:
        BadArgumentError: not an int (a bool is none), or outside the range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadArgumentError(f"{what} is {value!r}", hint=f"Give a whole number from {least} to {most}.")
    return int(value)


def text(what: str, value: str) -> str:
    """A text that Postgres can hold, as an exact `str`; `what` names the parameter in the error.

    Raises:
        BadArgumentError: not a str, or with a NUL character or a lone surrogate in it.
    """
    if not isinstance(value, str):
        raise BadArgumentError(f"{what} is {value!r}", hint="Give a text.")
    if not _is_storable(value):
        raise BadArgumentError(
            f"{what} is {value!r}", hint="Postgres stores no NUL characters and no lone surrogates: leave them out."
        )
    return str.__str__(value)  # of a member of an enum its value: what a connection's adapters make of it varies


def name(what: str, value: str) -> str:
    """`text`, for a name; the grammar is checked in SQL.

    Raises:
        BadArgumentError: not a str.
        BadNameError: with a NUL character or a lone surrogate in it.
    """
    if isinstance(value, str) and not _is_storable(value):
        raise BadNameError(
            f"{what} {value!r} is not a valid name",
            hint="Use letters A-Z a-z, digits and . _ : - , and start with a letter or a digit.",
        )
    return text(what, value)


def flag(what: str, value: bool) -> bool:
    """True or False itself; `what` names the parameter in the error.

    Raises:
        BadArgumentError: anything else, also where Python would take it for one.
    """
    if not isinstance(value, bool):
        raise BadArgumentError(f"{what} is {value!r}", hint="Give True or False.")
    return value


def _is_storable(value: str) -> bool:
    if "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
