"""Frozen values that cross floors: what goes in, what is claimed, what became of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar
from uuid import UUID

from postrow.durations import Duration, duration, flag, whole
from postrow.errors import BadArgumentError

if TYPE_CHECKING:
    import psycopg

T_co = TypeVar("T_co", covariant=True)

FAR = timedelta(days=36525)
"""A century: the longest that a handler may put a message off, so that a sum of it and a clock is a moment."""

YEAR = timedelta(days=366)
"""The longest lease, and the longest time of a rate."""

Outcome = Literal["accepted", "stale", "unknown", "busy"]
"""What became of a settlement: `accepted`; `stale`, another token holds the message or none; `unknown`, it is settled
or never was; `busy`, another transaction has locked it."""

OnDead = Literal["continue", "block"]
"""What a group does when one of its messages becomes a dead letter."""


class Enqueued(NamedTuple):
    """The answer to an enqueue: the message's id, and whether it was there before (then nothing was added)."""

    id: UUID
    deduplicated: bool


@dataclass(frozen=True, slots=True)
class Published:
    """The answer to a publish: the message in each queue that is subscribed, by the queue's name."""

    topic: str
    messages: Mapping[str, Enqueued]

    @property
    def delivered(self) -> int:
        """How many queues it went to; 0: nobody subscribes and it is only recorded, or it had too many hops."""
        return len(self.messages)


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt as it is recorded on the message: texts are cut to 100, 800 and 800 bytes."""

    attempt: int
    at: datetime
    worker: str | None
    type: str | None
    message: str | None
    traceback: str | None


class Claimed(NamedTuple):
    """One row of a claim: a message with its payload still JSON text, ids as bytes and moments in microseconds.

    `took`: microseconds that the claim took the server, the same in each row.

    Most handlers look at few of a message's fields, so they are made when they are asked for. A named tuple, made
    straight from a row: a dataclass costs a worker 3 microseconds a message.
    """

    lane: int
    frontier: int | None
    took: int
    claimed: int
    tenant: str
    priority: int
    key: bytes
    payload: str
    headers: str | None
    attempt: int
    max_attempts: int | None
    due: int
    enqueued: int
    subject: str | None
    target: str | None
    group_key: str | None
    topic: str | None
    parent: bytes | None
    hops: int
    expires: int | None
    failures: str | None
    place: bytes

    @property
    def id(self) -> UUID:
        """The message's id."""
        return UUID(bytes=self.key)

    @property
    def due_at(self) -> datetime:
        """When it was due."""
        return moment(self.due)

    @property
    def waited(self) -> float:
        """Seconds from its due time to the claim, by the database's clock."""
        return (self.claimed - self.due) / 1e6


POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def moment(microseconds: int) -> datetime:
    """A moment as Postgres counts it: microseconds since 2000."""
    return POSTGRES_EPOCH + timedelta(microseconds=microseconds)


@dataclass(frozen=True, slots=True)
class LaneEdge:
    """How far a claim has seen a lane: the `after` of its next claim; None starts at the beginning.

    `wait`: seconds until the lane may give something, where a rate held it back (0: at once); None: nobody knows.
    """

    tenant: str
    priority: int
    frontier: datetime | None
    taken: int
    wait: float | None = None


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane with free messages: whether its first is due, in how many seconds it is (0 or less: now), and when."""

    tenant: str
    priority: int
    ready: bool
    due_in: float
    due_at: datetime | None = None


Level = Literal["ok", "warning", "problem"]
"""How bad it is: `warning`, to be looked at some day; `problem`, something does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check of the doctor found, and what to do about it (None: nothing)."""

    name: str
    level: Level
    detail: str
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One line of `postrow status`; `oldest_ready` is the age in seconds, None when nothing is ready."""

    queue: str
    tenant: str
    ready: int
    scheduled: int
    claimed: int
    dead: int
    oldest_ready: float | None
    handler: str | None
    workers: int
    paused: bool


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """What is in one queue, of all tenants; `oldest_ready` is the age in seconds of what nobody has paused, or 0."""

    queue: str
    ready: int
    scheduled: int
    claimed: int
    dead: int
    oldest_ready: float
    workers: int


