from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Op(Generic[T]):
    """One statement: SQL with placeholders $1, $2 ..., their values, and how its rows become the result.

    `raw`, for a worker's: uuids and tids come as bytes, moments as microseconds since 2000, and arrays go in binary.
    """

    sql: str
    params: tuple[object, ...]
    read: Callable[[Sequence[Row]], T]
    raw: bool = False


def nothing(_rows: Sequence[Row]) -> None:
    """Read the rows of a statement that gives no answer."""


def single(rows: Sequence[Row]) -> Any:
    """Read the one value of one row."""
    return rows[0][0]
