"""Tables that can be read at 80 columns, and searched in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

GAP = "  "
INDENT = "    "


@dataclass(frozen=True, slots=True)
class Column:
    """A column, `right` for numbers.

    `least`: the characters that must be left of a cell where the terminal is narrow; 0: it is never cut. `folds`: in
    `rich_table`, the cells may take more lines instead.
    """

    title: str
    right: bool = False
    least: int = 0
    folds: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A text with a rich style, which only terminals show."""

    text: str
    style: str = ""


Row = Sequence[str | Cell]


def rich_table(columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """A rich table that fills no more than the width of its console, and folds names where it must."""
    from rich.table import Table  # noqa: PLC0415  # 40 ms that `postrow --version` need not pay
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0), header_style="bold")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(Text(column.title), justify=justify, no_wrap=not column.folds, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell.text, style=cell.style) for cell in map(_cell, row)))
    return table


def table_lines(columns: Sequence[Column], rows: Sequence[Row], *, width: int | None = None) -> list[Text]:
    """The lines of a table, the titles first.

    Where it is wider than `width`, the last column is cut, or goes to lines of its own under the others; then the
    widest of the others that may be cut are.
    """
    from rich.text import Text  # noqa: PLC0415

    titles = [Cell(column.title, "bold") for column in columns]
    table = [titles, *(list(map(_cell, row)) for row in rows)]
    widths, stacked = _fitted(columns, table, width)
    found: list[Text] = []
    for row in table:
        line = Text()
        for column, cell, wide in zip(columns[:-1], row, widths, strict=False):
            line.append_text(_padded(cell, wide, column)).append(GAP)
        last = _padded(row[-1], widths[-1], columns[-1])
        whole = [line, Text(INDENT).append_text(last)] if stacked else [line.append_text(last)]
        for part in whole:
            part.rstrip()
        found += whole
    return found


def _fitted(columns: Sequence[Column], table: Sequence[Sequence[Cell]], width: int | None) -> tuple[list[int], bool]:
    """The width of each column, and whether the last one stands under the others."""
    from rich.cells import cell_len  # noqa: PLC0415

    widths = [max(cell_len(row[at].text) for row in table) for at in range(len(columns))]
    gaps = len(GAP) * (len(columns) - 1)
    if width is None or sum(widths) + gaps <= width:
        return widths, False
    room = width - sum(widths[:-1]) - gaps
    if 0 < columns[-1].least <= room:
        return [*widths[:-1], room], False
    if columns[-1].least:
        widths[-1] = min(widths[-1], width - len(INDENT))
    while sum(widths[:-1]) + gaps > width:
        spare = [(widths[at], at) for at, column in enumerate(columns[:-1]) if 0 < column.least < widths[at]]
        if not spare:
            break  # the terminal wraps what is left
        widths[max(spare)[1]] -= 1
    return widths, True


def _padded(cell: Cell, width: int, column: Column) -> Text:
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    text = cell.text if cell_len(cell.text) <= width else set_cell_size(cell.text, width - 1) + "…"
    blanks = " " * (width - cell_len(text))
    return Text(blanks).append(text, cell.style) if column.right else Text().append(text, cell.style).append(blanks)


def _cell(cell: str | Cell) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)
