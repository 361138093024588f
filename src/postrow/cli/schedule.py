"""`postrow schedule`: what is enqueued at times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from postrow import payload as payloads
from postrow import schedules as when
from postrow.cli import arguments, database
from postrow.cli.database import Dsn
from postrow.cli.screen import Cell, Column, Row, clean, note, say, say_json, say_table
from postrow.drivers.psycopg3 import execute
from postrow.errors import BadArgumentError, NotFoundError
from postrow.ops import fleet, schedules

Name = Annotated[str, typer.Argument(metavar="NAME")]
Tenant = Annotated[str, typer.Option("--tenant", metavar="TENANT", help="Whose schedule it is.")]
Zone = Annotated[str, typer.Option("--timezone", metavar="ZONE", help="That --cron is meant in: Europe/Berlin.")]
Count = Annotated[int, typer.Option(min=1, max=100, metavar="N", help="How many times.")]

COLUMNS = (
    Column("name", least=8),
    Column("tenant", least=8),
    Column("when", least=8),
    Column("queue", least=8),
    Column("missed"),
    Column("next"),
)


def register(program: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    for name, command in (
        ("list", list_),
        ("add", add),
        ("next", next_),
        ("pause", pause),
        ("resume", resume),
        ("remove", remove),
    ):
        group.command(name)(command)
    program.add_typer(group, name="schedule", help="See, add and stop what is enqueued at times.")


def list_(
    *,
    dsn: Dsn = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="TENANT", help="Of this tenant only.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="For programs: a JSON array; payload and headers are text.")
    ] = False,
) -> None:
    """List the schedules."""
    with database.connected(dsn, command="schedule") as conn:
        found = execute(conn, schedules.all_of(tenant=tenant))
    if json:
        say_json([schedules.as_json(row) for row in found])
    elif found:
        say_table(COLUMNS, list(map(_row, found)))
    else:
        note("There are no schedules: a worker registers its app's when it starts.")


def _row(row: schedules.Schedule) -> Row:
    return (
        Cell(clean(row.name), "bold"),
        clean(row.tenant),
        clean(row.times.said),
        clean(row.queue),
        row.missed,
        Cell("paused", "yellow") if row.paused else "over" if row.next_at is None else _moment(row.next_at),
    )


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(sep=" ", timespec="seconds")


def add(
    *,
    name: Name,
    queue: Annotated[str, typer.Argument(metavar="QUEUE")],
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", help="One JSON value.")] = "null",
    dsn: Dsn = None,
    cron: Annotated[
        str | None, typer.Option(metavar="EXPRESSION", help="Minute, hour, day, month, day of week: '30 4 * * *'.")
    ] = None,
    every: Annotated[
        timedelta | None, typer.Option(parser=arguments.duration, metavar="DURATION", help="An interval: 5min, 1h.")
    ] = None,
    at: Annotated[
        datetime | None,
        typer.Option(parser=arguments.moment, metavar="MOMENT", help="Once: ISO 8601, with its offset."),
    ] = None,
    timezone: Zone = "UTC",
    missed: Annotated[
        when.Missed, typer.Option(help="What becomes of times at which no worker ran; once: the last of them.")
    ] = "once",
    tenant: Tenant = "default",
) -> None:
    """Enqueue a message at times. A schedule of the same name is changed."""
    declared = schedules.Declared(
        name=name,
        times=when.times(cron=cron, every=every, at=at, timezone=timezone),
        queue=queue,
        payload=payloads.encode(payloads.decode(payload)),
        missed=missed,
        tenant=tenant,
    )
    with database.connected(dsn, command="schedule") as conn:
        now = execute(conn, fleet.clock())
        written = execute(conn, schedules.put(declared, now=now))
    first = next(declared.times.after(now), None)
    following = f", next at {_moment(first)}" if first is not None else ", which has passed: it never comes"
    say(
        f"{clean(name)} ({clean(declared.times.said)}) goes to {clean(queue)}{following}"
        + ("" if written else ", as before")
    )


def next_(
    *,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A schedule; or give --cron.")] = None,
    dsn: Dsn = None,
    cron: Annotated[
        str | None, typer.Option(metavar="EXPRESSION", help="To try an expression: needs no database.")
    ] = None,
    timezone: Zone = "UTC",
    tenant: Tenant = "default",
    count: Count = 5,
) -> None:
    """Show the next times of a schedule, or of a cron expression."""
    if cron is not None or name is None:
        chosen, now = when.times(cron=cron, timezone=timezone), datetime.now(UTC)
        zone = when.zone(timezone)
        found = when.coming(chosen, now, count)
    else:
        with database.connected(dsn, command="schedule") as conn:
            rows = [row for row in execute(conn, schedules.all_of(tenant=tenant)) if row.name == name]
        if not rows:
            raise _none(name, tenant)
        chosen, first = rows[0].times, rows[0].next_at
        zone = _readable(name, chosen)
        found = [] if first is None else [first, *_following(chosen, first, count - 1)]
    for at in found:
        say(at.astimezone(zone).isoformat(sep=" ", timespec="seconds"))
    if not found:
        note("It does not come any more.")


def _readable(name: str, times: when.Times) -> ZoneInfo:
    """The zone of a schedule that another client may have written: SQL takes more than can be read here."""
    try:
        zone = when.zone(times.timezone)
        if times.kind == "cron":
            when.times(cron=times.spec, timezone=times.timezone)
    except BadArgumentError as error:
        raise BadArgumentError(
            f"the schedule {clean(name)} cannot be read here: {error.message}",
            hint=f"Write it anew: postrow schedule add. {error.hint}",
        ) from None
    return zone


def _following(times: when.Times, first: datetime, count: int) -> list[datetime]:
    after = times.after(first, last=first)
    return [at for at, _ in zip(after, range(count), strict=False)]


def pause(name: Name, dsn: Dsn = None, tenant: Tenant = "default") -> None:
    """Pause a schedule: its times pass, and are missed ones when it is resumed."""
    _pause(name, dsn, tenant, paused=True)
    say(f"{clean(name)} is paused")


def resume(name: Name, dsn: Dsn = None, tenant: Tenant = "default") -> None:
    """End the pause of a schedule."""
    _pause(name, dsn, tenant, paused=False)
    say(f"{clean(name)} is resumed")


def _pause(name: str, dsn: str | None, tenant: str, *, paused: bool) -> None:
    with database.connected(dsn, command="schedule") as conn:
        if not execute(conn, schedules.pause(name, tenant=tenant, paused=paused)):
            raise _none(name, tenant)


def remove(name: Name, dsn: Dsn = None, tenant: Tenant = "default") -> None:
    """Remove a schedule; what it has enqueued stays."""
    with database.connected(dsn, command="schedule") as conn:
        if not execute(conn, schedules.drop(name, tenant=tenant)):
            raise _none(name, tenant)
    say(f"{clean(name)} is removed")


def _none(name: str, tenant: str) -> NotFoundError:
    return NotFoundError(f"tenant {tenant} has no schedule {name}", hint="See: postrow schedule list")
