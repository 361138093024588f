"""Running what is queued, one message after the other, by the worker's own parts."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Literal
from uuid import uuid4

import psycopg

from postrow import migrate
from postrow import payload as payloads
from postrow.app import App
from postrow.drivers.psycopg3 import execute, execute_async
from postrow.durations import Duration, duration
from postrow.errors import BadArgumentError, PayloadTypeError
from postrow.models import Message
from postrow.ops import claims, fleet, look
from postrow.queues import Consumer
from postrow.testing.outcomes import Drained, Handled, raise_failed
from postrow.worker import Worker
from postrow.worker.acker import Acker
from postrow.worker.connections import Database, Weather
from postrow.worker.executor import Executor
from postrow.worker.outcomes import lease_lost, raised_in
from postrow.worker.registry import present_version, registrations
from postrow.worker.slots import Slot, Slots
from postrow.worker.transactions import Transactions

CLEANUP = 2.0  # seconds for a cancelled handler to end and its message to be given back
SPARE = timedelta(minutes=1)  # of a lease beyond the timeout: nothing renews it here


def drain(
    app: App,
    *,
    queues: Sequence[str] | None = None,
    tenant: str | None = None,
    name: str = "drain",
    timeout: Duration = 30,
    raise_failures: bool = True,
    retries: bool = False,
) -> Drained:
    """Run what is queued with the app's handlers, in this process, until nothing is due; then raise what failed.

    One message at a time, first of the first queue, each by its priority and then the oldest; what handlers enqueue is
    run too. Only what is committed is seen, and only what is due: what is scheduled waits, unless a `clock` is moved.
    A message is run once, also if it is due again at once. Limits (`max_in_flight`, `rate`) do not hold. All else is as
    in a worker: claims, payload types, timeouts, `Retry`, `Snooze` and `Bury`, dead letters. An async handler runs in
    an event loop of the drain's, a sync one in a thread.

    Args:
        app: its handlers and its database.
        queues: which of the app's queues; None: all that have a handler.
        tenant: of which tenant; None: of all.
        name: the worker's name: messages that have it for a target are run too.
        timeout: seconds or a timedelta for all of it.
        raise_failures: whether a failed message raises. If not, see the result.
        retries: whether what failed is run again, at once and not after its delay, until it is done or dead.

    Returns:
        What was run and what became of it.

    Raises:
        Exception: what a handler raised for a message that failed or was buried, with a note that says which; for one
            that failed several times, the last. Several messages: an ExceptionGroup.
        TimeoutError: something still ran, or was due, after `timeout`; what ran is given back.
        BadArgumentError: a queue without a handler, or a call inside an event loop: await `drain_async` there.
    """
    __tracebackhide__ = True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise BadArgumentError("drain was called inside an event loop", hint="Write: await drain_async(app)")
    # a loop factory: asyncio's own would leave this thread without a current loop, which other plugins look for
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        drained = runner.run(_drain(app, queues, tenant, name, duration("timeout", timeout), retries=retries))
    if raise_failures:
        raise_failed(drained.messages)
    return drained


async def drain_async(
    app: App,
    *,
    queues: Sequence[str] | None = None,
    tenant: str | None = None,
    name: str = "drain",
    timeout: Duration = 30,  # noqa: ASYNC109  # bounds the handlers, and says which one ran
    raise_failures: bool = True,
    retries: bool = False,
) -> Drained:
    """`drain`, for an event loop: async handlers run in the caller's."""
    __tracebackhide__ = True
    drained = await _drain(app, queues, tenant, name, duration("timeout", timeout), retries=retries)
    if raise_failures:
        raise_failed(drained.messages)
    return drained


def register(app: App) -> None:
    """Make an app's handlers and subscriptions known to its database, as its worker does when it starts.

    `drain` does it too; a test that publishes before it drains needs it first.
    """
    with psycopg.connect(app.dsn, autocommit=True) as conn:
        for registration in registrations(app, app.consumers.values(), now=execute(conn, fleet.clock())):
            execute(conn, registration)


async def _drain(
    app: App, queues: Sequence[str] | None, tenant: str | None, name: str, limit: timedelta, *, retries: bool
) -> Drained:
    consumers = Worker(app, queues=queues).consumers
    dsn = await asyncio.to_thread(lambda: app.dsn)
    database = Database(dsn, app.pooled, shared=app.pooled)
    async with await database.connect("drain") as conn:
        migrate.verify(await present_version(conn))
        await conn.execute("set postrow.aging = off")  # always the same order
        now = await execute_async(conn, fleet.clock())
        for registration in registrations(app, map(_unlimited, consumers), now=now):
            await execute_async(conn, registration)
        draining = _Draining(database, conn, consumers, tenant=tenant, name=name, lease=limit + SPARE, retries=retries)
        try:
            async with asyncio.timeout(limit.total_seconds()) as bound:
                await draining.run()
        except TimeoutError:
            if not bound.expired():
                raise
            raise TimeoutError(f"drain was not done after {limit.total_seconds():g} s: {draining.state}") from None
        finally:
            await draining.close()
        return Drained(tuple(draining.handled))


