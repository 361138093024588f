"""The functions that take the caller's transaction first. No logic: an op, and a driver to run it.

Each gives its result on a sync handle and an awaitable of it on an async one. They raise what `postrow.errors` lists:
`NotInTransactionError` on a handle in autocommit mode, `AbortedTransactionError`, `UnsupportedHandleError`,
`BadNameError`, `BadArgumentError`, `PayloadError`, `SchemaMismatchError`, `PrivilegeError`; nothing else is translated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any, Unpack, overload
from uuid import UUID

from postrow import drivers
from postrow import payload as payloads
from postrow.models import Enqueued
from postrow.ops import look, produce
from postrow.ops.produce import Options

if TYPE_CHECKING:
    import psycopg

    SyncHandle = psycopg.Connection[Any] | psycopg.Transaction
    AsyncHandle = psycopg.AsyncConnection[Any] | psycopg.AsyncTransaction


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
        tx: the caller's transaction: a psycopg connection (sync or async) or transaction.
        queue: 1 to 200 of A-Z a-z 0-9 . _ : - ; it exists once its first message does.
        payload: any value of `postrow.payload`'s table: JSON values, dataclasses, pydantic models, datetimes ...
        id: the caller's id. Enqueued again for the same queue it is the same message, also after that was settled,
            until seven days after it was due; for another queue it is an `IdTakenError`. Default: made by the database.
        options: `tenant` ("default"); `priority`, lower first, -32768 to 32767 (0); `delay`, seconds or timedelta, or
            `available_at`, a datetime with a zone (now); `max_attempts` (the consumer's); `target`, the one worker
            that may claim it, and `target_for`, seconds or timedelta, after which anybody may (for ever); `subject`,
            the business record it serves; `expires_at`, after which it is a dead letter; `headers`, a mapping.

    Returns:
        `Enqueued(id, deduplicated)`.
    """
    op = produce.enqueue(queue, payloads.encode(payload), options, id_=id)
    return drivers.run(tx, op)


@overload
def enqueue_many(
    tx: SyncHandle, queue: str, payloads_: Iterable[object], /, **options: Unpack[Options]
) -> list[Enqueued]: ...
@overload
def enqueue_many(
    tx: AsyncHandle, queue: str, payloads_: Iterable[object], /, **options: Unpack[Options]
) -> Awaitable[list[Enqueued]]: ...
def enqueue_many(
    tx: Any, queue: str, payloads_: Iterable[object], /, **options: Unpack[Options]
) -> list[Enqueued] | Awaitable[list[Enqueued]]:
    """Put many messages into a queue, in order, as part of the caller's transaction; options as for `enqueue`.

    The payloads may be any iterable, read as statements of about 2,000 messages or 8 MB are filled. All or nothing: when
    one payload is refused none is in the transaction. The error names its position, from 0.
    """
    texts = produce.encoded(payloads_, PLAIN)
    return drivers.run_all(tx, produce.enqueue_many(queue, texts, options), ahead=isinstance(payloads_, list | tuple))


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
