"""What the audience sees: the story line by line and, on a terminal, the queues and workers as they are now."""

from __future__ import annotations

import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg

from postrow.cli.demo.orders import Website
from postrow.cli.demo.workers import Workers
from postrow.cli.figures import plural
from postrow.cli.screen import Cell, Column, Row, console, rich_table

if TYPE_CHECKING:
    from rich.console import RenderableType

LOOK_EVERY = 0.2  # seconds between looks at the database
SAY_EVERY = 2.0  # seconds between lines where there is no terminal
WIDTH = 100  # longer lines are hard to read
_HEAD = 14  # columns for the number and the name of a phase

COLUMNS = (
    Column("queue", folds=True),
    Column("waiting", right=True),
    Column("retry later", right=True),
    Column("being handled", right=True),
    Column("handled", right=True),
    Column("dead letters", right=True),
)

_QUEUES = """
with counts (queue, waiting, later, claimed, handled, dead) as (
    select queue, count(*) filter (where claim_token is null and available_at <= postrow.clock()),
        count(*) filter (where claim_token is null and available_at > postrow.clock()),
        count(claim_token), 0, 0 from postrow.message group by queue
    union all select queue, 0, 0, 0, count(*), 0 from postrow.history group by queue
    union all select queue, 0, 0, 0, 0, count(*) from postrow.dead_letter group by queue
)
select queue, sum(waiting)::int, sum(later)::int, sum(claimed)::int, sum(handled)::int, sum(dead)::int
from counts group by queue order by queue
"""
_HANDS = "select claimed_by, count(*) from postrow.message where claim_token is not null group by claimed_by"


@dataclass(slots=True)
class Sight:
    """The last look at the database: a row of numbers for each queue, and how many messages each worker holds."""

    queues: list[tuple[str, int, int, int, int, int]] = field(default_factory=list)
    hands: dict[str, int] = field(default_factory=dict)


class Stage:
    """Tells the story on stdout. `total` is how many orders there will be."""

    def __init__(self, *, total: int) -> None:
        self._console = console()
        self._total = total
        self._phase = 0
        self._live = False
        self._sight = Sight()

    @property
    def width(self) -> int:
        """Columns to write in."""
        return min(self._console.width, WIDTH) if self._console.is_terminal else 80

    def say(self, text: str = "", style: str = "") -> None:
        """A paragraph."""
        self._print(textwrap.fill(text, self.width, break_on_hyphens=False), style)

    def show(self, lines: str) -> None:
        """Lines as they are: a command that is cut cannot be copied."""
        self._print(lines)

    def table(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        """A table, folded to the width also where there is no terminal: it is for people."""
        self._console.print(rich_table(columns, rows))

    def phase(self, name: str, text: str) -> None:
        """What happens now, and why it matters."""
        from rich.text import Text  # noqa: PLC0415

        self._phase += 1
        head = f"{self._phase}  {name}"
        filled = textwrap.fill(
            text, self.width, initial_indent=head.ljust(_HEAD), subsequent_indent=" " * _HEAD, break_on_hyphens=False
        )
        line = Text(filled)
        line.stylize("bold", 0, len(head))
        self._print(line)

    @contextmanager
    def live(self, dsn: str, website: Website, workers: Workers) -> Iterator[None]:
        """Show the queues and workers while the block runs."""
        stopping = threading.Event()
        looker = threading.Thread(target=self._look, args=(dsn, website, stopping), name="demo-looker", daemon=True)
        looker.start()
        try:
            if not self._console.is_terminal:
                yield
                return
            from rich.live import Live  # noqa: PLC0415

            with Live(
                get_renderable=lambda: self._picture(website, workers),
                console=self._console,
                refresh_per_second=8,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            ):
                yield
        finally:
            stopping.set()
            looker.join()

    def _print(self, text: Any, style: str = "") -> None:
        if self._console.is_terminal:
            self._console.print(text, style=style, soft_wrap=True)
        else:
            print(text, flush=True)

    def _look(self, dsn: str, website: Website, stopping: threading.Event) -> None:
        said = time.monotonic()
        with suppress(psycopg.Error), psycopg.connect(dsn, autocommit=True, application_name="demo view") as conn:
            while not stopping.wait(LOOK_EVERY):
                queues = conn.execute(_QUEUES).fetchall()
                self._sight = Sight(queues, dict(conn.execute(_HANDS).fetchall()))
                if not self._console.is_terminal and time.monotonic() - said >= SAY_EVERY:
                    said = time.monotonic()
                    self._print(self._line(website))
                    sys.stdout.flush()

    def _line(self, website: Website) -> str:
        _, waiting, later, hands, handled, dead = _sum(self._sight.queues)
        return (
            f"{' ' * _HEAD}({website.placed} of {self._total} orders; messages: {waiting + later + hands} open, "
            f"{handled} handled, {dead} dead)"
        )

    def _picture(self, website: Website, workers: Workers) -> RenderableType:
        from rich.console import Group  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        sight = self._sight
        bar, rest = "#." if self._console.options.ascii_only else "━━"
        done = round(20 * website.placed / self._total)
        orders = Text.assemble(
            "orders  ",
            (bar * done, "green"),
            (rest * (20 - done), "dim"),
            f"  {website.placed} of {self._total}: {website.committed} committed, {website.refused} rolled back",
        )
        rows: list[Row] = [
            (name, *(Cell(str(n), style if n else "dim") for n, style in zip(numbers, _STYLES, strict=True)))
            for name, *numbers in sight.queues
        ]
        lines: list[RenderableType] = [Text(), orders, Text()]
        if rows:
            lines += [rich_table(COLUMNS, rows), Text()]
        for worker in workers.all:
            held = sight.hands.get(worker.name, 0)
            if worker.state == "killed":
                text = (
                    f"killed, and still holds {plural(held, 'message')}"
                    if held
                    else "killed; what it held has come back"
                )
            else:
                text = f"handles {plural(held, 'message')}"
            style = "red" if worker.state == "killed" else ""
            lines.append(Text(f"{worker.name}  process {worker.pid}  {text}", style))
        return Group(*lines)


_STYLES = ("", "yellow", "cyan", "green", "red")


def _sum(queues: Sequence[tuple[str, int, int, int, int, int]]) -> tuple[str, int, int, int, int, int]:
    waiting, later, claimed, handled, dead = (sum(int(row[n]) for row in queues) for n in range(1, 6))
    return "all", waiting, later, claimed, handled, dead
