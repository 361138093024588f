"""The functions that take the caller's transaction first. No logic: an op, and a driver to run it.

Each gives its result on a sync handle and an awaitable of it on an async one. They raise what `postrow.errors` lists:
`NotInTransactionError` on a handle in autocommit mode, `AbortedTransactionError`, `UnsupportedHandleError`,
`BadNameError`, `BadArgumentError`, `PayloadError`, `SchemaMismatchError`, `PrivilegeError`; nothing else is translated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack, overload
from uuid import UUID

from postrow import drivers
from postrow import payload as payloads
from postrow.durations import Duration
from postrow.models import Enqueued, Message, Published
from postrow.ops import claims, look, produce, topics
from postrow.ops.produce import ManyOptions, Options, PublishOptions

if TYPE_CHECKING:
    from postrow.drivers.handles import AsyncHandle, SyncHandle


MONTH = timedelta(days=30)
PLAIN: payloads.Codec[object] = payloads.Codec(None)


@overload
def enqueue(
    tx: SyncHandle, queue: str, payload: object, *, id: UUID | None = None, **options: Unpack[Options]
) -> Enqueued: ...
@overload
def enqueue(
    tx: AsyncHandle, queue: str, payload: object, *, id: UUID | None = None, **options: Unpack[Options]
) -> Awaitable[Enqueued]: ...
def enqueue(
    tx: Any,
    queue: str,
    payload: object,
    *,
    id: UUID | None = None,  # noqa: A002  # the word of the SQL function
    **options: Unpack[Options],
) -> Enqueued | Awaitable[Enqueued]:
    """Put a message into a queue, as part of the caller's transaction: delivered if that commits, else it never was.

    Args:
        tx: the caller's transaction: a connection or session of psycopg 3, asyncpg, SQLAlchemy 2 or Django.
        queue: 1 to 200 of A-Z a-z 0-9 . _ : - ; it exists once its first message does.
        payload: any value of `postrow.payload`'s table: JSON values, dataclasses, pydantic models, datetimes ...
        id: the caller's id. Enqueued again for the same queue it is the same message, also after that was settled,
            until seven days after it was due; for another queue it is an `IdTakenError`. Default: made by the database.
        options: `tenant` ("default"); `priority`, lower first, -32768 to 32767 (0); `delay`, seconds or timedelta, or
            `available_at`, a datetime with a zone (now); `max_attempts` (the consumer's); `target`, the one worker
            that may claim it, and `target_for`, seconds or timedelta, after which anybody may (for ever); `subject`,
            the business record it serves; `group_key`, 1 to 200 characters: messages of a tenant's queue that have the
            same are handled one after the other, in the order of their enqueuing; `expires_at`, after which it is a
            dead letter; `headers`, a mapping;
            `dedup_key`, with which an enqueue finds the message that stands for it: `dedup_while` "waiting", until that
            is claimed (the default), or "alive", until it is finished; or `dedup_for`, seconds or timedelta since it
            was enqueued.

    Returns:
        `Enqueued(id, deduplicated)`: with `deduplicated` nothing was added, and `id` is the message's that was there.
    """
    op = produce.enqueue(queue, payloads.encode(payload), options, id_=id)
    return drivers.run(tx, op)


@overload
def enqueue_many(
    tx: SyncHandle, queue: str, payloads_: Iterable[object], /, **options: Unpack[ManyOptions]
) -> list[Enqueued]: ...
@overload
def enqueue_many(
    tx: AsyncHandle, queue: str, payloads_: Iterable[object], /, **options: Unpack[ManyOptions]
) -> Awaitable[list[Enqueued]]: ...
def enqueue_many(
    tx: Any, queue: str, payloads_: Iterable[object], /, **options: Unpack[ManyOptions]
) -> list[Enqueued] | Awaitable[list[Enqueued]]:
    """Put many messages into a queue, in order, as part of the caller's transaction; options as for `enqueue`.

    The payloads may be any iterable, read as statements of about 2,000 messages or 8 MB are filled. All or nothing:
    when one payload is refused none is in the transaction. The error names its position, from 0. `group_key` is a text,
    or a function from a payload to its key, or to None. `dedup_key` is such a function; with it a statement holds up to
    100,000 messages or 64 MB, whose keys it takes in sorted order: shorter lists with the same keys cannot deadlock.
    """
    count = len(payloads_) if isinstance(payloads_, list | tuple) else None
    ops = produce.enqueue_many(queue, produce.batches(payloads_, PLAIN, options), options, count=count)
    return drivers.run_all(tx, ops, ahead=count is not None)


@overload
def publish(
    tx: SyncHandle, topic: str, payload: object, *, id: UUID | None = None, **options: Unpack[PublishOptions]
) -> Published: ...
@overload
def publish(
    tx: AsyncHandle, topic: str, payload: object, *, id: UUID | None = None, **options: Unpack[PublishOptions]
) -> Awaitable[Published]: ...
def publish(
    tx: Any,
    topic: str,
    payload: object,
    *,
    id: UUID | None = None,  # noqa: A002  # the word of the SQL function
    **options: Unpack[PublishOptions],
) -> Published | Awaitable[Published]:
    """Publish to a topic, as part of the caller's transaction: a message for each queue that is subscribed to it.

    Each has its own attempts and its own end. Nobody subscribed: it is recorded in the history, and a warning is logged
    once for each topic. In a handler the messages carry one hop more than the handled one; over the setting max_hops
    (8) they are dead letters.

    Args:
        tx: the caller's transaction, as for `enqueue`.
        topic: segments of A-Z a-z 0-9 _ : - with dots between them, such as "order.paid".
        payload: as for `enqueue`. The types of the queues are not checked here, but by their handlers.
        id: the caller's id. Published again it is the same messages.
        options: `tenant`, `priority`, `delay`, `available_at`, `max_attempts`, `subject`, `expires_at`, `headers`, for
            all of the messages, as for `enqueue`.

    Returns:
        `Published(topic, messages)`: an `Enqueued` for each queue; `delivered` is their number.
    """
    return drivers.run(tx, topics.publish(topic, payloads.encode(payload), options, id_=id))


@overload
def ack(tx: SyncHandle, message: Message[Any] | Sequence[Message[Any]]) -> None: ...
@overload
def ack(tx: AsyncHandle, message: Message[Any] | Sequence[Message[Any]]) -> Awaitable[None]: ...
def ack(tx: Any, message: Message[Any] | Sequence[Message[Any]]) -> Awaitable[None] | None:
    """Acknowledge a message in the caller's transaction, with its effects: both commit, or neither.

    For a handler that opens its own transaction; `message.transaction()` does both. The worker then has nothing to
    write when the handler returns. If the transaction rolls back the message is not settled: let the handler raise.

    Args:
        tx: the caller's transaction, as for `enqueue`.
        message: what the handler was given: one, or the list of a handler of batches, all of them or some.

    Raises:
        LeaseLostError: the message, or one of them, is not ours any more, or settled already. Roll the transaction
            back: another run does, or did, the work.
    """
    messages = [message] if isinstance(message, Message) else list(message)
    return drivers.run(tx, claims.ack_with_effects(messages))


@overload
def once(tx: SyncHandle, key: str, *, scope: str = "", tenant: str = "default", keep: Duration = MONTH) -> bool: ...
@overload
def once(
    tx: AsyncHandle, key: str, *, scope: str = "", tenant: str = "default", keep: Duration = MONTH
) -> Awaitable[bool]: ...
def once(
    tx: Any, key: str, *, scope: str = "", tenant: str = "default", keep: Duration = MONTH
) -> bool | Awaitable[bool]:
    """Whether this is the first transaction that brings the key: for effects that must happen once.

    True for the first that commits, False after it. A rival that has not ended is waited for: it commits, and this is
    False; it rolls back, and this is True. Do the effect in the same transaction, where it was True.

    Args:
        tx: the caller's transaction, as for `enqueue`.
        key: names the effect, such as the id of a webhook's event: 1 to 500 characters.
        scope: keeps keys of different sources apart: at most 200 characters.
        tenant: whose key it is.
        keep: seconds or timedelta for which the key is remembered; 30 days.

    Raises:
        SerializationError: in REPEATABLE READ and above, when a rival committed meanwhile: run the transaction again.
    """
    return drivers.run(tx, produce.once(key, scope=scope, tenant=tenant, keep=keep))


@overload
def depth(tx: SyncHandle, queue: str, *, tenant: str | None = None) -> int: ...
@overload
def depth(tx: AsyncHandle, queue: str, *, tenant: str | None = None) -> Awaitable[int]: ...
def depth(tx: Any, queue: str, *, tenant: str | None = None) -> int | Awaitable[int]:
    """How many unfinished messages a queue has, of one tenant or of all: ready, scheduled and claimed."""
    return drivers.run(tx, look.depth(queue, tenant=tenant))


@overload
def depth_pending(tx: SyncHandle, queue: str, *, tenant: str | None = None) -> int: ...
@overload
def depth_pending(tx: AsyncHandle, queue: str, *, tenant: str | None = None) -> Awaitable[int]: ...
def depth_pending(tx: Any, queue: str, *, tenant: str | None = None) -> int | Awaitable[int]:
    """How many messages of a queue are ready now, of one tenant or of all."""
    return drivers.run(tx, look.depth_pending(queue, tenant=tenant))
