"""What people write on the command line, made into values; what cannot be read is a usage error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import typer

from postrow.errors import BadArgumentError

_UNITS = {
    "ms": 0.001,
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0,
    "w": 604800.0, "week": 604800.0, "weeks": 604800.0,
}  # fmt: skip
_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def duration(value: str | timedelta) -> timedelta:
    """5s, '5 min', 1h30m, 2d, 500ms; a bare number is seconds."""
    if isinstance(value, timedelta):  # a default
        return value
    seconds, at = 0.0, 0
    while at < len(value):
        part = _PART.match(value, at)
        unit = part and (part[2].lower() or ("s" if part.span() == (0, len(value)) else ""))
        if part is None or unit not in _UNITS:
            raise typer.BadParameter(f"{value!r} is no duration: write 5s, '5 min', 1h, 2d, or seconds.")
        seconds += float(part[1]) * _UNITS[unit]
        at = part.end()
    if not value:
        raise typer.BadParameter("it is empty: write 5s, '5 min', 1h, 2d, or seconds.")
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise typer.BadParameter(f"{value!r} is too long.") from None


def moment(value: str | datetime) -> datetime:
    """An ISO 8601 moment with its offset, such as 2030-01-31T18:00:00Z."""
    if isinstance(value, datetime):
        return value
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise typer.BadParameter(
            f"{value!r} is no moment with a time zone: write 2030-01-31T18:00:00Z or ...T18:00+02:00."
        )
    return found


def message_id(value: str | UUID) -> UUID:
    """The id of a message, whole."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except ValueError:
        raise typer.BadParameter(
            f"{value!r} is no message id: it looks like 0192f3a1-0000-7000-8000-000000000000, and is given whole."
        ) from None


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int


def address(value: str | Address) -> Address:
    """HOST:PORT, [::1]:PORT or PORT alone, which is on loopback."""
    if isinstance(value, Address):
        return value
    host, _, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not port.isdecimal() or not port.isascii() or not 0 <= int(port) <= 65535 or value.startswith(":"):
        raise typer.BadParameter(f"{value!r} is no address: write PORT, HOST:PORT or [::1]:PORT.")
    return Address(host or "127.0.0.1", int(port))


def queue_list(value: str, known: Sequence[str]) -> list[str]:
    """The queues in a list such as a,b: each is exactly one of `known`.

    Raises:
        BadArgumentError: the list is empty, a name in it is unknown, empty or there twice; the message names it.
    """
    hint = f"This app consumes: {', '.join(known)}. Write --queues {','.join(known[:2])}, or leave it out for all."
    if not value.strip(" ,"):
        raise BadArgumentError("--queues is empty", hint=hint)
    names = value.split(",")
    for at, name in enumerate(names):
        if name not in known:
            raise BadArgumentError(f"--queues has {name!r}, which is no queue of this app", hint=hint)
        if name in names[:at]:
            raise BadArgumentError(f"--queues has {name!r} twice", hint=hint)
    return names
