"""What is in a queue, as a transaction sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload
from uuid import UUID

from postrow import drivers
from postrow import payload as payloads
from postrow.ops import Op, look
from postrow.ops.op import Row
from postrow.queues import Queue

if TYPE_CHECKING:
    from postrow.drivers.handles import AsyncHandle, SyncHandle

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PLAIN: payloads.Codec[Any] = payloads.Codec(None)


@dataclass(frozen=True, slots=True)
class QueuedMessage(Generic[T_co]):
    """An unfinished message. Moments are in UTC; `attempt` counts the claims so far; `claimed`: a worker has it."""

    id: UUID
    tenant: str
    queue: str
    payload: T_co
    headers: Mapping[str, Any]
    priority: int
    enqueued_at: datetime
    available_at: datetime
    expires_at: datetime | None
    max_attempts: int | None
    attempt: int
    claimed: bool
    subject: str | None
    target: str | None
    group_key: str | None
    dedup_key: str | None

    @property
    def delay(self) -> timedelta:
        """How long after its enqueue it is due: until it was claimed, the `delay` it was enqueued with."""
        return self.available_at - self.enqueued_at


@overload
def enqueued(tx: SyncHandle, queue: Queue[T], *, tenant: str | None = None) -> list[QueuedMessage[T]]: ...
@overload
def enqueued(tx: SyncHandle, queue: str, *, tenant: str | None = None) -> list[QueuedMessage[Any]]: ...
@overload
def enqueued(tx: AsyncHandle, queue: Queue[T], *, tenant: str | None = None) -> Awaitable[list[QueuedMessage[T]]]: ...
@overload
def enqueued(tx: AsyncHandle, queue: str, *, tenant: str | None = None) -> Awaitable[list[QueuedMessage[Any]]]: ...
def enqueued(
    tx: Any, queue: Queue[Any] | str, *, tenant: str | None = None
) -> list[QueuedMessage[Any]] | Awaitable[list[QueuedMessage[Any]]]:
    """The unfinished messages of a queue, of one tenant or of all, in the order in which they were enqueued.

    As the caller's transaction sees them: also what it has enqueued itself and not committed. `queue` is a name, or a
    queue of an app: then payloads are of its type.

    Raises:
        PayloadTypeError: a payload does not fit the queue's type.
    """
    codec = queue.codec if isinstance(queue, Queue) else PLAIN
    op = look.unfinished(queue.name if isinstance(queue, Queue) else queue, tenant=tenant)

    def read(rows: Sequence[Row]) -> list[QueuedMessage[Any]]:
        return [_queued(codec.decode(payload), row) for payload, row in op.read(rows)]

    return drivers.run(tx, Op(op.sql, op.params, read))


def _queued(payload: Any, row: dict[str, Any]) -> QueuedMessage[Any]:
    return QueuedMessage(
        id=UUID(row["id"]),
        tenant=row["tenant"],
        queue=row["queue"],
        payload=payload,
        headers=row["headers"] or {},
        priority=row["priority"],
        enqueued_at=_moment(row["enqueued_at"]),
        available_at=_moment(row["available_at"]),
        expires_at=None if row["expires_at"] is None else _moment(row["expires_at"]),
        max_attempts=row["max_attempts"],
        attempt=row["attempt"],
        claimed=row["claim_token"] is not None,
        subject=row["subject"],
        target=row["target"],
        group_key=row["group_key"],
        dedup_key=row["dedup_key"],
    )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
