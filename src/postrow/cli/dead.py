"""`postrow dead`: look at dead letters, send them again, or close them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import typer

from postrow.cli import arguments, database
from postrow.cli.database import Dsn
from postrow.cli.figures import age, moment, plural
from postrow.cli.question import agreed
from postrow.cli.screen import Cell, Column, Row, clean, cut, note, say, say_json, say_table
from postrow.cli.show import Id, say_life
from postrow.drivers.psycopg3 import execute
from postrow.errors import BadArgumentError, NotFoundError
from postrow.ops import Op, look
from postrow.ops.look import DeadKey

OptionalId = Annotated[
    UUID | None, typer.Argument(parser=arguments.message_id, metavar="ID", help="One dead letter; or give filters.")
]
QueueFilter = Annotated[str | None, typer.Option("--queue", metavar="QUEUE", help="Of this queue.")]
TenantFilter = Annotated[str | None, typer.Option("--tenant", metavar="TENANT", help="Of this tenant.")]
SinceFilter = Annotated[
    timedelta | None,
    typer.Option("--since", parser=arguments.duration, metavar="DURATION", help="Died in the last 1h, '30 min', 2d."),
]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

COLUMNS = (
    Column("id"),
    Column("queue", least=8),
    Column("tenant", least=8),
    Column("died"),
    Column("reason"),
    Column("last error", least=50),
)
MOST = 100_000  # rows of a list
NOT_ALL = 3  # exit code: some were decided by somebody else meanwhile


class Resolution(StrEnum):
    """What becomes of a dead letter that is not sent again."""

    ignored = "ignored"
    handled = "handled"


def register(program: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    group.command("list")(list_)
    group.command("show")(show)
    group.command("redrive")(redrive)
    group.command("resolve")(resolve)
    program.add_typer(group, name="dead", help="Look at dead letters, send them again, or close them.")


def list_(
    *,
    dsn: Dsn = None,
    queue: QueueFilter = None,
    tenant: TenantFilter = None,
    since: SinceFilter = None,
    resolved: Annotated[bool, typer.Option("--resolved", help="Those that are decided, too.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=MOST, metavar="N", help="How many.")] = 100,
    json: Annotated[
        bool, typer.Option("--json", help="For programs: a JSON array; payload is text, cut to 400 characters.")
    ] = False,
) -> None:
    """List the dead letters that wait for a decision, newest first."""
    with database.connected(dsn, command="dead") as conn:
        op = look.dead_letters(queue=queue, tenant=tenant, since=since, resolved=resolved, limit=limit + 1)
        rows = execute(conn, op)
        now = execute(conn, look.now())
    shown = rows[:limit]
    if json:
        say_json(shown)
    elif shown:
        say_table(COLUMNS, [_row(row, now.timestamp()) for row in shown])
    else:
        note("There are no dead letters that fit." if queue or tenant or since else "There are no dead letters.")
    if len(rows) > limit:
        more = min(limit * 10, MOST)
        note(
            f"There are more: --limit {more} shows them."
            if more > limit
            else "There are more. --since, --queue and --tenant choose."
        )


def _row(row: dict[str, Any], now: float) -> Row:
    last = (row["failures"] or [{}])[-1]
    error = ": ".join(filter(None, (last.get("type"), last.get("message"))))
    reason = f"{row['attempt']} attempts" if row["reason"] == "attempts" else row["reason"]
    state = f"{reason}, {row['resolution']}" if row["resolved_at"] else reason
    return (
        row["id"],
        Cell(clean(row["queue"]), "bold"),
        clean(row["tenant"]),
        f"{age(now - moment(row['died_at']).timestamp())} ago",
        state,
        Cell(clean(cut(error, 100)), "red"),
    )


def show(
    *,
    id_: Id,
    dsn: Dsn = None,
    tenant: TenantFilter = None,
    json: Annotated[bool, typer.Option("--json", help="For programs: a JSON array.")] = False,
) -> None:
    """Show a dead letter whole.

    Its life, its payload, and the traceback of each failure that is kept.
    """
    with database.connected(dsn, command="dead") as conn:
        rows = _dead_rows(conn, id_, tenant)
        now = execute(conn, look.now())
    if json:
        say_json(rows)
    else:
        for row in rows:
            say_life(row, now=now, full=True)


def redrive(
    *,
    id_: OptionalId = None,
    dsn: Dsn = None,
    queue: QueueFilter = None,
    tenant: TenantFilter = None,
    since: SinceFilter = None,
    all_: All = False,
    yes: Yes = False,
    rate: Annotated[
        float | None,
        typer.Option(min=0.01, metavar="N", help="So many a second at most: what killed them may be weak."),
    ] = None,
) -> None:
    """Send dead letters again.

    One by its id, or all that fit the filters, after a question. Each becomes a new message with a new id and
    all its attempts; the dead letter stays and names it. Each is a transaction of its own, so what is done
    stays done if something stops this command.
    """
    chosen = _Chosen(id_, queue, tenant, since, all_)

    def decide(key: DeadKey) -> Op[str]:
        op = look.redrive(key.id, key.tenant)
        return Op(op.sql, op.params, lambda rows: f"{key.id}  redriven as {op.read(rows)}")

    _decide(dsn, chosen, "Redrive", decide, ask=not yes, pause=0 if rate is None else 1 / rate)


def resolve(
    *,
    resolution: Annotated[Resolution, typer.Option("--as", help="What became of it.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for who looks later.")],
    id_: OptionalId = None,
    dsn: Dsn = None,
    queue: QueueFilter = None,
    tenant: TenantFilter = None,
    since: SinceFilter = None,
    all_: All = False,
    yes: Yes = False,
) -> None:
    """Close dead letters without sending them again.

    One by its id, or all that fit the filters, after a question.
    """
    chosen = _Chosen(id_, queue, tenant, since, all_)

    def decide(key: DeadKey) -> Op[str]:
        op = look.resolve(key.id, key.tenant, resolution=resolution.value, reason=reason)
        return Op(op.sql, op.params, lambda _rows: f"{key.id}  {resolution.value}")

    _decide(dsn, chosen, "Resolve", decide, ask=not yes)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Which dead letters a command is about: one by id, or those that fit."""

    id: UUID | None
    queue: str | None
    tenant: str | None
    since: timedelta | None
    all: bool

    def __post_init__(self) -> None:
        filters = bool(self.queue or self.since or self.all)
        if self.id is not None and filters:
            raise BadArgumentError("an id and filters are given", hint="Give an id, or filters.")
        if self.id is None and not filters and not self.tenant:
            raise BadArgumentError(
                "which dead letters?",
                hint="Give an id, or --queue, --tenant, --since, or --all. Look: postrow dead list",
            )

    def words(self, number: int) -> str:
        parts = [plural(number, "dead letter")]
        if self.queue:
            parts.append(f"of queue {self.queue}")
        if self.tenant:
            parts.append(f"of tenant {self.tenant}")
        if self.since:
            parts.append(f"of the last {age(self.since.total_seconds())}")
        return clean(" ".join(parts))


