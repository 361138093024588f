"""`postrow adopt`: let workers work on a database that was copied, moved or upgraded."""

from __future__ import annotations

from typing import Annotated

import typer

from postrow.cli import database
from postrow.cli.database import Dsn
from postrow.cli.figures import plural
from postrow.cli.question import agreed
from postrow.cli.screen import clean, note, say
from postrow.drivers.psycopg3 import execute
from postrow.ops import doctor, look, schedules


def register(program: typer.Typer) -> None:
    """Add the command."""
    program.command("adopt")(adopt)


def adopt(*, dsn: Dsn = None, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False) -> None:
    """Let workers work on a database that was copied from another.

    They refuse a copy, so that a copy of production does not send its e-mail again. Adopt what was moved, upgraded
    or restored for good; in another copy delete first what must not run (postrow purge).
    """
    resolved = database.resolve(dsn)
    with database.connected(resolved, command="adopt") as conn:
        copied_from = execute(conn, doctor.copied_from())
        if copied_from is not None and not yes:
            queues = execute(conn, look.status())
            unfinished = sum(queue.ready + queue.scheduled + queue.claimed for queue in queues)
            planned = len(execute(conn, schedules.all_of()))
            say(f"{clean(database.name(resolved))} was copied from {clean(copied_from)}.")
            say(f"A worker would handle its {plural(unfinished, 'message')} and {plural(planned, 'schedule')} here.")
            if not agreed("Adopt it?"):
                note("Nothing was changed.")
                raise typer.Exit(1)
        new = execute(conn, doctor.adopt())
    say(f"{clean(database.name(resolved))} is adopted" + ("" if new else ", as before"))
