"""What goes to the terminal or a pipe: clean text, tables, JSON.

Everything that comes from the database passes `clean`: a payload or an error text must not move the cursor, change
colours, or turn a line around. Text goes to rich as `Text`, never as markup.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from postrow import payload as payloads
from postrow.cli.figures import cut
from postrow.cli.table import Cell, Column, Row, rich_table, table_lines

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Cell",
    "Column",
    "Row",
    "clean",
    "console",
    "cut",
    "is_terminal",
    "json_text",
    "note",
    "payload_block",
    "rich_table",
    "say",
    "say_json",
    "say_table",
    "table_lines",
]

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


def say_table(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """A table: on a terminal with colours and made for its width, in a pipe a line a row, whatever its length."""
    if is_terminal():
        out = console()
        for line in table_lines(columns, rows, width=out.width):
            out.print(line, soft_wrap=True)
    else:
        for line in table_lines(columns, rows):
            say(line.plain)


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