@dataclass(frozen=True, slots=True)
class SweepStep:
    """What one step of the sweep did, and whether there may be more."""

    step: str
    done: int
    more: bool


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a message waits after a failed attempt. Use `Exponential`, `Linear` or `Constant`.

    Durations are seconds or timedeltas. With `jitter` the delay is multiplied by a random number from 0.5 to 1, after
    the cap, so that messages that failed together do not meet again. The database computes it (postrow.retry_delay).
    """

    kind: ClassVar[Literal["exponential", "linear", "constant"]]
    base: Duration = 10.0
    factor: float = 2.0
    cap: Duration = 3600.0
    jitter: bool = True

    def __post_init__(self) -> None:
        if type(self) is RetryPolicy:
            raise BadArgumentError("a retry policy has a kind", hint="Use Exponential, Linear or Constant.")
        base, cap = duration("base", self.base), duration("cap", self.cap)
        flag("jitter", self.jitter)
        if base < timedelta(0) or cap < base:
            raise BadArgumentError(
                f"retry base {base} and cap {cap}", hint="Give a base of 0 or more and a cap of the base or more."
            )
        if isinstance(self.factor, bool) or not isinstance(self.factor, int | float) or not 1 <= self.factor <= 1000:
            raise BadArgumentError(f"retry factor is {self.factor!r}", hint="Give a number from 1 to 1000.")


@dataclass(frozen=True, slots=True)
class Exponential(RetryPolicy):
    """base * factor^(attempt-1), at most the cap: 10 s, 20 s, 40 s ... an hour by default."""

    kind = "exponential"


@dataclass(frozen=True, slots=True)
class Linear(RetryPolicy):
    """base * attempt, at most the cap."""

    kind = "linear"


@dataclass(frozen=True, slots=True)
class Constant(RetryPolicy):
    """base, each time."""

    kind = "constant"


@dataclass(frozen=True, slots=True)
class Rate:
    """So many claims each so many seconds (or a timedelta; from a millisecond to 366 days): `Rate(100, per=60)`.

    A token bucket: it holds `count` at most, and at first, and fills up evenly.
    """

    count: int
    per: Duration = 1.0

    def __post_init__(self) -> None:
        whole("count", self.count, least=1)
        if not timedelta(milliseconds=1) <= duration("per", self.per) <= YEAR:
            raise BadArgumentError(f"per is {self.per!r}", hint="Give a time from a millisecond to 366 days.")


class HandlerSignal(Exception):  # noqa: N818  # raised to say an outcome, not an error
    """What a handler may raise to say its outcome: `Retry`, `Snooze` or `Bury`."""


class Retry(HandlerSignal):
    """This attempt has failed: try again, after so many seconds (or a timedelta) instead of the policy's delay.

    Counts as an attempt and is recorded as a failure; with no attempts left the message becomes a dead letter.
    """

    def __init__(self, reason: str = "the handler asked for a retry", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.reason = _reason(reason)
        self.after = None if after is None else _ahead("after", after)


class Snooze(HandlerSignal):
    """Not now: the message comes back at `until`, and no attempt is spent.

    `until` is a datetime with a time zone and before the year 2100, or seconds (or a timedelta) from now.
    """

    def __init__(self, until: datetime | Duration) -> None:
        super().__init__("snoozed")
        self.until = _moment_ahead("until", until) if isinstance(until, datetime) else _ahead("until", until)


class Bury(HandlerSignal):
    """Never: the message becomes a dead letter now, with this reason, whatever attempts are left."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = _reason(reason)


def _reason(value: str) -> str:
    if not isinstance(value, str):  # any text: what Postgres cannot store is cleaned later, not lost
        raise BadArgumentError(f"reason is {value!r}", hint="Give a text, such as str(error).")
    return value


def _ahead(what: str, value: Duration) -> timedelta:
    ahead = duration(what, value)
    if not timedelta(0) <= ahead <= FAR:
        raise BadArgumentError(f"{what} is {ahead}", hint="Give from 0 s to a century.")
    return ahead


def _moment_ahead(what: str, value: datetime) -> datetime:
    if value.tzinfo is None:
        raise BadArgumentError(f"{what} has no time zone", hint="Use datetime.now(timezone.utc) + ...")
    if value.year >= 2100:
        raise BadArgumentError(f"{what} is {value.isoformat()}", hint="Give a moment of this century.")
    return value


@dataclass(frozen=True, slots=True)
class Message(Generic[T_co]):
    """A message in the hands of its handler.

    `attempt` is 1 at the first try. `max_attempts` is the message's own, None where the consumer's counts.
    `parent_id` is the message whose handler enqueued this one. Delivery is at least once: `id` is the key to make
    an effect happen once.
    """

    id: UUID
    tenant: str
    queue: str
    payload: T_co
    headers: Mapping[str, Any]
    attempt: int
    max_attempts: int | None
    enqueued_at: datetime
    due_at: datetime
    priority: int
    subject: str | None
    target: str | None
    group_key: str | None
    topic: str | None
    parent_id: UUID | None
    hops: int
    expires_at: datetime | None
    failures: tuple[Failure, ...]
    claim_token: UUID = field(repr=False)
    _extend: Callable[[timedelta], Awaitable[None]] = field(repr=False, compare=False)
    _transaction: Callable[[Message[Any]], MessageTransaction] = field(repr=False, compare=False)

    def extend(self, lease: Duration) -> Awaitable[None]:
        """Hold the claim for `lease` (seconds or a timedelta) from now.

        A worker renews leases by itself while a handler runs, up to its `timeout`; this is for a sync handler that
        needs longer than that, or one that will hold up the process. It does not move an async handler's timeout.
        Await it in an async handler; in a sync one it has happened when the call returns.

        Raises:
            LeaseLostError: the message is not ours any more.
            BadArgumentError: not longer than 0, or longer than a year.
        """
        held = duration("lease", lease)
        if not timedelta(0) < held <= YEAR:
            raise BadArgumentError(f"lease is {held}", hint="Give a lease longer than 0 and of a year at most.")
        return self._extend(held)

    def transaction(self) -> MessageTransaction:
        """A transaction whose commit acknowledges this message: its effects happen once.

        `async with message.transaction() as tx:` in an async handler, `with` in a sync one; `tx` is a connection of
        psycopg's, from the worker, for business writes, follow-up messages and whatever else shall be true together
        with the ack. At the end of the block the ack is written and all of it commits; an exception rolls all of it
        back and is the attempt's failure (but psycopg.Rollback, which ends the block without the ack). What the handler
        does after the block is no part of it, and not tried again.

        Raises:
            LeaseLostError: at the end of the block: the message is not ours any more; all is rolled back.
        """
        return self._transaction(self)


class MessageTransaction(Protocol):
    """What `message.transaction()` gives: a context manager of both kinds."""

    def __enter__(self) -> psycopg.Connection[Any]: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> bool | None: ...
    async def __aenter__(self) -> psycopg.AsyncConnection[Any]: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> bool | None: ...
