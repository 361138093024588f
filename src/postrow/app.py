"""An application: its database, its typed queues, and the handlers that consume them."""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, cast, overload
from uuid import UUID

from postrow import drivers, embedded
from postrow.durations import Duration, duration, optional_duration, whole
from postrow.errors import BadArgumentError, ConsumerConflictError
from postrow.models import Enqueued, Exponential, Message, RetryPolicy
from postrow.ops import Op, produce
from postrow.ops.produce import Options
from postrow.payload import Codec

if TYPE_CHECKING:
    import psycopg

    from postrow.api import AsyncHandle, SyncHandle

T = TypeVar("T")
H = TypeVar("H", bound="Callable[[Message[Any]], Any]")

DSN_VARIABLE = "POSTROW_DSN"


@dataclass(frozen=True, eq=False)
class Consumer:
    """A handler and how it is run; `tenant` "*" is all. `lease` is renewed while the handler runs."""

    queue: Queue[Any]
    handler: Callable[[Message[Any]], Any]
    name: str
    tenant: str
    concurrency: int
    lease: timedelta
    timeout: timedelta | None
    max_attempts: int
    retry: RetryPolicy
    keep_history: bool

    @functools.cached_property
    def is_async(self) -> bool:
        """An async handler runs as a task of the event loop, a sync one in a thread."""
        return inspect.iscoroutinefunction(self.handler)


class Queue(Generic[T]):
    """A named queue of an app; with a type, payloads are checked against it on the way in and built on the way out."""

    def __init__(self, app: App, name: str, type_: Any) -> None:
        self.app = app
        self.name = name
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
        self, tx: SyncHandle, payloads: Iterable[T], /, **options: Unpack[Options]
    ) -> list[Enqueued]: ...
    @overload
    def enqueue_many(
        self, tx: AsyncHandle, payloads: Iterable[T], /, **options: Unpack[Options]
    ) -> Awaitable[list[Enqueued]]: ...
    def enqueue_many(
        self, tx: Any, payloads: Iterable[T], /, **options: Unpack[Options]
    ) -> list[Enqueued] | Awaitable[list[Enqueued]]:
        """Put many messages into this queue, as part of the caller's transaction; as `postrow.enqueue_many`."""
        texts = (self.codec.encode(payload) for payload in payloads)
        return drivers.run_all(tx, produce.enqueue_many(self.name, texts, options))

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
    ) -> Callable[[H], H]:
        """Make the decorated function this queue's handler; it takes a `postrow.Message` and may be async or not.

        Args:
            name: what the handler is called in the database; the function's name if not given. Give it, and renaming
                the function stops nothing: another name for a queue that has a handler is refused.
            tenant: the one tenant it is for, or all.
            concurrency: how many of this queue's messages one process handles at once.
            lease: seconds or timedelta that a claim holds; a worker renews it at a third of that while the
                handler runs.
            timeout: seconds or timedelta after which an async handler is cancelled and the attempt fails; a sync
                one cannot be stopped, so its lease is no longer renewed. None: as long as it takes.
            max_attempts: attempts before the message becomes a dead letter, unless the message has its own.
            retry: the delays between attempts; `Exponential()` if not given: 10 s, 20 s, ... an hour at most.
            keep_history: whether finished messages are kept, for the schema's history_days.

        Raises:
            BadArgumentError: a value outside its range, or a function that takes no message.
            ConsumerConflictError: the app has a handler for this queue and tenant.
        """

        def register(function: H) -> H:
            self.app.add(
                Consumer(
                    queue=self,
                    handler=function,
                    name=name if name is not None else getattr(function, "__name__", "handler"),
                    tenant=tenant,
                    concurrency=cast("int", whole("concurrency", concurrency, least=1, most=100_000)),
                    lease=_lease(lease),
                    timeout=_timeout(timeout),
                    max_attempts=cast("int", whole("max_attempts", max_attempts, least=1)),
                    retry=retry if retry is not None else Exponential(),
                    keep_history=keep_history,
                )
            )
            return function

        return register


def _lease(value: Duration) -> timedelta:
    lease = duration("lease", value)
    if not timedelta(milliseconds=300) <= lease <= timedelta(days=366):
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


class App:
    """The queues and handlers of an application, and its database.

    Args:
        dsn: a Postgres DSN or URL; `embedded:` for a private server with its data in the user's data directory,
            `embedded:/folder` for one with its data there. Default: the environment's POSTROW_DSN.
    """

    def __init__(self, dsn: str | None = None) -> None:
        self._given = dsn
        self._resolved: str | None = None
        self._server: embedded.Server | None = None
        self._lock = threading.Lock()
        self._sender: tuple[int, psycopg.Connection[Any]] | None = None
        self.queues: dict[str, Queue[Any]] = {}
        self.consumers: dict[tuple[str, str], Consumer] = {}

    @property
    def dsn(self) -> str:
        """The DSN to connect with; the first look starts the embedded server if it names one.

        Raises:
            BadArgumentError: none was given, nor is POSTROW_DSN set.
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
                self._resolved, self._server = embedded.resolve(given)
            return self._resolved

    @overload
    def queue(self, name: str) -> Queue[Any]: ...
    @overload
    def queue(self, name: str, type: type[T]) -> Queue[T]: ...
    def queue(self, name: str, type: Any = None) -> Queue[Any]:  # noqa: A002  # the word that reads right
        """A queue by name, with the type of its payloads (a pydantic model, dataclass, TypedDict; none: plain JSON).

        Raises:
            BadArgumentError: the app has this queue with another type.
        """
        present = self.queues.get(name)
        if present is None:
            present = self.queues[name] = Queue(self, name, type)
        elif type is not None and present.type is not type:
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

    def send(
        self,
        queue: Queue[T] | str,
        payload: T,
        *,
        id: UUID | None = None,  # noqa: A002  # the word of the SQL function
        **options: Unpack[Options],
    ) -> Enqueued:
        """Put a message into a queue in a transaction of its own, for who really has none; options as for `enqueue`.

        Uses one connection of the app, opened at the first call; safe from many threads, one at a time.
        """
        target = self.queue(queue) if isinstance(queue, str) else queue
        op = produce.enqueue(target.name, target.codec.encode(payload), options, id_=id)
        dsn = self.dsn
        with self._lock:
            return self._sending(dsn, op)

    def _sending(self, dsn: str, op: Op[Enqueued]) -> Enqueued:
        import psycopg  # noqa: PLC0415  # `import postrow` loads no database library

        from postrow.drivers import psycopg3  # noqa: PLC0415

        # a connection cannot be shared with a parent process: a child opens its own and leaves the parent's alone
        if self._sender is None or self._sender[0] != os.getpid() or self._sender[1].closed:
            self._sender = (os.getpid(), psycopg.connect(dsn, autocommit=True, application_name="postrow send"))
        return psycopg3.send(self._sender[1], op)

    def close(self) -> None:
        """Close the app's connection, and stop the embedded server if this app started it."""
        with self._lock:
            if self._sender is not None and self._sender[0] == os.getpid():
                self._sender[1].close()
            self._sender = None
            if self._server is not None:
                self._server.stop()
            self._server = self._resolved = None