def _decide(
    dsn: str | None, chosen: _Chosen, verb: str, decide: Callable[[DeadKey], Op[str]], *, ask: bool, pause: float = 0
) -> None:
    refused = 0
    with database.connected(dsn, command="dead") as conn:
        if chosen.id is not None:
            execute_one = _the_one(conn, chosen.id, chosen.tenant)
            say(execute(conn, decide(execute_one)))
            return
        keys = execute(conn, look.dead_keys(queue=chosen.queue, tenant=chosen.tenant, since=chosen.since))
        if not keys:
            note("There are no dead letters that fit.")
            return
        if ask and not agreed(f"{verb} {chosen.words(len(keys))}?"):
            note("Nothing was changed.")
            raise typer.Exit(1)
        for n, key in enumerate(keys):
            if n:
                time.sleep(pause)
            try:
                say(execute(conn, decide(key)))
            except NotFoundError as error:  # somebody else decided it since the list was made
                refused += 1
                note(f"{key.id}  not changed: {clean(error.message)}")
    note(f"{len(keys) - refused:,} of {chosen.words(len(keys))}: done.")
    if refused:
        raise typer.Exit(NOT_ALL)


def _dead_rows(conn: Any, id_: UUID, tenant: str | None) -> list[dict[str, Any]]:
    rows = [row for row in execute(conn, look.show(id_, tenant=tenant)) if row["state"] == "dead"]
    if not rows:
        raise NotFoundError(
            f"there is no dead letter {id_}{f' of tenant {tenant}' if tenant else ''}",
            hint=f"Look: postrow dead list, or postrow show {id_}",
        )
    return rows


def _the_one(conn: Any, id_: UUID, tenant: str | None) -> DeadKey:
    tenants = [row["tenant"] for row in _dead_rows(conn, id_, tenant)]
    if len(tenants) > 1:
        raise BadArgumentError(f"{id_} is a dead letter of tenants {', '.join(tenants)}", hint="Add --tenant.")
    return DeadKey(tenants[0], id_)
