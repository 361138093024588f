"""The careful way to JSON: knows every type of the table, and the path of what it refuses.

`plain.encode` takes a faster way for values that are JSON already. Both give the same text; a test compares
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from postrow.payload import path as paths
from postrow.payload import scalars
from postrow.payload.path import Path

MAX_DEPTH: Final = 500  # levels; Python's own json gives up near 1,000, less what the caller's stack has used


def write(value: object, what: str) -> str:
    """The JSON text of a value; `what` is the name that errors use for the whole of it."""
    return _Writer().write(value, paths.root(what))


@dataclass(slots=True)
class _Open:
    """A container that is being written."""

    value: object
    path: Path
    items: Iterator[tuple[object, object]]  # key or index, and element: what is left of them
    before: str  # what stands before the next element
    end: str

    def start_of(self, step: object, here: Path) -> str:
        """What stands before an element, with its key if this is an object."""
        before, self.before = self.before, ","
        if self.end == "]":
            return before
        if not isinstance(step, str):
            raise scalars.refusal(
                self.path,
                f"the key {paths.shown(step)} is of type {type(step).__name__}; the keys of JSON are text.",
                hint="Use str keys, or give the queue a type that declares the keys, as in dict[int, str].",
            )
        return f"{before}{scalars.of_str(step, here)}:"


class _Writer:
    """Keeps its own stack, so that no nesting up to the limit depends on how deep its caller is."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self.stack: list[_Open] = []
        self.around: set[int] = set()  # ids of the containers on the stack

    def write(self, value: object, path: Path) -> str:
        self.start(value, path)
        while self.stack:
            top = self.stack[-1]
            for step, element in top.items:
                here = (top.path, step)
                self.out.append(top.start_of(step, here))
                self.start(element, here)
                if self.stack[-1] is not top:  # the element is a container: its own elements come first
                    break
            else:
                self.out.append(top.end if top.before == "," else top.before + top.end)
                self.around.remove(id(top.value))
                self.stack.pop()
        return "".join(self.out)

    def start(self, value: object, path: Path) -> None:
        """Writes a value, or puts it on the stack if it is a container."""
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, dict):
            self.open(_Open(value, path, iter(value.items()), "{", "}"))
        elif isinstance(value, (list, tuple)):
            self.open(_Open(value, path, enumerate(value), "[", "]"))
        else:
            self.out.append(scalars.text_of(value, path))

    def open(self, container: _Open) -> None:
        if id(container.value) in self.around:
            raise scalars.refusal(container.path, "contains itself (a circular reference).")
        if len(self.stack) >= MAX_DEPTH:
            raise scalars.refusal(container.path, f"nested deeper than {MAX_DEPTH} levels.")
        self.around.add(id(container.value))
        self.stack.append(container)
