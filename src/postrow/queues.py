"""A queue of an app, with the type of its payloads, and the handlers that consume it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, overload
from uuid import UUID

from postrow import drivers
from postrow.durations import Duration, duration, flag, optional_duration, text, whole
from postrow.durations import name as a_name
from postrow.errors import BadArgumentError
from postrow.models import YEAR, Enqueued, Exponential, Message, OnDead, Rate, RetryPolicy
from postrow.ops import produce
from postrow.ops.produce import ManyOptions, Options
from postrow.payload import Codec

if TYPE_CHECKING:
    from postrow.app import App
    from postrow.drivers.handles import AsyncHandle, SyncHandle

T = TypeVar("T")
R = TypeVar("R")

MOST_OF_A_BATCH = 500  # messages: a worker claims no more at once

# of a worker, where nothing else is said to it or to the commands that start one: here, since these load no database
POLL_INTERVAL = 1.0  # seconds between looks when nothing calls
GRACE = 30.0  # seconds that running handlers have to finish
OPEN_AT_ONCE = 10  # connections that message.transaction() may use, for async and sync handlers each


@dataclass(frozen=True, eq=False)
class Consumer:
    """A handler and how it is run; `tenant` "*" is all. `lease` is renewed while the handler runs.

    `batch`: it takes a list of so many messages at most; None: it takes one message.
    """

    queue: Queue[Any]
    handler: Callable[[Any], Any]
    name: str
    tenant: str
    concurrency: int
    lease: timedelta
    timeout: timedelta | None
    max_attempts: int
    retry: RetryPolicy
    keep_history: bool
    on_dead: OnDead = "continue"
    max_in_flight: int | None = None
    rate: Rate | None = None
    tenant_max_in_flight: int | None = None
    tenant_rate: Rate | None = None
    batch: int | None = None

    @functools.cached_property
    def limited(self) -> bool:
        """Whether its messages in flight are limited, of one tenant or of all."""
        return self.max_in_flight is not None or self.tenant_max_in_flight is not None

    @functools.cached_property
    def is_async(self) -> bool:
        """An async handler runs as a task of the event loop, a sync one in a thread."""
        call = type(self.handler).__call__  # of an object whose class has an async __call__
        return inspect.iscoroutinefunction(self.handler) or inspect.iscoroutinefunction(call)


class ConsumerOptions(TypedDict, total=False):
    """The options of `Queue.consumer` that are the same for handlers of one message and of many."""

    name: str | None
    tenant: str
    concurrency: int
    lease: Duration
    timeout: Duration | None
    max_attempts: int
    retry: RetryPolicy | None
    keep_history: bool
    on_dead: OnDead
    max_in_flight: int | None
    rate: Rate | None
    tenant_max_in_flight: int | None
    tenant_rate: Rate | None


class Queue(Generic[T]):
    """A named queue of an app; with a type, payloads are checked against it on the way in and built on the way out."""

    def __init__(self, app: App, name: str, type_: Any) -> None:
        self.app = app
        self.name = a_name("queue", name)
        self.type = type_
        self.codec: Codec[T] = Codec(type_)

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, {getattr(self.type, '__name__', self.type)})"

    @overload
    def enqueue(
        self, tx: SyncHandle, payload: T, *, id: UUID | None = None, **options: Unpack[Options]
    ) -> Enqueued: ...
    @overload
    def enqueue(
        self, tx: AsyncHandle, payload: T, *, id: UUID | None = None, **options: Unpack[Options]
    ) -> Awaitable[Enqueued]: ...
    def enqueue(
        self,
        tx: Any,
        payload: T,
        *,
        id: UUID | None = None,  # noqa: A002  # the word of the SQL function
        **options: Unpack[Options],
    ) -> Enqueued | Awaitable[Enqueued]:
        """Put a message into this queue, as part of the caller's transaction; as `postrow.enqueue`."""
        return drivers.run(tx, produce.enqueue(self.name, self.codec.encode(payload), options, id_=id))

    @overload
    def enqueue_many(
        self, tx: SyncHandle, payloads: Iterable[T], /, **options: Unpack[ManyOptions]
    ) -> list[Enqueued]: ...
    @overload
    def enqueue_many(
        self, tx: AsyncHandle, payloads: Iterable[T], /, **options: Unpack[ManyOptions]
    ) -> Awaitable[list[Enqueued]]: ...
    def enqueue_many(
        self, tx: Any, payloads: Iterable[T], /, **options: Unpack[ManyOptions]
    ) -> list[Enqueued] | Awaitable[list[Enqueued]]:
        """Put many messages into this queue, as part of the caller's transaction; as `postrow.enqueue_many`."""
        count = len(payloads) if isinstance(payloads, list | tuple) else None
        ops = produce.enqueue_many(self.name, produce.batches(payloads, self.codec, options), options, count=count)
        return drivers.run_all(tx, ops, ahead=count is not None)

    @overload
    def consumer(
        self, *, batch: None = None, **options: Unpack[ConsumerOptions]
    ) -> Callable[[Callable[[Message[T]], R]], Callable[[Message[T]], R]]: ...
    @overload
    def consumer(
        self, *, batch: int, **options: Unpack[ConsumerOptions]
    ) -> Callable[[Callable[[list[Message[T]]], R]], Callable[[list[Message[T]]], R]]: ...
    def consumer(
        self,
        *,
        name: str | None = None,
        tenant: str = "*",
        concurrency: int = 10,
        lease: Duration = 60,
        timeout: Duration | None = None,
        max_attempts: int = 5,
        retry: RetryPolicy | None = None,
        keep_history: bool = True,
        on_dead: OnDead = "continue",
        max_in_flight: int | None = None,
        rate: Rate | None = None,
        tenant_max_in_flight: int | None = None,
        tenant_rate: Rate | None = None,
        batch: int | None = None,
    ) -> Callable[[Callable[[Any], R]], Callable[[Any], R]]:
        """Make the decorated function this queue's handler; it takes a `postrow.Message` and may be async or not.

        Args:
            name: what the handler is called in the database; the function's name if not given. Give it, and renaming
                the function stops nothing: another name for a queue that has a handler is refused.
            tenant: the one tenant it is for, or all.
            concurrency: how many of this queue's messages one process handles at once; with `batch`, how many batches.
            lease: seconds or timedelta that a claim holds; a worker renews it at a third of that while the
                handler runs.
            timeout: seconds or timedelta after which an async handler is cancelled and the attempt fails; a sync
                one cannot be stopped, so its lease is no longer renewed. None: as long as it takes.
            max_attempts: attempts before the message becomes a dead letter, unless the message has its own.
            retry: the delays between attempts; `Exponential()` if not given: 10 s, 20 s, ... an hour at most.
            keep_history: whether finished messages are kept, for the schema's history_days.
            on_dead: what a group does when one of its messages becomes a dead letter: "continue" with the next, or
                "block" until somebody has redriven or resolved it.
            max_in_flight: how many of this queue's messages may be claimed at once, by all workers together. Exact: a
                worker that dies gives its places back when its leases are swept.
            rate: how many may be claimed each period: `Rate(100, per=60)`. Up to so many at once after a pause, so in
                any stretch of time no more than that and what the rate allows in it. A retry counts again.
            tenant_max_in_flight: as max_in_flight, for each tenant.
            tenant_rate: as rate, for each tenant.
            batch: the handler takes a list of messages, so many at most (1 to 500) and as many as are there: a batch is
                not waited for. It returns None, or a list with one result for each message: an exception in it is
                that message's failure. What it raises is the failure of all of them. None: it takes one message.

        Raises:
            BadArgumentError: a value outside its range, or a function that takes no message.
            ConsumerConflictError: the app has a handler for this queue and tenant.
        """

        def register(function: Callable[[Any], R]) -> Callable[[Any], R]:
            self.app.add(
                Consumer(
                    queue=self,
                    handler=_handler(function),
                    name=text("name", name if name is not None else getattr(function, "__name__", "handler")),
                    tenant=text("tenant", tenant),
                    concurrency=whole("concurrency", concurrency, least=1, most=100_000),
                    lease=_lease(lease),
                    timeout=_timeout(timeout),
                    max_attempts=whole("max_attempts", max_attempts, least=1),
                    retry=_retry(retry),
                    keep_history=flag("keep_history", keep_history),
                    on_dead=_on_dead(on_dead),
                    max_in_flight=_at_least_one("max_in_flight", max_in_flight),
                    rate=_rate("rate", rate),
                    tenant_max_in_flight=_at_least_one("tenant_max_in_flight", tenant_max_in_flight),
                    tenant_rate=_rate("tenant_rate", tenant_rate),
                    batch=None if batch is None else whole("batch", batch, least=1, most=MOST_OF_A_BATCH),
                )
            )
            return function

        return register

    def on_dead(
        self, *, name: str | None = None, tenant: str = "*", concurrency: int = 10, timeout: Duration | None = None
    ) -> Callable[[Callable[[Message[T]], R]], Callable[[Message[T]], R]]:
        """Make the decorated function the handler of this queue's dead letters: it runs once for each.

        Its message has the dead one's payload, `subject` and `failures`; `parent_id` is the dead letter's id, and the
        headers say `dead_letter` and `reason`. It comes from the queue `<queue>:dead`, in the same transaction as the
        death. If it fails that is recorded with the dead letter's failures, and not tried again.

        Args:
            name: what the handler is called in the database; the function's name if not given.
            tenant: the one tenant it is for, or all.
            concurrency: how many one process handles at once.
            timeout: seconds or timedelta after which an async one is cancelled and has failed.
        """
        queue: Queue[T] = self.app.queue(f"{self.name}:dead", self.type)
        return queue.consumer(name=name, tenant=tenant, concurrency=concurrency, timeout=timeout, max_attempts=1)


