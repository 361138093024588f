"""`postrow show`: the whole life of a message, wherever it is now."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import typer

from postrow.cli import arguments, database
from postrow.cli.database import Dsn
from postrow.cli.life import life, moments
from postrow.cli.screen import clean, console, cut, payload_block, say, say_json
from postrow.drivers.psycopg3 import execute
from postrow.errors import NotFoundError
from postrow.ops import look

Id = Annotated[UUID, typer.Argument(parser=arguments.message_id, metavar="ID", help="The message's id, whole.")]

PAYLOAD_LINES = 20
_FACTS = ("priority", "topic", "target", "group_key", "dedup_key", "max_attempts", "hops", "parent_id", "expires_at")


def register(program: typer.Typer) -> None:
    """Add the command."""
    program.command("show")(show)


def show(
    *,
    id_: Id,
    dsn: Dsn = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.", metavar="TENANT")] = None,
    full: Annotated[bool, typer.Option("--full", help="The whole payload, and tracebacks.")] = False,
    json: Annotated[bool, typer.Option("--json", help="For programs: an array, an object a place.")] = False,
) -> None:
    """Show the whole life of a message, wherever it is now.

    Waiting, claimed, done or dead, with every failure that is kept.
    """
    with database.connected(dsn, command="show") as conn:
        rows = execute(conn, look.show(id_, tenant=tenant))
        now = execute(conn, look.now())
    if not rows:
        raise NotFoundError(
            f"there is no message {id_}{f' of tenant {tenant}' if tenant else ''}",
            hint="Finished messages are kept for the days of the setting history_days (7 by default).",
        )
    if json:
        say_json(rows)
        return
    for at, row in enumerate(rows):
        if at:
            say()
        say_life(row, now=now, full=full)


def say_life(row: dict[str, Any], *, now: Any, full: bool) -> None:
    """A message: whose it is, what happened, its payload."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    out = console()
    head = Text(f"{clean(row['queue'])} / {clean(row['tenant'])}", style="bold")
    if row.get("subject"):
        head.append(f"   subject {clean(row['subject'])}", style="not bold")
    head.append(f"   {row['state']}", style="not bold")
    out.print(head, soft_wrap=True)
    events = life(row, now=now)
    times = moments(events)
    width = max(map(len, times))
    story = Table.grid(padding=(0, 0, 0, 2))  # a long text is folded beside the times; in a pipe it is one line
    for event, time in zip(events, times, strict=True):
        text = clean(event.text if full else cut(event.text, 300))
        if out.is_terminal:
            story.add_row(f"  {time:>{width}}", Text(text, style=event.style, overflow="fold"))
        else:
            say(f"  {time:>{width}}  {text}")
    if out.is_terminal:
        out.print(story)
    if row.get("redriven_as"):
        say(f"  Its life goes on: postrow show {row['redriven_as']}")
    facts = [f"{name} {clean(row[name])}" for name in _FACTS if row.get(name)]
    if facts:
        say(f"  {'   '.join(facts)}")
    for name in ("payload", "headers"):
        if row.get(name) is not None or name == "payload":
            say(f"  {name}")
            block = payload_block(row.get(name), lines=None if full else PAYLOAD_LINES)
            say("\n".join(f"    {line}" for line in block.split("\n")))
    if full:
        _say_tracebacks(row)


def _say_tracebacks(row: dict[str, Any]) -> None:
    for failure in row.get("failures") or []:
        if failure.get("traceback"):
            say(f"  traceback of attempt {failure['attempt']}")
            text = clean(failure["traceback"], block=True)
            say("\n".join(f"    {line}" for line in text.split("\n")))
