"""`postrow worker`: run an app's handlers."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer

from postrow.app import DSN_VARIABLE, App
from postrow.cli import arguments, database, logs
from postrow.cli.loading import Target, load_app
from postrow.dsn import plain, read
from postrow.errors import BadArgumentError
from postrow.queues import GRACE, OPEN_AT_ONCE, POLL_INTERVAL

log = logging.getLogger("postrow.cli")

DEV_VARIABLE = "POSTROW_DEV_WORKER"  # set for the worker that `postrow dev` starts


class Transport(StrEnum):
    """How a worker learns of new messages."""

    tap = "tap"
    poll = "poll"


Dsn = Annotated[  # not read from the environment here: App() does, and an App with a DSN of its own does not
    str | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        help=f"The database, for an app that names none: App(). Default: {DSN_VARIABLE}.",
        show_default=False,
    ),
]
Queues = Annotated[
    str | None,
    typer.Option("--queues", metavar="A,B", help="Only these queues of the app; all, if left out.", show_default=False),
]


def grace_option(default: float) -> Any:
    """The option --grace, of a command with a default of so many seconds."""
    return typer.Option(
        "--grace",
        parser=arguments.duration,
        metavar="DURATION",
        help="What running handlers have after SIGTERM.",
        show_default=f"{default:g}s",
    )


def register(program: typer.Typer) -> None:
    """Add the command."""
    program.command("worker")(worker)


def worker(
    *,
    target: Target,
    dsn: Dsn = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A stable name, for targeted messages and the record. Default: host and pid."
        ),
    ] = None,
    queues: Queues = None,
    concurrency: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Messages at once in this process. Default: the sum of its queues'."),
    ] = None,
    transport: Annotated[
        Transport, typer.Option(help="tap: LISTEN, and look now and then; poll: only look.")
    ] = Transport.tap,
    listen_dsn: Annotated[
        str | None,
        typer.Option(metavar="DSN", help="A direct connection for LISTEN, where --dsn goes through a pooler."),
    ] = None,
    poll_interval: Annotated[
        timedelta,
        typer.Option(
            parser=arguments.duration,
            metavar="DURATION",
            help="How often it looks when nothing taps.",
            show_default=f"{POLL_INTERVAL:g}s",
        ),
    ] = timedelta(seconds=POLL_INTERVAL),
    grace: Annotated[timedelta, grace_option(GRACE)] = timedelta(seconds=GRACE),
    health: Annotated[
        arguments.Address | None,
        typer.Option(
            parser=arguments.address,
            metavar="[HOST:]PORT",
            help="Serve /live, /ready and /metrics; on loopback if no host is given.",
        ),
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep/--no-sweep", help="Take part in the sweep; at least one process has to.")
    ] = True,
    schedule: Annotated[
        bool, typer.Option("--schedule/--no-schedule", help="Enqueue what is scheduled; at least one process has to.")
    ] = True,
    transactions: Annotated[
        int, typer.Option(metavar="N", min=1, help="Connections that message.transaction() may use at once.")
    ] = OPEN_AT_ONCE,
    log_level: logs.Level = logs.LogLevel.info,
    log_format: logs.Format = logs.LogFormat.text,
) -> None:
    """Run the handlers of an app, until SIGTERM or Ctrl-C.

    It claims messages of the app's queues. When it is stopped it takes nothing more, gives back what has not
    started, and lets running handlers finish within the grace; a second signal ends it at once.
    """
    from postrow.worker import Worker  # noqa: PLC0415  # the other commands need none of it

    app = load_app_on(target, dsn)
    chosen = None if queues is None else arguments.queue_list(queues, queue_names(app))
    logs.start(log_level, log_format)
    check_database(app, target, given=dsn is not None)
    runs = Worker(
        app,
        name=name,
        queues=chosen,
        concurrency=concurrency,
        transport=transport.value,
        listen_dsn=listen_dsn,
        poll_interval=poll_interval.total_seconds(),
        grace=grace.total_seconds(),
        health=(health.host, health.port) if health is not None else None,
        sweep=sweep,
        schedule=schedule,
        transactions=transactions,
    )
    log.info(
        "worker %s listens on: %s; database %s", runs.name, listed(chosen or queue_names(app)), database.name(app.dsn)
    )
    with database.reaching(app.dsn):
        code = runs.run()
    raise typer.Exit(code)


def load_app_on(target: str, dsn: str | None) -> App:
    """The app that `target` names; its App() gets the database `dsn`, if one is given.

    Raises:
        BadArgumentError: the app cannot be loaded, or the DSN cannot be read.
    """
    if dsn:
        resolved = database.resolve(dsn)
        os.environ[DSN_VARIABLE] = dsn if read(dsn)[1] else resolved  # the app is to know of a pooler, too
    return load_app(target)


def check_database(app: App, target: str, *, given: bool) -> None:
    """See that an app has a database, and the one that was asked for.

    Raises:
        BadArgumentError: it has none, or its DSN cannot be read, or names another than --dsn (`given`) or dev does.
    """
    outside = os.environ.get(DSN_VARIABLE, "")
    own = database.name(app.dsn)
    if not outside or outside.startswith("embedded:") or app.dsn == plain(outside):
        return
    if DEV_VARIABLE in os.environ:
        raise BadArgumentError(
            f"the app {target} names a database itself ({own}), and postrow dev has another one",
            hint=f"Write App() in it: dev gives it the DSN. To work on its own database: postrow worker {target}",
        )
    if given:
        raise BadArgumentError(
            f"the app {target} names a database itself ({own}), and --dsn is another one",
            hint="Write App() in it and give the DSN outside; or leave --dsn out.",
        )
    log.warning("the app names a database itself, %s: %s is not used", own, DSN_VARIABLE)


def queue_names(app: App) -> list[str]:
    """The queues that the app has handlers for."""
    return sorted({queue for queue, _tenant in app.consumers})


def listed(names: Sequence[str]) -> str:
    """Names in one line."""
    return ", ".join(names)
