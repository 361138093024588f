"""`postrow sweep`: make every promise true in the end, where no worker does."""

from __future__ import annotations

import logging
import signal
import threading
import time
from datetime import timedelta
from typing import Annotated, Any

import psycopg
import typer

from postrow.cli import arguments, database, logs
from postrow.cli.database import Dsn
from postrow.cli.failure import INTERRUPTED
from postrow.cli.screen import Column, say_table
from postrow.drivers.psycopg3 import execute
from postrow.errors import DatabaseUnreachableError, LockNotAvailableError, SerializationError
from postrow.ops import fleet

log = logging.getLogger("postrow.cli")

TRANSIENT = (DatabaseUnreachableError, database.DatabaseRefusedError, LockNotAvailableError, SerializationError)
PATIENCE = 10.0  # seconds to wait for another sweeper, whose calls take milliseconds


def register(program: typer.Typer) -> None:
    """Add the command."""
    program.command("sweep")(sweep)


def sweep(
    *,
    dsn: Dsn = None,
    every: Annotated[
        timedelta | None,
        typer.Option(parser=arguments.duration, metavar="DURATION", help="Again and again, until SIGTERM: 1s is good."),
    ] = None,
    log_level: logs.Level = logs.LogLevel.info,
    log_format: logs.Format = logs.LogFormat.text,
) -> None:
    """Return messages whose lease has expired, and tidy up.

    Once, until nothing more is to do, or again and again with --every. It ends leases, expires messages, frees
    targets and groups, forgets old ids, and makes and drops the history's days.

    Workers do this by themselves. It is for a database whose messages are handled from SQL or another language.
    """
    resolved = database.resolve(dsn)
    if every is None:
        with database.connected(resolved, command="sweep") as conn:
            done = sweep_all(conn, patience=PATIENCE)
        say_table((Column("step"), Column("done", right=True)), [(step, f"{some:,}") for step, some in done.items()])
        return
    logs.start(log_level, log_format)
    _loop(resolved, every.total_seconds())


def sweep_all(conn: psycopg.Connection[Any], *, patience: float, stop: threading.Event | None = None) -> dict[str, int]:
    """Every step until nothing more is to do, or until `stop`; how much each did.

    Where another process sweeps it waits `patience` seconds at most; with 0 the step is left to that one.

    Raises:
        LockNotAvailableError: another process swept all the time.
    """
    done = dict.fromkeys(fleet.SWEEP_STEPS, 0)
    for step in fleet.SWEEP_STEPS:
        deadline = time.monotonic() + patience
        more = True
        while more and not (stop and stop.is_set()):
            answers = execute(conn, fleet.sweep(step))
            if answers:
                done[step] += answers[0].done
                more = answers[0].more
            elif not patience:
                more = False
            elif time.monotonic() > deadline:
                raise LockNotAvailableError("another process is sweeping all the time", hint="Try again later.")
            else:
                time.sleep(0.02)  # the other one is in the middle of a call
    return done


def _loop(dsn: str, seconds: float) -> None:
    """Sweep until SIGTERM (exit code 0) or Ctrl-C. An outage of any length is survived, with two log lines."""
    stop = threading.Event()
    interrupted = False

    def stopped(number: int, _frame: object) -> None:
        nonlocal interrupted
        interrupted = number == signal.SIGINT
        stop.set()

    before = {number: signal.signal(number, stopped) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        _sweep_until(stop, dsn, seconds)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _sweep_until(stop: threading.Event, dsn: str, seconds: float) -> None:
    from postrow.worker.connections import Backoff, Weather, conninfo  # noqa: PLC0415  # asyncio and all: 60 ms

    conn: psycopg.Connection[Any] | None = None
    weather, backoff, started = Weather(), Backoff(), False
    while not stop.is_set():
        pause = seconds
        try:
            if conn is None or conn.closed:
                conn = database.connect(conninfo(dsn, "sweep"), command="sweep")
            with database.reaching(dsn, connected=True):
                done = sweep_all(conn, patience=0, stop=stop)
        except TRANSIENT as error:
            weather.failed("sweep", error)
            pause = backoff.pause()
            if conn is not None and isinstance(error, DatabaseUnreachableError):
                conn.close()
        else:
            if not started:
                log.info("sweeping every %g s; database %s", seconds, database.name(dsn))
                started = True
            weather.fine("sweep")
            backoff.reset()
            if any(done.values()):
                log.debug("%s", ", ".join(f"{step} {number}" for step, number in done.items() if number))
        stop.wait(pause)
    if conn is not None:
        conn.close()
    log.info("stopped")
