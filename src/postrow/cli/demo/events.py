"""A file of JSON lines, each a payload to send; and whether what arrived is equal to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from postrow import payload as payloads
from postrow.cli.screen import cut
from postrow.errors import BadArgumentError, PayloadError

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the file (from 1): its payload, and its topic if it has one."""

    line: int
    payload: Any
    topic: str | None


def read(path: Path) -> tuple[Event, ...]:
    """The events of a file; blank lines are passed over.

    Raises:
        BadArgumentError: the file cannot be read, or has none.
        PayloadError: a line that is not JSON, or that a jsonb column cannot store; the message has its number.
    """
    try:
        lines = path.read_bytes().removeprefix(_BOM).split(b"\n")
    except OSError as error:
        raise BadArgumentError(
            f"the file {path} cannot be read: {error.strerror}", hint="Give --events a file of JSON lines."
        ) from error
    events = tuple(_event(number, line) for number, line in enumerate(lines, start=1) if line.strip())
    if not events:
        raise BadArgumentError(f"the file {path} has no lines", hint="Give --events a file of JSON lines.")
    return events


def _event(number: int, line: bytes) -> Event:
    try:
        value = payloads.decode(line.strip())
        payloads.encode(value)
    except PayloadError as error:
        shown = cut(line.decode(errors="replace").strip(), 60)
        raise PayloadError(f"line {number} cannot be a payload: {error.message} It is: {shown}") from None
    if isinstance(value, dict) and value.keys() == {"topic", "payload"} and isinstance(value["topic"], str):
        return Event(number, value["payload"], value["topic"])
    return Event(number, value, None)


def equal(sent: object, arrived: object) -> bool:
    """Whether two parsed JSON values are the same: types too (1, 1.0 and true differ), and no order of keys.

    What jsonb changes does not count: -0.0 is 0.0, and the last of duplicate keys has won when the line was parsed.
    """
    pairs = [(sent, arrived)]
    while pairs:  # a stack of our own: payloads may be nested 500 levels deep
        one, other = pairs.pop()
        if type(one) is not type(other):
            return False
        if isinstance(one, dict) and isinstance(other, dict):
            if one.keys() != other.keys():
                return False
            pairs += [(one[key], other[key]) for key in one]
        elif isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            pairs += zip(one, other, strict=True)
        elif one != other:
            return False
    return True
