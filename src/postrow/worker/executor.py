"""Runs handlers: async ones as tasks of the event loop, sync ones in threads. Every run ends in one outcome."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import json
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from concurrent.futures import Future
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from postrow.errors import LeaseLostError
from postrow.errortext import clean_text, describe_error
from postrow.models import Bury, Claimed, Failure, Message, Retry, Snooze
from postrow.ops.lineage import Parent, handled
from postrow.queues import Consumer
from postrow.worker.metrics import Meter
from postrow.worker.slots import DONE, Outcome, Slot, Slots
from postrow.worker.threads import Threads
from postrow.worker.tracing import RunSpan, Tracing
from postrow.worker.transactions import Transactions

log = logging.getLogger("postrow.worker")

NO_HEADERS: Mapping[str, Any] = MappingProxyType({})
RELEASED = Outcome("release")

Extend = Callable[[Slot, timedelta], "Future[None]"]


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
        self._stopping = False
        self._context = contextvars.copy_context()  # of handlers: none sees what another has set
        self.running: dict[Consumer, int] = {}
        self.total = 0
        self.waiting = 0  # of groups: held, and to be handled after another

    def start(self, slot: Slot) -> None:
        """Run the handler of a claimed message, and then those of its group that follow.

        Never raises: whatever goes wrong is that message's failure.
        """
        self._slots.add(slot)
        after = slot.then
        while after is not None:
            self._slots.add(after)
            self.waiting += 1
            after = after.then
        self._start(slot)

    def stop(self) -> None:
        """Start nothing more: what waits for another of its group is given back."""
        self._stopping = True
        for slot in self._slots.all():
            if slot.started:
                self._give_back_after(slot)

    def _start(self, slot: Slot) -> None:
        consumer = slot.consumer
        slot.started = True
        self.running[consumer] = self.running.get(consumer, 0) + 1
        self.total += 1
        try:
            if consumer.is_async:
                message = build(slot, self._extend_async, self._transactions)
                self._set_deadline(slot)
                slot.task = self._loop.create_task(self._run(slot, message), context=self._context.copy())
            else:
                message = build(slot, self._extend_sync, self._transactions)
                self._threads.submit(functools.partial(self._run_in_thread, slot, message))
        except Exception as error:  # noqa: BLE001  # a payload that does not fit, a decoder's bug: one message's failure
            self._end(slot, failure(error))

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
        log.warning(
            "lost the lease of %s / %s %s: %s",
            slot.claimed.queue,
            slot.tenant,
            slot.id,
            "its handler is cancelled" if slot.task else "its handler cannot be stopped, its outcome will be refused",
            extra=self._slots.about(slot),
        )
        if slot.task is not None and not slot.task.done():
            slot.task.cancel()

    def release(self, slot: Slot) -> None:
        """Give a running message back: at the end of the grace. A sync handler runs on, and its outcome is dropped."""
        if slot.task is None:
            self.abandon(slot)
        elif slot.outcome is None:
            slot.outcome = RELEASED
            slot.task.cancel()

    def abandon(self, slot: Slot) -> None:
        """Give a message back whose handler runs on, since it cannot be stopped or does not let itself be cancelled."""
        if not slot.ended:
            self._end(slot, RELEASED)

    def close(self) -> None:
        """Take no more sync handlers; running threads are not waited for, idle ones end now."""
        self._threads.close()

    def _set_deadline(self, slot: Slot) -> None:
        """No lease is renewed past the timeout: not of this message, nor of those of its group that wait for it."""
        timeout = slot.consumer.timeout
        if timeout is None:
            return
        deadline = time.monotonic() + timeout.total_seconds()
        held: Slot | None = slot
        while held is not None:
            held.deadline = deadline
            held = held.then

    async def _run(self, slot: Slot, message: Message[Any]) -> None:
        timeout = slot.consumer.timeout
        handled.set(Parent(message.id, message.hops))  # of this task alone
        run = self._begin(slot, message)
        raised: BaseException | None = None
        try:
            if timeout is None:
                await slot.consumer.handler(message)
            else:
                async with asyncio.timeout(timeout.total_seconds()) as limit:
                    await slot.consumer.handler(message)
            outcome = DONE
        except asyncio.CancelledError as error:
            outcome, raised = RELEASED if slot.outcome is RELEASED else failure(error), error
        except TimeoutError as error:
            outcome = timed_out(timeout) if timeout is not None and limit.expired() else failure(error)
            raised = error
        except BaseException as error:  # noqa: BLE001  # SystemExit of one handler must not end the worker
            outcome, raised = failure(error), error
        if run is not None:
            run.end(raised)
        raised = None  # a frame that holds its own error waits for the garbage collector
        self._end(slot, outcome)

    def _run_in_thread(self, slot: Slot, message: Message[Any]) -> None:
        self._set_deadline(slot)
        handled.set(Parent(message.id, message.hops))  # of this thread, until its next message
        run = self._begin(slot, message)
        raised: BaseException | None = None
        try:
            outcome = returned(slot.consumer.handler(message))
        except BaseException as error:  # noqa: BLE001  # as above
            outcome, raised = failure(error), error
        if run is not None:
            run.end(raised)
        raised = None  # a frame that holds its own error waits for the garbage collector
        with contextlib.suppress(RuntimeError):  # the loop is closed: the message was given back long ago
            self._loop.call_soon_threadsafe(self._end, slot, outcome)

    def _begin(self, slot: Slot, message: Message[Any]) -> _Run | None:
        """What watches the handler that begins now, where somebody wants to know."""
        if self._meter is None and self._tracing is None:
            return None
        return _Run(slot, None if self._tracing is None else self._tracing.begin(slot, message))

    def _end(self, slot: Slot, outcome: Outcome) -> None:
        if slot.ended:
            return  # given back while its handler ran on: all was done then
        slot.ended = True
        slot.outcome = outcome
        self.running[slot.consumer] -= 1
        self.total -= 1
        if outcome.verdict in {"fail", "bury"} and not slot.lost:
            self._say_failed(slot, outcome)
        after = slot.then
        if after is not None and self._goes_on(slot, after):
            slot.then = None
            self.waiting -= 1
            self._finished(slot)
            if self._meter is not None:
                self._meter.followed(after)
            self._start(after)
            return
        self._give_back_after(slot)
        self._finished(slot)

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
            slot.claimed.queue,
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


class _Run:
    """A handler that is timed, and traced if it has a span."""

    __slots__ = ("_began", "_slot", "_span")

    def __init__(self, slot: Slot, span: RunSpan | None) -> None:
        self._slot = slot
        self._span = span
        self._began = time.monotonic()

    def end(self, error: BaseException | None) -> None:
        """It has returned, or raised this."""
        self._slot.ran = time.monotonic() - self._began
        if self._span is not None:
            self._span.end(error)


class _Happened:
    """What a sync handler gets from `message.extend`: an awaitable that need not be awaited."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


