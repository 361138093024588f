"""`postrow subscription`: which topics go to which queues."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from postrow.cli import database
from postrow.cli.database import Dsn
from postrow.cli.screen import Cell, Column, clean, note, say, say_json, say_table
from postrow.drivers.psycopg3 import execute
from postrow.errors import NotFoundError
from postrow.ops import topics

Pattern = Annotated[
    str, typer.Argument(metavar="PATTERN", help="A topic; a segment may be * (one segment) or # (any number of them).")
]
Queue = Annotated[str, typer.Argument(metavar="QUEUE")]
Tenant = Annotated[str, typer.Option("--tenant", metavar="TENANT", help="Of one tenant; * is all.")]

COLUMNS = (
    Column("pattern", least=8),
    Column("queue", least=8),
    Column("tenant", least=6),
    Column("registered by"),
)


def register(program: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    group.command("list")(list_)
    group.command("add")(add)
    group.command("remove")(remove)
    program.add_typer(group, name="subscription", help="See, add and remove what routes topics to queues.")


def list_(
    *,
    dsn: Dsn = None,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Those that this topic fits.")] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="TENANT", help="Those of this tenant, and those of all.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs: a JSON array.")] = False,
) -> None:
    """List the subscriptions."""
    with database.connected(dsn, command="subscription") as conn:
        found = execute(conn, topics.subscriptions(topic=topic, tenant=tenant))
    if json:
        say_json([asdict(row) | {"registered_at": row.registered_at.isoformat()} for row in found])
    elif found:
        say_table(
            COLUMNS,
            [
                (Cell(clean(row.pattern), "bold"), clean(row.queue), clean(row.tenant), clean(row.registered_by))
                for row in found
            ],
        )
    else:
        note("There are no such subscriptions: a worker registers its app's when it starts.")


def add(pattern: Pattern, queue: Queue, dsn: Dsn = None, tenant: Tenant = "*") -> None:
    """Route what is published to a topic that fits the pattern to a queue, too."""
    with database.connected(dsn, command="subscription") as conn:
        new = execute(conn, topics.subscribe(pattern, queue, tenant=tenant))
    say(f"{clean(pattern)} goes to {clean(queue)}{_whose(tenant)}" + ("" if new else ", as before"))


def remove(pattern: Pattern, queue: Queue, dsn: Dsn = None, tenant: Tenant = "*") -> None:
    """Route it no more; what the queue holds stays there, and is handled as before."""
    with database.connected(dsn, command="subscription") as conn:
        there_was = execute(conn, topics.unsubscribe(pattern, queue, tenant=tenant))
    if not there_was:
        raise NotFoundError(
            f"there is no subscription of {pattern} for queue {queue}{_whose(tenant)}",
            hint="See: postrow subscription list",
        )
    say(f"{clean(pattern)} goes to {clean(queue)}{_whose(tenant)} no more")


def _whose(tenant: str) -> str:
    return "" if tenant == "*" else f" for tenant {clean(tenant)}"
