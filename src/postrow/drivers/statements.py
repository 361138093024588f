"""Ops as other drivers than psycopg take them: their placeholders, their values, their rows, their lists.

What a library, or its user, registered for types must not leak in: values go out as text, but for numbers and
truths, and the database reads them; UUIDs and truths that come back are made Python's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import chain, islice
from typing import Any, TypeVar
from uuid import UUID

from postrow.ops import Op

T = TypeVar("T")

_PLACEHOLDER = re.compile(r"\$(\d+)(?:::(\w+)(\[\])?)?|%")
_AS_THEY_ARE = frozenset({None, "text", "smallint", "int", "bigint", "float8", "bool", "boolean"})


@lru_cache(maxsize=256)
def by_name(sql: str) -> str:
    """The statement with placeholders %(p1)s, %(p2)s ..., as psycopg, psycopg2 and Django's cursors take them."""
    return _PLACEHOLDER.sub(lambda match: _placeholder(match, f"%(p{match[1]})s"), sql)


@lru_cache(maxsize=256)
def by_number(sql: str) -> str:
    """The statement with placeholders $1, $2 ... that are texts where the database shall read the value."""
    return _PLACEHOLDER.sub(lambda match: _placeholder(match, f"${match[1]}", percent="%"), sql)


def _placeholder(match: re.Match[str], name: str, *, percent: str = "%%") -> str:
    number, type_, array = match.groups()
    if number is None:
        return percent
    cast = f"::{type_}{array or ''}" if type_ else ""
    return name + cast if type_ in _AS_THEY_ARE else f"{name}::text{array or ''}{cast}"


def values_by_name(params: Sequence[object]) -> dict[str, object]:
    """The values for `by_name`."""
    return {f"p{n}": _plain(value) for n, value in enumerate(params, 1)}


def values_by_number(params: Sequence[object]) -> tuple[object, ...]:
    """The values for `by_number`."""
    return tuple(map(_plain, params))


def _plain(value: Any) -> object:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):  # whole, in days and seconds, as every driver sends it
        return f"{value.days} days {value.seconds}.{value.microseconds:06} seconds"
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


_TYPES: dict[int, type] = {16: bool, 2950: UUID}  # by the number that the type has in every Postgres


def own_rows(rows: Sequence[Sequence[Any]], oids: Sequence[int | None]) -> Sequence[tuple[Any, ...]]:
    """The rows with UUIDs and truths as Python has them, whatever the connection makes of them.

    Args:
        rows: as the library gives them.
        oids: the number of each column's type.
    """
    odd = {n: _TYPES[oid] for n, oid in enumerate(oids) if oid in _TYPES}
    odd = {n: type_ for n, type_ in odd.items() if any(type(row[n]) is not type_ for row in rows[:1])}
    if not odd:
        return [tuple(row) for row in rows]
    return [tuple(_own(value, odd.get(n)) for n, value in enumerate(row)) for row in rows]


def _own(value: Any, type_: type | None) -> Any:
    if value is None or type_ is None or type(value) is type_:
        return value
    text = value.decode() if isinstance(value, bytes) else str(value)
    return UUID(text) if type_ is UUID else text.lower() in {"t", "true", "1"}


def all_of(
    ops: Iterable[Op[list[T]]],
    execute: Callable[[Op[list[T]]], list[T]],
    savepoint: Callable[[], AbstractContextManager[Any]],
) -> list[T]:
    """Run ops one after the other and put their lists together; several of them inside of a savepoint.

    One of them, or the making of the next, may fail. The savepoint then takes the first ones back, so that a caller
    who handles the error and commits does not commit a part of the list.
    """
    ops = iter(ops)
    first = list(islice(ops, 2))
    with savepoint() if len(first) > 1 else nullcontext():
        return [item for op in chain(first, ops) for item in execute(op)]
