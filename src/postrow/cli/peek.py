"""`postrow peek`: the first messages of a queue, untouched."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from postrow.cli import database
from postrow.cli.database import Dsn
from postrow.cli.figures import age, moment
from postrow.cli.screen import Column, Row, clean, cut, note, say_json, say_table
from postrow.drivers.psycopg3 import execute
from postrow.ops import look

COLUMNS = (
    Column("id"),
    Column("tenant", least=8),
    Column("priority", right=True),
    Column("due"),
    Column("attempts", right=True),
    Column("payload", least=30),
)


def register(program: typer.Typer) -> None:
    """Add the command."""
    program.command("peek")(peek)


def peek(
    *,
    queue: Annotated[str, typer.Argument(metavar="QUEUE")],
    dsn: Dsn = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.", metavar="TENANT")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many.", metavar="N")] = 10,
    json: Annotated[
        bool, typer.Option("--json", help="For programs: a JSON array; payload is text, cut to 400 characters.")
    ] = False,
) -> None:
    """Show the first messages of a queue, without claiming.

    Those that nobody has claimed, in the order of a claim.
    """
    with database.connected(dsn, command="peek") as conn:
        rows = execute(conn, look.peek(queue, tenant=tenant, limit=limit))
        now = execute(conn, look.now())
    if json:
        say_json(rows)
    elif rows:
        say_table(COLUMNS, [_row(found, now.timestamp()) for found in rows])
    else:
        note(f"Nothing waits in {clean(queue)}{f' of tenant {clean(tenant)}' if tenant else ''}.")


def _row(found: dict[str, Any], now: float) -> Row:
    due_in = moment(found["available_at"]).timestamp() - now
    return (
        found["id"],
        clean(found["tenant"]),
        str(found["priority"]),
        f"{age(-due_in)} ago" if due_in <= 0 else f"in {age(due_in)}",
        str(found["attempt"]),
        clean(cut(found["payload"], 100)),
    )
