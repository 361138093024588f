"""`postrow consumer`: who handles which queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from postrow.cli import database
from postrow.cli.database import Dsn
from postrow.cli.screen import Cell, Column, Row, clean, note, say, say_json, say_table
from postrow.drivers.psycopg3 import execute
from postrow.errors import NotFoundError
from postrow.ops import look

Queue = Annotated[str, typer.Argument(metavar="QUEUE")]
Tenant = Annotated[
    str, typer.Option("--tenant", metavar="TENANT", help="The consumer of one tenant; * is the one for all.")
]

COLUMNS = (
    Column("queue", least=8),
    Column("tenant", least=8),
    Column("handler", least=8),
    Column("workers", right=True),
    Column("policy"),
)


def register(program: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    group.command("list")(list_)
    group.command("replace")(replace)
    group.command("remove")(remove)
    program.add_typer(group, name="consumer", help="See, change and remove who handles which queue.")


def list_(
    *,
    dsn: Dsn = None,
    json: Annotated[bool, typer.Option("--json", help="For programs: a JSON array; durations in seconds.")] = False,
) -> None:
    """List the consumers: the handler of each queue, its policy and its limits."""
    with database.connected(dsn, command="consumer") as conn:
        rows = execute(conn, look.consumers())
    if json:
        say_json(rows)
    elif rows:
        say_table(COLUMNS, list(map(_row, rows)))
    else:
        note("There are no consumers: a worker registers its own when it starts.")


def _row(row: dict[str, Any]) -> Row:
    return (
        Cell(clean(row["queue"]), "bold"),
        clean(row["tenant"]),
        clean(row["handler"]),
        str(row["workers"]),
        ", ".join((f"{row['max_attempts']} attempts", _retry(row), f"lease {_seconds(row['lease'])}", *_unusual(row))),
    )


def _unusual(row: dict[str, Any]) -> Iterator[str]:
    """What differs from the defaults, by the names of the options: a consumer without any has a short line."""
    if not row["keep_history"]:
        yield "no history"
    if row["on_dead"] != "continue":
        yield f"on_dead {row['on_dead']}"
    for scope in ("", "tenant_"):
        if (most := row[f"{scope}max_in_flight"]) is not None:
            yield f"{scope}max_in_flight {most}"
        if (rate := row[f"{scope}rate"]) is not None:
            yield f"{scope}rate {rate}/{_seconds(row[f'{scope}rate_period']).removeprefix('1 ')}"


def _retry(row: dict[str, Any]) -> str:
    base, cap = _seconds(row["retry_base"]), _seconds(row["retry_cap"])
    match row["retry"]:
        case "exponential":
            text = f"retry {base} x {row['retry_factor']:g}^n to {cap}"
        case "linear":
            text = f"retry {base} x n to {cap}"
        case _:
            text = f"retry {base}"
    return text if row["retry_jitter"] else f"{text} without jitter"


def _seconds(value: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if value >= size and value % size == 0:
            return f"{value / size:.0f} {unit}"
    return f"{value:g} s"


def replace(
    *,
    queue: Queue,
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="The name of the handler that takes over.")],
    dsn: Dsn = None,
    tenant: Tenant = "*",
) -> None:
    """Give a queue to another handler.

    The policy stays until that handler's worker starts with its own. Workers of the present handler take
    nothing more from the queue; what they hold they finish.
    """
    with database.connected(dsn, command="consumer") as conn:
        before = execute(conn, look.replace_consumer(queue, handler, tenant=tenant))
    if before is None:
        raise _no_consumer(queue, tenant)
    say(f"{clean(queue)} is consumed by {clean(handler)}" + (f", not {clean(before)}" if before != handler else ""))


def remove(queue: Queue, dsn: Dsn = None, tenant: Tenant = "*") -> None:
    """Remove the consumer of a queue; its messages stay.

    Stop its workers first: those that run go on, by the default policy and without limits.
    """
    with database.connected(dsn, command="consumer") as conn:
        there_was = execute(conn, look.unregister_consumer(queue, tenant=tenant))
    if not there_was:
        raise _no_consumer(queue, tenant)
    say(f"{clean(queue)} has no consumer now{'' if tenant == '*' else f' for tenant {clean(tenant)}'}")


def _no_consumer(queue: str, tenant: str) -> NotFoundError:
    whose = "for all tenants" if tenant == "*" else f"of tenant {tenant}"
    return NotFoundError(f"queue {queue} has no consumer {whose}", hint="See: postrow consumer list")
