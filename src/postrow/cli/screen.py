"""What goes to the terminal or a pipe: clean text, tables, JSON.

Everything that comes from the database passes `clean`: a payload or an error text must not move the cursor, change
colours, or turn a line around. Text goes to rich as `Text`, never as markup.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postrow import payload as payloads

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# control characters (C0, DEL, C1), line separators, lone surrogates, and what changes the direction of writing
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_IN_BLOCKS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def clean(text: object, *, block: bool = False) -> str:
    r"""A text that is safe to print: what could steer a terminal is shown as ``\x1b``. `block` keeps line ends."""

    def escape(found: re.Match[str]) -> str:
        char = found[0]
        number = ord(char)
        return _SHORT.get(char) or (f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}")

    return (_UNSAFE_IN_BLOCKS if block else _UNSAFE).sub(escape, str(text))


def cut(text: str, limit: int) -> str:
    """The head of a text, with an ellipsis where it was cut: `limit` characters at most."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def say(text: str = "") -> None:
    """A line of the answer, to stdout."""
    print(text)


def note(text: str) -> None:
    """A line about the answer, to stderr: a pipe does not get it."""
    print(text, file=sys.stderr, flush=True)


def is_terminal() -> bool:
    """Whether the answer goes to a person."""
    return console().is_terminal


def console(*, stderr: bool = False) -> Console:
    """A rich console on today's stdout or stderr."""
    from rich.console import Console  # noqa: PLC0415  # 40 ms that `postrow --version` need not pay

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def json_text(value: object, *, indent: int | None = None) -> str:
    """JSON that is safe on a terminal: ASCII only."""
    try:
        return json.dumps(value, ensure_ascii=True, indent=indent, default=str)
    except ValueError:  # an integer of more digits than Python writes at once
        return payloads.encode(value)


def say_json(value: object) -> None:
    """The answer for a program: indented where a person may read it."""
    say(json_text(value, indent=2))


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `right` for numbers; `folds` if its cells may take more lines on a narrow terminal."""

    title: str
    right: bool = False
    folds: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A text with a rich style, used on terminals only."""

    text: str
    style: str = ""


Row = Sequence[str | Cell]


def say_table(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """A table: on a terminal with colours and folded to its width, in a pipe a line a row, whatever its length."""
    if is_terminal():
        console().print(rich_table(columns, rows))
    else:
        for line in plain_table(columns, rows):
            say(line)


def rich_table(columns: Sequence[Column], rows: Iterable[Row]) -> Table:
    """For a terminal."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            no_wrap=column.right,
            overflow="fold",
            ratio=None,
            min_width=None if column.folds else _longest_word(column, rows := list(rows), columns),
        )
    for row in rows:
        table.add_row(*(Text(cell.text, style=cell.style) for cell in map(_cell, row)))
    return table


def plain_table(columns: Sequence[Column], rows: Sequence[Row]) -> list[str]:
    """For a pipe: columns two blanks apart."""
    from rich.cells import cell_len  # noqa: PLC0415

    lines = [[column.title for column in columns], *([_cell(cell).text for cell in row] for row in rows)]
    widths = [max(cell_len(line[i]) for line in lines) for i in range(len(columns))]
    return ["  ".join(map(_padded, line, widths, columns)).rstrip() for line in lines]


def _padded(text: str, width: int, column: Column) -> str:
    from rich.cells import cell_len  # noqa: PLC0415

    blanks = " " * (width - cell_len(text))
    return blanks + text if column.right else text + blanks


def _cell(cell: str | Cell) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)


def _longest_word(column: Column, rows: Sequence[Row], columns: Sequence[Column]) -> int:
    at = columns.index(column)
    return max([len(word) for row in rows for word in _cell(row[at]).text.split()] + [1])


def payload_block(value: Any, *, lines: int | None) -> str:
    """A payload, indented, cut after so many lines (None: whole) of 500 characters at most."""
    try:
        text = json.dumps(value, ensure_ascii=False, indent=2)
    except ValueError:
        text = payloads.encode(value)
    found = clean(text, block=True).split("\n")
    if lines is None:
        return "\n".join(found)
    shown = [cut(line, 500) for line in found[:lines]]
    if len(found) > lines:
        shown.append(f"… {len(found) - lines:,} more lines")
    return "\n".join(shown)
