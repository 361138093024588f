"""An application: its database, its typed queues, and the handlers that consume them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from inspect import unwrap
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack, get_args, overload
from uuid import UUID
from weakref import WeakSet

from postrow import embedded
from postrow.dsn import read
from postrow.durations import Duration, text, whole
from postrow.durations import name as a_name
from postrow.errors import BadArgumentError, ConsumerConflictError
from postrow.models import Enqueued, Message
from postrow.ops import Op, produce
from postrow.ops.produce import Options
from postrow.ops.schedules import Declared
from postrow.payload import encode
from postrow.queues import Consumer, Queue
from postrow.schedules import Missed, times

if TYPE_CHECKING:
    from postrow.drivers.sender import Sender

T = TypeVar("T")
R = TypeVar("R")

DSN_VARIABLE = "POSTROW_DSN"


class Subscribed(NamedTuple):
    """What `App.subscribe` was told: topics that fit the pattern go to the queue, of one tenant or of all ("*")."""

    pattern: str
    queue: str
    tenant: str


class App:
    """The queues and handlers of an application, and its database.

    Args:
        dsn: a Postgres DSN or URL; `embedded:` for a private server with its data in the user's data directory,
            `embedded:/folder` for one with its data there. Default: the environment's POSTROW_DSN. `?pgbouncer=true` at
            the end of a URL says that a pooler in transaction mode is in between.
    """

    def __init__(self, dsn: str | None = None) -> None:
        self._given = None if dsn is None else text("dsn", dsn)
        self._resolved: str | None = None
        self._pooled = False
        self._server: embedded.Server | None = None
        self._lock = threading.Lock()
        self._sender: Sender | None = None
        self.queues: dict[str, Queue[Any]] = {}
        self.consumers: dict[tuple[str, str], Consumer] = {}
        self.subscriptions: list[Subscribed] = []
        self.schedules: dict[tuple[str, str], Declared] = {}
        _apps.add(self)

    @property
    def dsn(self) -> str:
        """The DSN to connect with, as libpq takes it; the first look starts the embedded server if it names one.

        Raises:
            BadArgumentError: none was given, nor is POSTROW_DSN set; or its `pgbouncer` is neither true nor false.
            EmbeddedServerError: the private server could not be started.
        """
        with self._lock:
            if self._resolved is None:
                given = self._given if self._given is not None else os.environ.get(DSN_VARIABLE, "")
                if not given:
                    raise BadArgumentError(
                        "no database is given",
                        hint=f"Set {DSN_VARIABLE}, or write App('postgresql://...') or App('embedded:').",
                    )
                plain, self._pooled = read(given)
                self._resolved, self._server = embedded.resolve(plain)
            return self._resolved

    @property
    def pooled(self) -> bool:
        """Whether the DSN says `pgbouncer=true`. A worker then prepares no statements, and finds messages by looking.

        Raises:
            BadArgumentError: as for `dsn`.
            EmbeddedServerError: as for `dsn`.
        """
        return bool(self.dsn) and self._pooled

    @overload
    def queue(self, name: str) -> Queue[Any]: ...
    @overload
    def queue(self, name: str, type: type[T]) -> Queue[T]: ...
    def queue(self, name: str, type: Any = None) -> Queue[Any]:  # noqa: A002  # the word that reads right
        """A queue by name, with the type of its payloads (a pydantic model, dataclass, TypedDict; none: plain JSON).

        Raises:
            BadArgumentError: the app has this queue with another type.
        """
        present = self.queues.get(a_name("queue", name))
        if present is None:
            present = self.queues[name] = Queue(self, name, type)
        elif type is not None and present.type != type:
            raise BadArgumentError(
                f"queue {name} has the type {present.type!r} in this app, not {type!r}",
                hint="A queue has one type: declare it once, and use that.",
            )
        return present

    def add(self, consumer: Consumer) -> None:
        """Take a handler in; `Queue.consumer` is the way to write it."""
        key = (consumer.queue.name, consumer.tenant)
        present = self.consumers.get(key)
        if present is not None:
            raise ConsumerConflictError(
                f"queue {key[0]} is consumed by handler {present.name} in this app already, not {consumer.name}",
                hint="One consumer for a queue; replicas are more workers of the same handler.",
            )
        self.consumers[key] = consumer

    def subscribe(
        self, pattern: str, *, queue: Queue[Any] | str, tenant: str = "*"
    ) -> Callable[[Callable[[Message[Any]], R]], Callable[[Message[Any]], R]]:
        """Route what is published to a topic that fits the pattern to a queue; workers register it when they start.

        As a decorator it makes the function the queue's handler, with the defaults of `Queue.consumer`; stacked on top
        of that one it takes the handler as it is. Called alone it only routes.

        Args:
            pattern: a topic, such as "order.paid"; a segment may be `*`, one segment, or `#`, any number of them.
            queue: where to, by name or as a `Queue`.
            tenant: the one tenant whose messages it routes, or all.
        """
        target = queue if isinstance(queue, Queue) else self.queue(queue)
        self.subscriptions.append(Subscribed(text("pattern", pattern), target.name, text("tenant", tenant)))

        def register(function: Callable[[Message[Any]], R]) -> Callable[[Message[Any]], R]:
            def taken(handler: Callable[..., Any]) -> bool:
                # a subclass may have put something around it; what was put around it afterwards would not run
                return unwrap(handler, stop=lambda inner: inner is function) is function

            own = any(taken(c.handler) and c.queue is target for c in self.consumers.values())
            return function if own else target.consumer()(function)

        return register

    def schedule(
        self,
        name: str,
        *,
        queue: Queue[T] | str,
        payload: T | None = None,
        cron: str | None = None,
        every: Duration | None = None,
        at: datetime | None = None,
        timezone: str = "UTC",
        missed: Missed = "once",
        tenant: str = "default",
        priority: int = 0,
        max_attempts: int | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> None:
        """Enqueue a message at times; workers register the schedule when they start, and any of them enqueues it.

        Each time is one message, however many workers there are. Its headers say `schedule` and `scheduled_for`.

        Args:
            name: of the schedule, one of its tenant. Declared again with other times or another payload, it is changed.
            queue: where to, by name or as a `Queue`.
            payload: of each message.
            cron: five fields (minute, hour, day, month, day of week), or six with seconds first; in `timezone`.
            every: seconds or timedelta, from a second on; the first one is so long after the worker's start.
            at: once, a datetime with a zone.
            timezone: the name of the zone that `cron` is meant in, such as "Europe/Berlin".
            missed: what becomes of times at which no worker ran: "skip", "once" (the last) or "all" (1,000 at most).
            tenant: the owner of the messages.
            priority: of each message, as for `enqueue`.
            max_attempts: of each message; the consumer's if None.
            headers: of each message, beside those two.

        Raises:
            BadArgumentError: not one of cron, every and at, or one that cannot be read; or the app has that schedule.
            PayloadError: the payload cannot be carried.
        """
        target = queue if isinstance(queue, Queue) else self.queue(queue)
        key = (a_name("tenant", tenant), a_name("name", name))
        if key in self.schedules:
            raise BadArgumentError(f"the app has the schedule {name} already", hint="Give each its own name.")
        if missed not in get_args(Missed):
            raise BadArgumentError(f"missed is {missed!r}", hint="Give skip, once or all.")
        self.schedules[key] = Declared(
            name=key[1],
            times=times(cron=cron, every=every, at=at, timezone=timezone),
            queue=target.name,
            payload=target.codec.encode(payload),  # type: ignore[arg-type]  # None, where the queue's type has it
            missed=missed,
            tenant=key[0],
            priority=whole("priority", priority, least=-32768, most=32767),
            headers=None if headers is None else encode(dict(headers), what="headers"),
            max_attempts=None if max_attempts is None else whole("max_attempts", max_attempts, least=1),
        )

    def send(
        self,
        queue: Queue[T] | str,
        payload: T,
        *,
        id: UUID | None = None,  # noqa: A002  # the word of the SQL function
        **options: Unpack[Options],
    ) -> Enqueued:
        """Put a message into a queue in a transaction of its own, for who really has none; options as for `enqueue`.

        Uses one connection of the app, opened at the first call and again when it has died; safe from many threads,
        one at a time, and in processes made by `fork`. The message has an id from the start, so that it is enqueued
        once, however often it is sent. That id is remembered for a week: a row that `enqueue` without an id does
        not need.

        Raises:
            DatabaseUnreachableError: no connection could be made; or it broke, and whether the message is in its queue
                is not known: the error says how to send it again.
        """
        chosen, op = self._sendable(queue, payload, id, options)
        return _sent(self._sending().send(op, chosen), chosen, asked=id)

    async def send_async(
        self,
        queue: Queue[T] | str,
        payload: T,
        *,
        id: UUID | None = None,  # noqa: A002  # the word of the SQL function
        **options: Unpack[Options],
    ) -> Enqueued:
        """`send`, for an event loop: each has a connection of its own, used by one task at a time."""
        chosen, op = self._sendable(queue, payload, id, options)
        return _sent(await self._sending().send_async(op, chosen), chosen, asked=id)

    def _sendable(
        self, queue: Queue[T] | str, payload: T, asked: UUID | None, options: Options
    ) -> tuple[UUID, Op[Enqueued]]:
        # a name without a declaration is used, and not declared: the declaration with a type may come later
        target = queue if isinstance(queue, Queue) else self.queues.get(queue) or Queue(self, queue, None)
        chosen = produce.new_id() if asked is None else asked
        return chosen, produce.enqueue(target.name, target.codec.encode(payload), options, id_=chosen)

    def _sending(self) -> Sender:
        from postrow.drivers.sender import Sender  # noqa: PLC0415  # `import postrow` loads no database library

        dsn = self.dsn
        with self._lock:
            if self._sender is None:
                self._sender = Sender(dsn)
            return self._sender

    def _forked(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held it
        if self._sender is not None:
            self._sender.forget()

    def close(self) -> None:
        """Close the app's connections, and stop the embedded server if this app started it; a later use begins anew."""
        with self._lock:
            if self._sender is not None:
                self._sender.close()
            self._sender = None
            if self._server is not None:
                self._server.stop()
            self._server = self._resolved = None


def _sent(sent: Enqueued, chosen: UUID, *, asked: UUID | None) -> Enqueued:
    """A repeat of our own is no duplicate in the eyes of the caller, who gave no id; a message with another id is."""
    return sent if asked is not None else Enqueued(sent.id, deduplicated=sent.id != chosen)


_apps: WeakSet[App] = WeakSet()


def _after_fork() -> None:
    for app in _apps:
        app._forked()  # noqa: SLF001  # this module's own class


os.register_at_fork(after_in_child=_after_fork)
