"""The play: each phase does one thing, and says what and why."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import psycopg

from postrow import migrate
from postrow.cli import database
from postrow.cli.demo import orders, place, proof, signals
from postrow.cli.demo.events import Event
from postrow.cli.demo.orders import Website
from postrow.cli.demo.shop import LEASE
from postrow.cli.demo.stage import Stage
from postrow.cli.demo.workers import Worker, Workers
from postrow.cli.figures import plural
from postrow.cli.screen import note
from postrow.errors import WorkerError

PATIENCE = 45.0  # seconds that a step may take, which takes two or three on an idle machine

T = TypeVar("T")


class TookTooLongError(WorkerError):
    """A thing that was waited for did not come."""


@dataclass(frozen=True, slots=True)
class Script:
    """What the command line asks for."""

    orders: int
    seconds: float
    events: Sequence[Event]
    dsn: str | None
    keep: bool


def play(script: Script) -> int:
    """The whole demo; 0 if the proof holds, 1 if it does not."""
    try:
        with signals.unwinding(), ExitStack() as stack:
            try:
                return _play(script, stack)
            finally:
                signals.ignore()
    except KeyboardInterrupt:
        note("Stopped. The workers have ended, and the database of the demo is removed.")
        raise


def _play(script: Script, stack: ExitStack) -> int:
    stage = Stage(total=script.orders)
    stage.say(
        f"Three shops take {script.orders} orders. Each order sends three messages: for an e-mail, a booking in the "
        "warehouse, an invoice. Things will go wrong, and no message may be lost or made up."
    )
    stage.say()
    where = stack.enter_context(place.found(script.dsn, keep=script.keep))
    stack.enter_context(database.reaching(where.dsn, connected=True))
    stage.phase("Database", where.said)
    migrate.apply(where.dsn)
    stage.phase("Queue", "Postrow's tables are made: the queue is a table in this database.")
    conn = stack.enter_context(psycopg.connect(where.dsn, autocommit=True, application_name="demo"))
    conn.execute(orders.TABLES)
    folder = Path(tempfile.mkdtemp(prefix="postrow-demo-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    workers = Workers(where.dsn, folder)
    stack.callback(workers.end)
    website = Website(conn, orders.heavy_of(script.orders))
    with stage.live(where.dsn, website, workers):
        killed, held = _act(script, stage, conn, website, workers)
    website.confess()
    findings = proof.ask(conn, website, killed=killed.name, held=held)
    stage.phase("Proof", "Queries count what became of every order and every message:")
    stage.say()
    code = proof.show(findings, stage)
    if where.left:
        stage.show(f"\n{where.left}")
    return code


def _act(
    script: Script, stage: Stage, conn: psycopg.Connection[Any], website: Website, workers: Workers
) -> tuple[Worker, list[UUID]]:
    """All that happens while the queues are shown. The worker that was killed, and the messages that it held."""
    first, second = workers.start(), workers.start()
    stage.phase("Workers", f"{first.name} and {second.name} are started: processes that handle messages.")
    _until(lambda: _living(conn) >= 2, workers, "the workers to start")
    stage.phase(
        "Orders",
        "An order and its messages are one transaction. Every tenth card is declined: that order rolls back, and its "
        "messages must never have existed.",
    )
    if script.events:
        lines = plural(len(script.events), "message")
        stage.phase("Events", f"Between the orders, {lines} from your file: each must arrive as it is.")
    pace = _Pace(script, website, workers)
    pace.until(website.heavy)
    killed, held = _kill(stage, conn, website, workers)
    third = workers.start()
    stage.phase(
        "Restart",
        f"{third.name} starts in its place. A worker holds a message for {LEASE:g} s (a lease), and renews that "
        f"while it lives. {killed.name} cannot: what it held comes back when the leases end.",
    )
    pace.until(script.orders)
    stage.phase(
        "Drain",
        "All orders are in. What failed is tried again, until it works; or until it has failed too often and is put "
        "aside as a dead letter, for a person to decide.",
    )
    open_ = "select exists (select from postrow.message)"
    patience = PATIENCE + len(script.events) / 50 + script.orders / 20
    with suppress(TookTooLongError):  # then the proof says what is left
        _until(lambda: not _one(conn, open_), workers, "every message to be settled", patience=patience)
    workers.stop()
    return killed, held


class _Pace:
    """Takes orders evenly over the time that the script gives, and events between them."""

    def __init__(self, script: Script, website: Website, workers: Workers) -> None:
        self._script = script
        self._website = website
        self._workers = workers
        self._wait = script.seconds / script.orders
        self._due = time.monotonic()
        self._sent = 0

    def until(self, number: int) -> None:
        """Up to and with this order."""
        events, orders_ = self._script.events, self._script.orders
        for n in range(self._website.placed + 1, number + 1):
            self._workers.check()
            self._website.take(n)
            for event in events[self._sent : len(events) * n // orders_]:
                self._website.forward(event)
            self._sent = len(events) * n // orders_
            self._due = max(self._due + self._wait, time.monotonic() - 1.0)  # what the kill took is caught up in part
            time.sleep(max(0.0, self._due - time.monotonic()))


def _kill(stage: Stage, conn: psycopg.Connection[Any], website: Website, workers: Workers) -> tuple[Worker, list[UUID]]:
    """Kill the worker that books the heavy article, after it has booked and before it could say so."""
    booking = "select worker from effect where queue = 'demo.warehouse' and subject = %s"
    name = _until(lambda: _one(conn, booking, f"order:{website.heavy}"), workers, "the booking of the heavy order")
    victim = workers.named(name)
    workers.kill(victim)
    gone = "select not exists (select from pg_stat_activity where application_name = %s)"
    _until(lambda: _one(conn, gone, name), workers, "the killed worker's sessions to end")
    query = "select id from postrow.message where claim_token is not null and claimed_by = %s"
    held = [row[0] for row in conn.execute(query, [name])]
    stage.phase(
        "kill -9",
        f"{name} (process {victim.pid}) is killed in the middle of its work. It held {plural(len(held), 'message')}, "
        "and can tell nobody how far it came with them.",
    )
    return victim, held


def _living(conn: psycopg.Connection[Any]) -> int:
    return int(_one(conn, "select count(*) from postrow.worker"))


def _one(conn: psycopg.Connection[Any], query: Any, *values: object) -> Any:
    row = conn.execute(query, values).fetchone()
    return None if row is None else row[0]


def _until(condition: Callable[[], T], workers: Workers, what: str, *, patience: float = PATIENCE) -> T:
    """Wait for a thing that the workers do.

    Raises:
        TookTooLongError: it did not come.
        WorkerError: a worker has ended.
    """
    end = time.monotonic() + patience
    while not (found := condition()):
        workers.check()
        if time.monotonic() > end:
            raise TookTooLongError(
                f"waited {patience:.0f} s for {what}, in vain",
                hint="If this machine is very busy, try again later, or with fewer --orders.",
            )
        time.sleep(0.02)
    return found
