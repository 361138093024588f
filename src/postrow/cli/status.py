"""`postrow status`: the queues in a table, once or again and again."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postrow.cli import arguments, database
from postrow.cli.database import Dsn
from postrow.cli.figures import age, count, plural
from postrow.cli.screen import (
    Cell,
    Column,
    Row,
    clean,
    console,
    is_terminal,
    json_text,
    note,
    say,
    say_json,
    say_table,
    table_lines,
)
from postrow.drivers.psycopg3 import execute
from postrow.errors import DatabaseUnreachableError
from postrow.models import QueueStatus
from postrow.ops import look

if TYPE_CHECKING:
    from rich.console import RenderableType

EMPTY = "There are no queues yet: a queue exists once its first message does."
COLUMNS = (
    Column("queue", least=8),
    Column("tenant", least=8),
    Column("ready", right=True),
    Column("scheduled", right=True),
    Column("claimed", right=True),
    Column("dead", right=True),
    Column("oldest ready"),
    Column("consumer"),
)


def register(program: typer.Typer) -> None:
    """Add the command."""
    program.command("status")(status)


def status(
    *,
    dsn: Dsn = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")] = False,
    every: Annotated[
        timedelta,
        typer.Option(parser=arguments.duration, metavar="DURATION", help="How often, with --watch.", show_default="1s"),
    ] = timedelta(seconds=1),
    json: Annotated[
        bool,
        typer.Option("--json", help="For programs: a JSON array; with --watch one a line. oldest_ready is seconds."),
    ] = False,
) -> None:
    """Show every queue, and who consumes it.

    `ready` wait to be claimed, `scheduled` are for later (delayed, or waiting for a retry), `claimed` are with a
    worker, `dead` wait for a decision (postrow dead list). `oldest ready` is how long the first has been due.
    """
    resolved = database.resolve(dsn)
    if watch:
        _watch(resolved, every.total_seconds(), json=json)
        return
    with database.connected(resolved, command="status") as conn:
        queues = execute(conn, look.status())
    if json:
        say_json([asdict(queue) for queue in queues])
    elif queues:
        say_table(COLUMNS, list(map(row, queues)))
    else:
        note(EMPTY)


def row(queue: QueueStatus) -> Row:
    """One queue as cells."""
    return (
        Cell(clean(queue.queue), "bold"),
        clean(queue.tenant),
        _number(queue.ready),
        _number(queue.scheduled),
        _number(queue.claimed),
        Cell(count(queue.dead), "red" if queue.dead else "dim"),
        age(queue.oldest_ready) if queue.oldest_ready is not None else "–",  # noqa: RUF001  # a dash, not a minus
        _consumer(queue),
    )


def _number(value: int) -> Cell:
    return Cell(count(value), "" if value else "dim")


def _consumer(queue: QueueStatus) -> Cell:
    if queue.paused:
        return Cell(f"{clean(queue.handler or 'none')}  ← paused: postrow resume", "yellow")
    waiting = queue.ready + queue.scheduled > 0
    if queue.handler is None:
        return Cell("none  ← nobody consumes this queue", "yellow")
    workers = plural(queue.workers, "worker") if queue.workers else "no worker"
    text = f"{clean(queue.handler)}, {workers}"
    if queue.workers == 0 and waiting:
        return Cell(f"{text}  ← start one: postrow worker MODULE:APP", "yellow")
    return Cell(text, "" if queue.workers else "dim")


def _watch(dsn: str, seconds: float, *, json: bool) -> None:
    look_again = _Looker(dsn)
    if json or not is_terminal():
        while True:
            queues, trouble = look_again()
            if trouble:
                note(f"postrow: {trouble}")
            elif json:
                say(json_text([asdict(queue) for queue in queues]))
            else:
                say_table(COLUMNS, list(map(row, queues)))
                say()
            _flush()
            time.sleep(seconds)
    from rich.live import Live  # noqa: PLC0415

    with Live(console=console(), auto_refresh=False, transient=False) as live:
        while True:
            live.update(_picture(*look_again(), width=live.console.width), refresh=True)
            time.sleep(seconds)


def _flush() -> None:
    import sys  # noqa: PLC0415

    sys.stdout.flush()


def _picture(queues: list[QueueStatus], trouble: str | None, *, width: int) -> RenderableType:
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    parts: list[RenderableType] = [Text(EMPTY)]
    if queues:
        parts = list(table_lines(COLUMNS, list(map(row, queues)), width=width))
    if trouble:
        parts.append(Text(f"{clean(trouble)}; trying again", style="red"))
    return Group(*parts)


class _Looker:
    """Looks at the queues on one connection; a database that is away for a while is a message, not the end."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._conn: Any = database.connect(dsn, command="status")  # the first time it is an error
        self._last: list[QueueStatus] = []

    def __call__(self) -> tuple[list[QueueStatus], str | None]:
        try:
            if self._conn is None:
                self._conn = database.connect(self._dsn, command="status")
            with database.reaching(self._dsn, connected=True):
                self._last = execute(self._conn, look.status())
        except DatabaseUnreachableError as error:
            if self._conn is not None:
                self._conn.close()
            self._conn = None
            return self._last, error.message
        return self._last, None