def _handler(function: Callable[[Any], R]) -> Callable[[Any], R]:
    """The function, if it can be called with one argument and its body then runs."""
    named = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadArgumentError(f"handler {named} is a generator: calling it runs nothing", hint="Take the yield out.")
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError) as error:
        raise BadArgumentError(
            f"handler {named} cannot be called with a message: {error}",
            hint="Write def or async def handler(message: postrow.Message[...]).",
        ) from None
    return function


def _on_dead(value: object) -> OnDead:
    if value not in ("continue", "block"):
        raise BadArgumentError(f"on_dead is {value!r}", hint='Give "continue" or "block".')
    return value


def _at_least_one(what: str, value: int | None) -> int | None:
    return None if value is None else whole(what, value, least=1)


def _rate(what: str, value: Rate | None) -> Rate | None:
    if value is not None and not isinstance(value, Rate):
        raise BadArgumentError(f"{what} is {value!r}", hint="Give postrow.Rate(100, per=60): a hundred a minute.")
    return value


def _retry(value: RetryPolicy | None) -> RetryPolicy:
    if value is None:
        return Exponential()
    if not isinstance(value, RetryPolicy):
        raise BadArgumentError(f"retry is {value!r}", hint="Give postrow.Exponential(), Linear() or Constant().")
    return value


def _lease(value: Duration) -> timedelta:
    lease = duration("lease", value)
    if not timedelta(milliseconds=300) <= lease <= YEAR:
        raise BadArgumentError(
            f"lease is {lease.total_seconds()} s",
            hint="Give from 0.3 s, so that it can be renewed at a third of it, to a year.",
        )
    return lease


def _timeout(value: Duration | None) -> timedelta | None:
    timeout = optional_duration("timeout", value)
    if timeout is not None and timeout <= timedelta(0):
        raise BadArgumentError(f"timeout is {timeout}", hint="Give a time longer than 0, or None.")
    return timeout