class _WatchedSlots(Slots):
    """Says when the outcome of a slot is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = asyncio.Event()

    def discard(self, slots: Iterable[Slot]) -> None:
        super().discard(slots)
        self.written.set()


def _unlimited(consumer: Consumer) -> Consumer:
    """One message at a time is within any number in flight, and a rate would leave the rest."""
    return dataclasses.replace(consumer, max_in_flight=None, rate=None, tenant_max_in_flight=None, tenant_rate=None)


class _Draining:
    """The worker's executor and acker, fed one message at a time, and a record of what became of each."""

    def __init__(
        self,
        database: Database,
        conn: psycopg.AsyncConnection[Any],
        consumers: Sequence[Consumer],
        *,
        tenant: str | None,
        name: str,
        lease: timedelta,
        retries: bool,
    ) -> None:
        self.handled: list[Handled] = []
        self._conn = conn
        self._tenant = tenant
        self._name = name
        self._lease = lease
        self._retries = retries
        self._consumers = {(c.queue.name, c.tenant): self._recording(c) for c in consumers}
        self._loop = asyncio.get_running_loop()
        self._slots = _WatchedSlots()
        self._acker = Acker(
            database, self._slots, Weather(), retried=lambda _queues: None, made_room=lambda _q, _t: None
        )
        self._transactions = Transactions(database)
        self._executor = Executor(
            self._slots,
            finished=self._finished,
            extend=self._extended,
            threads=1,
            transactions=self._transactions,
        )
        self._writing = asyncio.create_task(self._acker.run())
        self._writing.add_done_callback(lambda _task: self._slots.written.set())
        self._raised: tuple[BaseException, TracebackType | None] | None = None  # by the handler that runs
        self._ran: dict[claims.Key, str] = {}  # the outcome of each message's last run
        self._aside: list[tuple[claims.Held, datetime]] = []  # claimed again, though its turn is over; when it was due

    async def run(self) -> None:
        """Handle messages until none is due in any queue."""
        names = list(dict.fromkeys(name for name, _ in self._consumers))
        found = True
        while found:
            found = False
            for name in names:
                while (slot := await self._claim(name)) is not None:
                    found = True
                    await self._handle(slot)

    @property
    def state(self) -> str:
        """What goes on, for the message of a timeout."""
        done = f"{len(self.handled)} messages were handled"
        for slot in self._slots.all():
            what = f"message {slot.id} of queue {slot.queue}"
            if slot.ended:
                return f"the outcome of {what} could not be written, perhaps another transaction locks its row; {done}"
            return f"handler {slot.consumer.name} was running {what}; {done}"
        return f"{done}, and there was more: perhaps handlers enqueue or retry without end"

    async def close(self) -> None:
        """Give back what still runs and what was set aside. Waits for a moment only."""
        for slot in self._slots.all():
            if not slot.ended:
                self._executor.release(slot)
        self._executor.close()
        self._acker.close()
        await _bounded(self._acker_ends())
        for slot in self._slots.all():
            self._executor.abandon(slot)
        if not self._writing.done():
            self._writing.cancel()
        await asyncio.wait({self._writing})
        if not self._writing.cancelled():
            self._writing.exception()  # `run` has raised it, if there is one
        await self._transactions.close()
        if self._aside and not self._conn.closed:
            held = [held for held, _ in self._aside]
            await execute_async(self._conn, claims.release(held, until=[due for _, due in self._aside]))

    async def _acker_ends(self) -> None:
        while len(self._slots) and not self._writing.done():
            self._slots.written.clear()
            await self._slots.written.wait()
        await asyncio.wait({self._writing})

    def _consumer(self, queue: str, tenant: str) -> Consumer | None:
        if self._tenant not in (None, tenant):
            return None
        return self._consumers.get((queue, tenant)) or self._consumers.get((queue, "*"))

    async def _claim(self, queue: str) -> Slot | None:
        """Claim the next message that may run; None: nothing is due."""
        while True:
            found = await execute_async(self._conn, claims.lanes(queue, worker=self._name))
            ready = [lane for lane in found.lanes if lane.ready and self._consumer(queue, lane.tenant) is not None]
            ready.sort(key=lambda lane: (lane.priority, lane.due_in))
            for lane in ready:
                slot = await self._claim_from(queue, lane.tenant, lane.priority)
                if slot is not None:
                    break
            else:
                return None
            last = self._ran.get((slot.tenant, slot.id))
            if last is None or (self._retries and last == "failed"):
                return slot
            self._aside.append((claims.Held(slot.tenant, slot.id, slot.token), slot.claimed.due_at))

    async def _claim_from(self, queue: str, tenant: str, priority: int) -> Slot | None:
        consumer = self._consumer(queue, tenant)
        assert consumer is not None
        while True:
            token = uuid4()
            op = claims.claim_lanes(
                queue,
                [(tenant, priority, None)],
                per_lane=1,
                limit=1,
                lease=max(consumer.lease, self._lease),
                worker=self._name,
                token=token,
            )
            answer = await execute_async(self._conn, op, binary=True)
            if answer.messages:
                return Slot(answer.messages[0], token, consumer, self._loop.time())
            if not any(edge.wait == 0 for edge in answer.edges):
                return None  # else it set many of a group behind others, and there may be more

    async def _handle(self, slot: Slot) -> None:
        self._raised = None
        self._slots.written.clear()
        lost = self._acker.counts["lost"]
        self._executor.start([slot])
        await self._slots.written.wait()
        if self._writing.done():
            self._writing.result()  # the database is away, or refused: raise it
        outcome = await self._outcome(slot, lost=self._acker.counts["lost"] > lost)
        error, traceback = self._error(slot)
        self._ran[slot.tenant, slot.id] = outcome
        claimed = slot.claimed
        self.handled.append(
            Handled(
                id=slot.id,
                tenant=slot.tenant,
                queue=slot.queue,
                payload=_payload(slot),
                attempt=claimed.attempt,
                outcome=outcome,
                error=error,
                _traceback=traceback,
            )
        )

    def _finished(self, slot: Slot) -> None:
        if self._retries and slot.outcome is not None and slot.outcome.verdict == "fail":
            slot.outcome = dataclasses.replace(slot.outcome, retry_after=timedelta(0))
        self._acker.put(slot)

    async def _outcome(self, slot: Slot, *, lost: bool) -> Literal["done", "failed", "dead", "snoozed", "lost"]:
        assert slot.outcome is not None
        if lost:
            return "lost"
        if slot.settled:
            return "done"  # whatever the handler did after its transaction
        match slot.outcome.verdict:
            case "done":
                return "done"
            case "bury":
                return "dead"
            case "release":
                return "snoozed"
            case "fail":  # the database knows whether attempts are left, and whether the handler had acked it itself
                found = await execute_async(self._conn, look.show(slot.id, tenant=slot.tenant))
                state = found[0]["state"] if found else "done"  # there may be no history
                return "dead" if state == "dead" else "done" if state == "done" else "failed"

    def _error(self, slot: Slot) -> tuple[BaseException | None, TracebackType | None]:
        """What made a message fail, with the handler's own traceback."""
        assert slot.outcome is not None
        if slot.outcome.verdict not in ("fail", "bury"):
            return None, None
        if self._raised is not None:
            return self._raised
        try:
            slot.consumer.queue.codec.decode(slot.claimed.payload)
        except PayloadTypeError as error:  # the handler was not called
            return error, error.__traceback__
        kinds = {"TimeoutError": TimeoutError, "TypeError": TypeError}  # what the executor itself says of a run
        return kinds.get(slot.outcome.type or "", RuntimeError)(slot.outcome.error), None

    def _recording(self, consumer: Consumer) -> Consumer:
        """The consumer with a handler that leaves what it raises in `_raised`: an outcome has only its text."""
        handler = consumer.handler
        many = consumer.batch is not None

        async def run_async(given: Message[Any] | list[Message[Any]]) -> object:
            try:
                return self._seen(await handler(given), many=many)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self._record(error)
                raise

        def run(given: Message[Any] | list[Message[Any]]) -> object:
            try:
                return self._seen(handler(given), many=many)
            except BaseException as error:
                self._record(error)
                raise

        return dataclasses.replace(consumer, handler=run_async if consumer.is_async else run)

    def _seen(self, result: object, *, many: bool) -> object:
        """What a handler returned; of many messages, here of one, it can be an exception in a list."""
        if many and isinstance(result, list | tuple) and len(result) == 1 and (error := raised_in(result[0])):
            self._raised = (error, error.__traceback__)
        return result

    def _record(self, error: BaseException) -> None:
        traceback = error.__traceback__
        self._raised = (error, None if traceback is None else traceback.tb_next)  # without the frame of ours

    def _extended(self, slot: Slot, lease: timedelta) -> Future[None]:
        """`message.extend`: on the drain's connection, which is idle while a handler runs."""
        return asyncio.run_coroutine_threadsafe(self._extend(slot, lease), self._loop)

    async def _extend(self, slot: Slot, lease: timedelta) -> None:
        held = claims.Held(slot.tenant, slot.id, slot.token)
        answers = await execute_async(self._conn, claims.extend([held], lease))
        if answers.get((slot.tenant, slot.id)) not in ("accepted", "busy"):
            raise lease_lost(slot)


def _payload(slot: Slot) -> Any:
    try:
        return slot.consumer.queue.codec.decode(slot.claimed.payload)
    except PayloadTypeError:
        return payloads.decode(slot.claimed.payload)


async def _bounded(work: Coroutine[Any, Any, None]) -> None:
    try:
        async with asyncio.timeout(CLEANUP):
            await work
    except TimeoutError:
        pass  # a handler that does not let itself be cancelled, or a database that is away
