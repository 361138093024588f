"""A worker process: it puts the parts together, starts them, and stops them in the right order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Coroutine, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import uuid4

from postrow import migrate
from postrow.app import App
from postrow.drivers.psycopg3 import execute_async
from postrow.dsn import read
from postrow.durations import whole
from postrow.errors import BadArgumentError, PostrowError
from postrow.ops import Op, doctor, fleet
from postrow.queues import GRACE, OPEN_AT_ONCE, POLL_INTERVAL, Consumer
from postrow.worker import condition
from postrow.worker.acker import Acker
from postrow.worker.claimer import Claimer
from postrow.worker.connections import DATABASE_ERRORS, Backoff, Database, Weather
from postrow.worker.executor import Executor
from postrow.worker.health import Health, HealthServer
from postrow.worker.heartbeat import Heartbeat
from postrow.worker.listener import Listener
from postrow.worker.loops import run
from postrow.worker.metrics import State
from postrow.worker.outcomes import RELEASED
from postrow.worker.parts import CANCEL_BOUND, Parts
from postrow.worker.registry import present_version, registrations, say_wiring
from postrow.worker.scheduler import Scheduler
from postrow.worker.signals import stopping_on_signals
from postrow.worker.slots import Slot, Slots
from postrow.worker.supervisor import Supervisor
from postrow.worker.sweeper import Sweeper
from postrow.worker.telemetry import Telemetry
from postrow.worker.tracing import tracing
from postrow.worker.transactions import Transactions

log = logging.getLogger("postrow.worker")


class Worker:
    """Claims messages of an app's queues and runs their handlers, until stopped.

    Args:
        app: its queues, handlers and database.
        name: a stable name, for targeted messages and the record; host and process id if not given.
        queues: which of the app's queues; None: all that have a handler.
        concurrency: how many messages the process handles at once; None: the sum of its queues'.
        transport: `tap` listens for notifications; `poll` looks every `poll_interval`, and needs no LISTEN.
        listen_dsn: a direct connection for the listener where the app's goes through a pooler.
        poll_interval: seconds between looks when nothing calls; five times as long after an idle minute.
        grace: seconds that running handlers have to finish after SIGTERM; then they are released.
        health: host and port of the pages /live, /ready and /metrics; None: none.
        sweep: whether this worker takes part in the sweep; at least one process should.
        schedule: whether this worker enqueues what is scheduled; at least one process should.
        transactions: how many connections `message.transaction()` may use at once, for async and sync handlers each.

    Raises:
        BadArgumentError: a queue that the app does not have, no handler at all, or a value outside its range.
    """

    def __init__(
        self,
        app: App,
        *,
        name: str | None = None,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        transport: Literal["tap", "poll"] = "tap",
        listen_dsn: str | None = None,
        poll_interval: float = POLL_INTERVAL,
        grace: float = GRACE,
        health: tuple[str, int] | None = None,
        sweep: bool = True,
        schedule: bool = True,
        transactions: int = OPEN_AT_ONCE,
    ) -> None:
        self.consumers = _consumers(app, queues)
        self.name = name if name is not None else f"{_plain(socket.gethostname())}-{os.getpid()}"
        if transport not in ("tap", "poll"):
            raise BadArgumentError(f"transport is {transport!r}", hint="Give tap or poll.")
        if poll_interval <= 0 or grace < 0:
            raise BadArgumentError(
                f"poll_interval is {poll_interval}, grace is {grace}", hint="Give seconds: more than 0, and 0 or more."
            )
        if concurrency is not None and concurrency < 1:
            raise BadArgumentError(f"concurrency is {concurrency}", hint="Give 1 or more.")
        self._open_at_once = whole("transactions", transactions, least=1)
        if listen_dsn is not None and read(listen_dsn)[1]:
            raise BadArgumentError(
                "listen_dsn says pgbouncer=true, and a pooler in transaction mode lets nobody listen",
                hint="Give it a DSN that leads to the database directly, or leave it out and choose transport poll.",
            )
        self._app = app
        self._transport = transport
        self._listen_dsn = listen_dsn
        self._poll_interval = poll_interval
        self._grace = grace
        self._health_address = health
        self._sweep = sweep
        self._schedule = schedule
        self._concurrency = concurrency or sum(consumer.concurrency for consumer in self.consumers)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._stop_early = threading.Event()
        self._id = uuid4()
        self._parts: Parts | None = None
        self.health_port: int | None = None

    def run(self) -> int:
        """Work until SIGTERM, SIGINT or `stop`; blocks. In the main thread a second signal ends the process at once.

        Its event loop is uvloop's where that is installed (`pip install 'postrow[uvloop]'`), else asyncio's. `serve` is
        for loops of another kind. While it runs the garbage collector waits for 10,000 new objects, if it did not for
        more before.

        Returns:
            0 when it was stopped; also when handlers had to be released after the grace.

        Raises:
            SchemaMismatchError: the database's schema does not fit; the message names the command to run.
            ConsumerConflictError: another handler is registered for one of the queues.
            BadArgumentError: the address for the health pages cannot be had; the message names it and says why. Or it
                is called in an event loop.
        """
        with contextlib.suppress(RuntimeError):  # there is none
            asyncio.get_running_loop()
            raise BadArgumentError(
                "run starts an event loop of its own, and one is running in this thread", hint="There, await serve()."
            )
        return run(self.serve())

    def stop(self) -> None:
        """Stop gracefully, as SIGTERM does; from any thread, and before `run` too."""
        self._stop_early.set()
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just closed: it has stopped
                loop.call_soon_threadsafe(stop.set)

    async def serve(self) -> int:
        """`run`, inside an event loop of the caller's. Cancelled, it stops as `stop` does with a grace of 0."""
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        if self._stop_early.is_set():
            self._stop.set()
        weather = Weather()
        telemetry = Telemetry(
            self.consumers,
            worker=self.name,
            version=_package_version(),
            asked_for=self._health_address is not None,
            state=lambda: self._state(weather),
        )
        try:
            with stopping_on_signals(self._signalled), self._health_pages(weather, telemetry):
                # who says how to hear taps past a pooler, or does without them, may have one in between
                pooled = self._listen_dsn is not None or self._transport == "poll"
                dsn = await asyncio.to_thread(lambda: self._app.dsn)
                database = Database(dsn, pooled or self._app.pooled, shared=self._app.pooled)
                telemetry.found(database)
                if await self._unless_stopped(self._register(database, weather)):
                    await self._serve(database, weather, telemetry)
        finally:
            self._loop = self._stop = None
            self._stop_early.clear()
        return 0

    def _signalled(self, name: str) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(log.info, "%s: stopping, at most %g s for running handlers", name, self._grace)
        self.stop()

    @contextlib.contextmanager
    def _health_pages(self, weather: Weather, telemetry: Telemetry) -> Iterator[None]:
        """Serves them from the start, so that a worker that waits for its database is seen to live."""
        if self._health_address is None:
            yield
            return
        server = HealthServer(self._health_address, lambda: self._health(weather), metrics=telemetry.metrics)
        self.health_port = server.port
        pages = "/live, /ready and /metrics" if telemetry.metrics else "/live and /ready"
        log.info("health pages: http://%s:%s%s", self._health_address[0], server.port, pages)
        try:
            yield
        finally:
            server.close()
            self.health_port = None

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do `work` unless the worker is stopped meanwhile; whether it was done."""
        assert self._stop is not None
        task = asyncio.create_task(work)
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return False
            await task
            return True
        finally:
            stopped.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=CANCEL_BOUND)

    async def _register(self, database: Database, weather: Weather) -> None:
        """Check the schema and register the handlers, as soon as the database is there."""
        backoff = Backoff()
        while True:
            try:
                async with await database.connect("start") as conn:
                    present = await present_version(conn)
                    migrate.verify(present)
                    await execute_async(conn, doctor.refuse_copy())
                    async with conn.transaction(force_rollback=True):
                        await execute_async(conn, self._sign_of_life())  # refuses a bad name here, not for ever later
                    now = await execute_async(conn, fleet.clock())
                    for registration in registrations(self._app, self.consumers, now=now):
                        await execute_async(conn, registration)
                weather.fine("start")
            except DATABASE_ERRORS as error:
                if isinstance(error, PostrowError) and error.sqlstate not in ("40001", "55P03"):
                    raise
                weather.failed("start", error)
                await asyncio.sleep(backoff.pause())
            else:
                return

    async def _serve(self, database: Database, weather: Weather, telemetry: Telemetry) -> None:
        assert self._stop is not None
        self._parts = parts = self._build(database, weather, telemetry)
        parts.heartbeat.start()
        keep = parts.supervisor.keep
        keep("acker", parts.acker.run)
        keep("claimer", parts.claimer.run)
        if self._transport == "tap":
            claimer = parts.claimer
            listener = Listener(
                Database(self._listen_dsn) if self._listen_dsn else database,
                weather,
                connected=claimer.listening,
                tapped=claimer.tapped,
            )
            keep("listener", listener.run)
        if self._sweep:
            keep("sweeper", Sweeper(database, weather, worker=self._id, meter=telemetry.meter).run)
        if self._schedule:
            keep("scheduler", Scheduler(database, weather).run)
        say_wiring(self._app, self.consumers, worker=self.name)
        try:
            await self._stop.wait()
            await parts.wind_down(self._grace)
        except asyncio.CancelledError:  # by who awaits `serve`: what runs is given back
            await parts.wind_down(0.0)
            raise
        finally:
            await parts.end()
            self._parts = None
        log.info("stopped: %s", ", ".join(f"{count} {word}" for word, count in parts.acker.counts.items()))

    def _build(self, database: Database, weather: Weather, telemetry: Telemetry) -> Parts:
        slots = Slots(self.name)
        meter = telemetry.meter

        def retried(queues: set[str]) -> None:
            claimer.look_at(queues)

        def made_room(queue: str, tenant: str) -> None:
            claimer.made_room(queue, tenant)

        acker = Acker(database, slots, weather, retried=retried, made_room=made_room, meter=meter)

        def finished(slot: Slot) -> None:
            acker.put(slot)
            claimer.slot_freed()

        def refused(slot: Slot) -> None:
            slot.outcome = RELEASED
            slots.add((slot,))
            acker.put(slot)

        heartbeat = Heartbeat(
            database,
            slots,
            weather,
            lost=lambda slot: executor.lost(slot),  # noqa: PLW0108  # it is made below
            beat=self._sign_of_life,
            farewell=fleet.leave(self._id),
            shortest=min(consumer.lease for consumer in self.consumers),
        )
        sync = sum(consumer.concurrency for consumer in self.consumers if not consumer.is_async)
        transactions = Transactions(database, size=self._open_at_once)
        executor = Executor(
            slots,
            finished=finished,
            extend=heartbeat.extend,
            threads=min(sync, self._concurrency),
            transactions=transactions,
            meter=meter,
            tracing=tracing(self.name),
        )
        claimer = Claimer(
            database,
            self.consumers,
            executor,
            acker,
            weather,
            worker=self.name,
            concurrency=self._concurrency,
            poll_interval=self._poll_interval,
            refused=refused,
            fleet=lambda: heartbeat.fleet,
            meter=meter,
        )
        return Parts(slots, executor, acker, claimer, heartbeat, Supervisor(weather), transactions)

    def _health(self, weather: Weather) -> Health:
        stop = self._stop
        return condition.health(self.name, self._parts, weather, stopping=stop is None or stop.is_set())

    def _state(self, weather: Weather) -> State:
        ready = self._health(weather).ready
        return condition.state(self._parts, weather, concurrency=self._concurrency, ready=ready)

    def _sign_of_life(self) -> Op[int]:
        replaced = set() if self._parts is None else self._parts.claimer.replaced
        return fleet.beat(
            self._id,
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            consumed=sorted((one.queue.name, one.tenant) for one in self.consumers if one not in replaced),
            version=_package_version(),
            clock=datetime.now(UTC),
        )


def _consumers(app: App, queues: Sequence[str] | None) -> list[Consumer]:
    if not app.consumers:
        raise BadArgumentError(
            "the app has no handlers", hint="Decorate one: @app.queue('emails').consumer() def send(message): ..."
        )
    if queues is None:
        return list(app.consumers.values())
    if not queues:
        raise BadArgumentError("the list of queues is empty", hint="Name a queue, or leave the list out for all.")
    served = {name for name, _ in app.consumers}
    for name in queues:
        if name not in served:
            raise BadArgumentError(
                f"the app has no handler for queue {name!r}", hint=f"It has them for: {', '.join(sorted(served))}."
            )
    wanted = {*queues, *(f"{name}:dead" for name in queues)}  # with the handlers of their dead letters
    return [consumer for (name, _), consumer in app.consumers.items() if name in wanted]


def _plain(host: str) -> str:
    """A host's name in the grammar of names."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in host).strip("._-")[:150] or "host"


def _package_version() -> str:
    from postrow import __version__  # noqa: PLC0415  # the package imports this module lazily

    return __version__
