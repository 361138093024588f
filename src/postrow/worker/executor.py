"""Runs handlers: async ones on the event loop, sync ones in threads. Every run ends in one outcome."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, NamedTuple

from postrow.models import Message
from postrow.ops.lineage import handled
from postrow.queues import Consumer
from postrow.worker.handed import hand
from postrow.worker.metrics import Meter
from postrow.worker.outcomes import RELEASED, failure, of_each, returned, timed_out
from postrow.worker.slots import DONE, Call, Outcome, Slot, Slots
from postrow.worker.tasks import Tasks
from postrow.worker.threads import Threads
from postrow.worker.tracing import RunSpan, Tracing
from postrow.worker.transactions import Transactions

log = logging.getLogger("postrow.worker")

Extend = Callable[[Slot, timedelta], "Future[None]"]
Unit = Slot | Call
"""What a handler is called with: one message, or many."""
End = tuple[Slot, Outcome]


class _Many(NamedTuple):
    """The parent of what is sent by a handler of many messages: none of them, and the most hops of them."""

    id: None
    hops: int

    @classmethod
    def of(cls, slots: Sequence[Slot]) -> _Many:
        """Of the slots of one call."""
        return cls(None, max(slot.claimed.hops for slot in slots))


class Executor:
    """Starts a handler for each slot and hands its outcome on.

    Args:
        slots: what is held; a slot is added before its handler starts.
        finished: called in the event loop with each slot whose `outcome` is set.
        extend: renews one slot's lease on the heartbeat's connection.
        threads: how many sync handlers may run at once.
        transactions: the connections of `message.transaction()`.
        meter: is told of losses, and of what follows in a group; handlers are timed for it.
        tracing: makes a span of each run.
    """

    def __init__(
        self,
        slots: Slots,
        *,
        finished: Callable[[Slot], None],
        extend: Extend,
        threads: int,
        transactions: Transactions,
        meter: Meter | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._slots = slots
        self._finished = finished
        self._extend = extend
        self._transactions = transactions
        self._meter = meter
        self._tracing = tracing
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(threads)
        self._tasks: Tasks[Unit] = Tasks(self._run)
        self._returned: deque[list[End]] = deque()  # by threads
        self._collecting = False
        self._stopping = False
        self.running: dict[Consumer, int] = {}  # calls
        self.total = 0
        self.waiting = 0  # of groups: held, and to be handled after another

    def start(self, slots: Sequence[Slot]) -> None:
        """Run the handlers of messages of one claim, and then those of their groups that follow.

        Never raises: whatever goes wrong is that message's failure.
        """
        self._slots.add(slots)
        for slot in slots:
            after = slot.then
            while after is not None:
                self._slots.add((after,))
                self.waiting += 1
                after = after.then
        self._start(slots)

    def stop(self) -> None:
        """Start nothing more: what waits for another of its group is given back."""
        self._stopping = True
        for slot in self._slots.all():
            if slot.started:
                self._give_back_after(slot)

    def _start(self, slots: Sequence[Slot]) -> None:
        many: dict[Consumer, list[Slot]] = {}
        for slot in slots:
            slot.started = True
            if slot.consumer.batch is None:
                self._call(slot, slot.consumer)
            else:
                many.setdefault(slot.consumer, []).append(slot)
        for consumer, its in many.items():
            size = consumer.batch or 1
            for at in range(0, len(its), size):
                self._call(Call(its[at : at + size]), consumer)

    def _call(self, unit: Unit, consumer: Consumer) -> None:
        self.running[consumer] = self.running.get(consumer, 0) + 1
        self.total += 1
        if consumer.is_async:
            self._tasks.submit(unit)
            return
        try:
            self._threads.submit(functools.partial(self._run_in_thread, unit))
        except RuntimeError as error:  # the process may have no thread
            self._end_all([(slot, failure(error)) for slot in (unit.slots if isinstance(unit, Call) else [unit])])

    def lost(self, slot: Slot) -> None:
        """Another has the message: stop its handler if that can be, and report nothing."""
        if slot.ended or slot.lost:
            return  # its outcome is with the acker, and will be refused; or this was said
        slot.lost = True
        if self._meter is not None:
            self._meter.lost(slot)
        if not slot.started:
            return  # it waits for another of its group, and will not be started
        self._give_back_after(slot)
        stops = slot.consumer.is_async and (slot.call is None or all(other.lost for other in slot.call.slots))
        log.warning(
            "lost the lease of %s / %s %s: %s",
            slot.queue,
            slot.tenant,
            slot.id,
            "its handler is cancelled" if stops else "its handler cannot be stopped, its outcome will be refused",
            extra=self._slots.about(slot),
        )
        if stops and slot.task is not None:  # else it has not begun, and will not
            slot.task.cancel()

    def release(self, slot: Slot) -> None:
        """Give a running message back: at the end of the grace. A sync handler runs on, and its outcome is dropped."""
        if slot.task is None:  # so does an async one that has not begun
            self.abandon(slot)
        elif slot.outcome is None:
            slot.outcome = RELEASED
            if slot.call is None or all(other.outcome is not None for other in slot.call.slots):
                slot.task.cancel()

    def abandon(self, slot: Slot) -> None:
        """Give a message back whose handler runs on, since it cannot be stopped or does not let itself be cancelled."""
        self._end(slot, RELEASED)

    def close(self) -> None:
        """Take no more sync handlers; running threads are not waited for, idle ones end now."""
        self._threads.close()

    def _set_deadline(self, slot: Slot, timeout: timedelta) -> None:
        """No lease is renewed past the timeout: not of this message, nor of those of its group that wait for it."""
        deadline = time.monotonic() + timeout.total_seconds()
        held: Slot | None = slot
        while held is not None:
            held.deadline = deadline
            held = held.then

    def _run(self, unit: Unit) -> Coroutine[Any, Any, None]:
        return self._handle(unit) if isinstance(unit, Slot) else self._handle_many(unit)

    async def _handle(self, slot: Slot) -> None:
        if slot.ended or slot.lost:  # before it began
            self._end(slot, RELEASED)
            return
        slot.task = self._tasks.current
        consumer = slot.consumer
        timeout = consumer.timeout
        run: _Run | None = None
        raised: BaseException | None = None
        limit: asyncio.Timeout | None = None
        try:
            message = hand(slot, self._extend_async, self._transactions)
        except BaseException as error:  # noqa: BLE001  # a payload that does not fit, a validator that exits: its failure
            self._end(slot, failure(error))
            return
        before = handled.set(message)
        try:
            if self._meter is not None or self._tracing is not None:
                run = self._begin([slot], [message])
            if timeout is None:
                await consumer.handler(message)
            else:
                self._set_deadline(slot, timeout)
                async with asyncio.timeout(timeout.total_seconds()) as limit:
                    await consumer.handler(message)
            outcome = DONE
        except BaseException as error:  # SystemExit of one handler must not end the worker
            if isinstance(error, GeneratorExit) and not _runs(slot.task):
                raise  # the loop was closed over it, and the message given back long ago
            raised = error
            outcome = self._stopped(slot, error, timeout, limit)
        if run is not None:
            run.end(raised)
        raised = None  # a frame that holds its own error waits for the garbage collector
        handled.reset(before)
        self._end(slot, outcome)

    async def _handle_many(self, call: Call) -> None:
        slots, messages, ends = self._hand_many(call.slots, self._extend_async)
        if slots:
            for slot in slots:
                slot.task = self._tasks.current
            ends += await self._call_with(slots, messages)
        self._end_all(ends)

    async def _call_with(self, slots: list[Slot], messages: list[Message[Any]]) -> list[End]:
        consumer = slots[0].consumer
        timeout = consumer.timeout
        raised: BaseException | None = None
        limit: asyncio.Timeout | None = None
        before = handled.set(_Many.of(slots))
        run = self._begin(slots, messages)
        try:
            if timeout is None:
                result = await consumer.handler(messages)
            else:
                for slot in slots:
                    self._set_deadline(slot, timeout)
                async with asyncio.timeout(timeout.total_seconds()) as limit:
                    result = await consumer.handler(messages)
            outcomes = of_each(result, len(slots))
        except BaseException as error:  # as above
            if isinstance(error, GeneratorExit) and not _runs(slots[0].task):
                raise
            raised = error
            outcomes = [self._stopped(slot, error, timeout, limit) for slot in slots]
        if run is not None:
            run.end(raised)
        raised = None
        handled.reset(before)
        return list(zip(slots, outcomes, strict=True))

    def _stopped(
        self, slot: Slot, error: BaseException, timeout: timedelta | None, limit: asyncio.Timeout | None
    ) -> Outcome:
        """The outcome of an async handler that raised, was given back or took too long."""
        if isinstance(error, asyncio.CancelledError) and slot.outcome is RELEASED:
            return RELEASED
        if timeout is not None and isinstance(error, TimeoutError) and limit is not None and limit.expired():
            return timed_out(timeout)
        return failure(error)

    def _hand_many(
        self, given: list[Slot], extend: Callable[[Slot, timedelta], Awaitable[None]]
    ) -> tuple[list[Slot], list[Message[Any]], list[End]]:
        """The messages of a call; and how those end that were given back before it began, or that cannot be read."""
        slots: list[Slot] = []
        messages: list[Message[Any]] = []
        ends: list[End] = []
        for slot in given:
            if slot.ended or slot.lost:
                ends.append((slot, RELEASED))
                continue
            try:
                message = hand(slot, extend, self._transactions)
            except BaseException as error:  # noqa: BLE001  # as above
                ends.append((slot, failure(error)))
                continue
            slots.append(slot)
            messages.append(message)
        return slots, messages, ends

    def _run_in_thread(self, unit: Unit) -> None:
        given = unit.slots if isinstance(unit, Call) else [unit]
        slots, messages, ends = self._hand_many(given, self._extend_sync)
        if slots:
            consumer = slots[0].consumer
            if consumer.timeout is not None:
                for slot in slots:
                    self._set_deadline(slot, consumer.timeout)
            before = handled.set(messages[0] if isinstance(unit, Slot) else _Many.of(slots))
            run = self._begin(slots, messages)
            raised: BaseException | None = None
            outcomes: Sequence[Outcome]
            try:
                if isinstance(unit, Slot):
                    outcomes = [returned(consumer.handler(messages[0]))]
                else:
                    outcomes = of_each(consumer.handler(messages), len(slots))
            except BaseException as error:  # noqa: BLE001  # as above
                outcomes, raised = [failure(error)] * len(slots), error
            if run is not None:
                run.end(raised)
            raised = None
            handled.reset(before)  # else an idle thread would hold the message
            ends += zip(slots, outcomes, strict=True)
        self._returned.append(ends)
        if not self._collecting:  # else what was appended is collected with what another thread has
            self._collecting = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: the message was given back long ago
                self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        """End what threads have done. They wake the loop once for many: that costs more than a short handler."""
        self._collecting = False
        while self._returned:
            self._end_all(self._returned.popleft())

    def _begin(self, slots: list[Slot], messages: list[Message[Any]]) -> _Run | None:
        """What watches the handler that begins now, where somebody wants to know."""
        if self._meter is None and self._tracing is None:
            return None
        return _Run(slots, None if self._tracing is None else self._tracing.begin(slots, messages))

    def _end_all(self, ends: list[End]) -> None:
        for slot, outcome in ends:
            self._end(slot, outcome)

    def _end(self, slot: Slot, outcome: Outcome) -> None:
        if slot.ended:
            return  # given back while its handler ran on: all was done then
        slot.ended = True
        slot.outcome = outcome
        call = slot.call
        if call is not None:
            call.left -= 1
        if call is None or not call.left:
            self.running[slot.consumer] -= 1
            self.total -= 1
        if outcome.verdict in {"fail", "bury"} and not slot.lost:
            self._say_failed(slot, outcome)
        if slot.then is not None:
            self._pass_on(slot, slot.then)
        self._finished(slot)
        if call is not None and not call.left:
            self._start(call.after)

    def _pass_on(self, slot: Slot, after: Slot) -> None:
        """The next of its group starts, with those of the same call, or is given back."""
        if not self._goes_on(slot, after):
            self._give_back_after(slot)
            return
        slot.then = None
        self.waiting -= 1
        if self._meter is not None:
            self._meter.followed(after)
        if slot.call is None:
            self._start((after,))
        else:
            slot.call.after.append(after)

    def _goes_on(self, slot: Slot, after: Slot) -> bool:
        """Whether the next of its group may start: this one is done, and both are certainly still ours."""
        assert slot.outcome is not None
        now = time.monotonic()
        done = slot.settled or (slot.outcome.verdict == "done" and not slot.lost and not slot.gone and slot.holds(now))
        return done and not after.lost and not after.gone and after.holds(now) and not self._stopping

    def _say_failed(self, slot: Slot, outcome: Outcome) -> None:
        log.info(
            "attempt %s of %s / %s %s failed: %s",
            slot.claimed.attempt,
            slot.queue,
            slot.tenant,
            slot.id,
            ": ".join(filter(None, (outcome.type, outcome.error.partition("\n")[0]))),
            extra=self._slots.about(slot),
        )

    def _give_back_after(self, slot: Slot) -> None:
        """Give back what waits for this one, unheard."""
        after, slot.then = slot.then, None
        while after is not None:
            self.waiting -= 1
            after.ended = True
            after.outcome = RELEASED
            self._finished(after)
            before, after = after, after.then
            before.then = None

    def _extend_async(self, slot: Slot, lease: timedelta) -> Awaitable[None]:
        return asyncio.wrap_future(self._extend(slot, lease))

    def _extend_sync(self, slot: Slot, lease: timedelta) -> Awaitable[None]:
        self._extend(slot, lease).result()
        return _HAPPENED


def _runs(task: asyncio.Task[Any] | None) -> bool:
    """Whether this is a step of the task, and not the end of a coroutine that nobody goes on with."""
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no loop runs here
        return False


class _Run:
    """A handler that is timed, and traced if it has a span."""

    __slots__ = ("_began", "_slots", "_span")

    def __init__(self, slots: list[Slot], span: RunSpan | None) -> None:
        self._slots = slots
        self._span = span
        self._began = time.monotonic()

    def end(self, error: BaseException | None) -> None:
        """It has returned, or raised this."""
        ran = time.monotonic() - self._began
        for slot in self._slots:
            slot.ran = ran
        if self._span is not None:
            self._span.end(error)


class _Happened:
    """What a sync handler gets from `message.extend`: an awaitable that need not be awaited."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


_HAPPENED = _Happened()
