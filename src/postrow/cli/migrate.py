"""`postrow migrate`: bring the schema up, print it, or ask whether it is behind."""

from __future__ import annotations

from typing import Annotated, Any

import psycopg
import typer

from postrow import migrate as migrations
from postrow.cli import database
from postrow.cli.database import Dsn
from postrow.cli.figures import plural
from postrow.cli.screen import clean, note, say
from postrow.errors import BadArgumentError
from postrow.migrate import Plan
from postrow.sql import SCHEMA_VERSION


def register(program: typer.Typer) -> None:
    """Add the command."""
    program.command("migrate")(migrate)


def migrate(
    *,
    dsn: Dsn = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; say what is missing, and exit 1 if anything is.")
    ] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Change nothing; print the SQL, for a DBA. Needs no database.")
    ] = False,
    from_: Annotated[
        int | None,
        typer.Option("--from", metavar="N", min=0, help="With --sql: leave out the migrations up to this number."),
    ] = None,
) -> None:
    """Bring the database's schema to the version of this package.

    Does nothing where nothing is missing, and is safe when many processes start it at once.
    """
    if sql and check:
        raise BadArgumentError("--sql and --check are given", hint="Give one of them.")
    if from_ is not None and not sql:
        raise BadArgumentError("--from is given without --sql", hint="Without --sql the database knows.")
    if sql:
        say(migrations.sql(from_ or 0))
        return
    resolved = database.resolve(dsn)
    with (
        database.connect(resolved, command="migrate", verified=False) as conn,
        database.reaching(resolved, connected=True),
    ):
        if check:
            _check(conn)
            return
    with database.reaching(resolved, connected=True):
        say(described(migrations.apply(resolved, notice=lambda text: note(clean(text, block=True)))))


def described(done: Plan) -> str:
    """What `apply` did, in a line."""
    if done.newer and done.present:
        return f"the schema is {_text(done.present)}, newer than this package's {_text(SCHEMA_VERSION)}: nothing to do"
    if done.empty:
        return f"the schema is up to date: {_text(SCHEMA_VERSION)}"
    was = "there was none" if done.present is None else f"it was {_text(done.present)}"
    return f"the schema is now {_text(SCHEMA_VERSION)} ({was}): applied {_steps(done)}"


def _check(conn: psycopg.Connection[Any]) -> None:
    missing = migrations.plan(conn)
    present = migrations.version(conn)
    if missing.empty:
        migrations.verify(present)  # another major version is not ours to call fine
        say(described(missing))
        return
    is_now = "there is no schema" if present is None else f"the schema is {_text(present)}"
    say(f"behind: {is_now}, this package needs {_text(SCHEMA_VERSION)}; missing: {_steps(missing)}")
    note("Run: postrow migrate")
    raise typer.Exit(1)


def _steps(plan: Plan) -> str:
    steps = [file.name for file in plan.migrations]
    if plan.functions:
        steps.append(plural(len(plan.functions), "file") + " of functions")
    return ", ".join(steps)


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
