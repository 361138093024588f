"""Arrays as Postgres takes them, most of them in binary: a driver's own dump of a list takes ten times as long."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import datetime

# dimensions, whether there are nulls, the elements' type, how many, the first one's number
_HEAD = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i")


class TextArray(bytes):
    """A text[]."""

    __slots__ = ()
    oid = 1009


class UuidArray(bytes):
    """A uuid[]."""

    __slots__ = ()
    oid = 2951


class TidArray(bytes):
    """A tid[]."""

    __slots__ = ()
    oid = 1010


Array = TextArray | UuidArray | TidArray


def texts(values: Sequence[str]) -> TextArray:
    """A text[] of names, of which few differ."""
    known = {value: _element(value.encode()) for value in set(values)}
    return TextArray(_head(25, len(values)) + b"".join([known[value] for value in values]))


def uuids(values: Sequence[bytes]) -> UuidArray:
    """A uuid[] of ids, 16 bytes each."""
    return UuidArray(_fixed(2950, 16, values))


def tids(values: Sequence[bytes]) -> TidArray:
    """A tid[] of places, 6 bytes each."""
    return TidArray(_fixed(27, 6, values))


def names(values: Sequence[str]) -> str:
    """A text[] of names, as text: they hold nothing to be escaped."""
    return '{"' + '","'.join(values) + '"}' if values else "{}"


def numbers(values: Sequence[int]) -> str:
    """A list of whole numbers, as text: they are few."""
    return "{" + ",".join([str(value) for value in values]) + "}"


def moments(values: Sequence[datetime | None]) -> str:
    """A timestamptz[] of aware moments, with nulls, as text: they are few."""
    return "{" + ",".join(["null" if value is None else f'"{value.isoformat()}"' for value in values]) + "}"


def _fixed(element: int, size: int, values: Sequence[bytes]) -> bytes:
    if not values:
        return _head(element, 0)
    length = _LENGTH.pack(size)
    return _head(element, len(values)) + length + length.join(values)


def _element(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value


def _head(element: int, count: int) -> bytes:
    if count == 0:
        return _HEAD.pack(0, 0, element, 0, 0)[:12]
    return _HEAD.pack(1, 0, element, count, 1)