_HAPPENED = _Happened()


def build(slot: Slot, extend: Callable[[Slot, timedelta], Awaitable[None]], transactions: Transactions) -> Message[Any]:
    """The message as its handler sees it.

    Raises:
        PayloadTypeError: the payload does not fit the queue's type.
    """
    claimed: Claimed = slot.claimed
    return Message(
        id=claimed.id,
        tenant=claimed.tenant,
        queue=claimed.queue,
        payload=slot.consumer.queue.codec.decode(claimed.payload),
        headers=NO_HEADERS if claimed.headers is None else MappingProxyType(json.loads(claimed.headers)),
        attempt=claimed.attempt,
        max_attempts=claimed.max_attempts,
        enqueued_at=claimed.enqueued_at,
        due_at=claimed.due_at,
        priority=claimed.priority,
        subject=claimed.subject,
        target=claimed.target,
        group_key=claimed.group_key,
        topic=claimed.topic,
        parent_id=claimed.parent_id,
        hops=claimed.hops,
        expires_at=claimed.expires_at,
        failures=() if claimed.failures is None else _failures(claimed.failures),
        claim_token=slot.token,
        _extend=lambda lease: extend(slot, lease),
        _transaction=lambda message: transactions.begin(slot, message),
    )


def _failures(text: str) -> tuple[Failure, ...]:
    return tuple(
        Failure(
            attempt=item["attempt"],
            at=datetime.fromisoformat(item["at"]),
            worker=item.get("worker"),
            type=item.get("type"),
            message=item.get("message"),
            traceback=item.get("traceback"),
        )
        for item in json.loads(text)
    )


def returned(value: object) -> Outcome:
    """The outcome of a sync handler that returned. If it gave a coroutine, as behind a decorator, nothing has run."""
    if not inspect.iscoroutine(value):
        return DONE
    value.close()
    return Outcome("fail", "the handler is a plain def that returned a coroutine: make it an async def", "TypeError")


def failure(error: BaseException) -> Outcome:
    """The outcome of a handler that raised. Never raises, whatever the exception's own code does."""
    try:
        if isinstance(error, Bury):
            return Outcome("bury", clean_text(str(error.reason), limit=800))
        if isinstance(error, Snooze):
            return Outcome("release", until=error.until)
        if isinstance(error, Retry):
            return Outcome("fail", clean_text(str(error.reason), limit=800), "Retry", retry_after=error.after)
    except BaseException as broken:  # noqa: BLE001  # a reason whose str() raises, a subclass without the attribute
        error = broken
    text = describe_error(error)
    return Outcome("fail", text.message, text.type, text.traceback)


def timed_out(timeout: timedelta) -> Outcome:
    """The outcome of a handler that took longer than it may."""
    return Outcome("fail", f"the handler took longer than its timeout of {timeout.total_seconds():g} s", "TimeoutError")


def lease_lost(slot: Slot) -> LeaseLostError:
    """What `message.extend` raises when another has the message."""
    return LeaseLostError(f"message {slot.id} of queue {slot.claimed.queue} is held by another worker now")
