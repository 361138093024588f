"""The command and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LEAST_ORDERS = 10  # the orders that something special happens to are among the first ten


def register(program: typer.Typer) -> None:
    """Add the command."""
    program.command("demo")(demo)


def demo(
    orders: Annotated[int, typer.Option(metavar="N", min=LEAST_ORDERS, help="How many orders the shop takes.")] = 300,
    seconds: Annotated[
        float, typer.Option(metavar="S", min=0.0, max=3600.0, help="Spread the orders over so many seconds.")
    ] = 10.0,
    events: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON lines to send as well: each is a payload, or {'topic': …, 'payload': …}; "
            "each must arrive equal to what was sent.",
            show_default=False,
        ),
    ] = None,
    dsn: Annotated[
        str | None,
        typer.Option(
            "--dsn",
            metavar="DSN",
            help="Run on this Postgres server, in a new database that is dropped at the end. Without it: on a private "
            "server in a temporary folder. POSTROW_DSN does not count here.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the database at the end, to look around in it.")] = False,
) -> None:
    """See Postrow at work: orders, failures, a worker killed with kill -9; then a proof that nothing was lost.

    Takes some 20 seconds, needs no Postgres of yours, and leaves nothing behind. Exit code 1 if the proof fails.
    """
    from postrow.cli.demo.events import read  # noqa: PLC0415  # psycopg and rich: the other commands need none of it
    from postrow.cli.demo.story import Script, play  # noqa: PLC0415

    script = Script(orders=orders, seconds=seconds, events=() if events is None else read(events), dsn=dsn, keep=keep)
    raise typer.Exit(play(script))
