"""Ops of an operator on a queue: pause, resume, purge."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from postrow.durations import name, text
from postrow.ops.op import Op, single


@dataclass(frozen=True, slots=True)
class Pause:
    """What is not claimed: of one tenant or of all ("*"), in one queue or in all ("*")."""

    tenant: str
    queue: str
    reason: str | None
    paused_by: str
    paused_at: datetime


def pause(queue: str | None, *, tenant: str | None, reason: str | None) -> Op[bool]:
    """Claim no more of it; whether that is new."""
    why = None if reason is None else text("reason", reason)
    return Op("select postrow.pause($1::text, $2::text, $3::text)", (*_names(queue, tenant), why), single)


def resume(queue: str | None, *, tenant: str | None) -> Op[bool]:
    """Claim of it again; whether it was paused in these words."""
    return Op("select postrow.resume($1::text, $2::text)", _names(queue, tenant), single)


def pauses() -> Op[list[Pause]]:
    """What is paused."""
    return Op(
        "select tenant, queue, reason, paused_by, paused_at from postrow.pauses()",
        (),
        lambda rows: [Pause(*row) for row in rows],
    )


def purge(queue: str, *, tenant: str | None, limit: int) -> Op[int]:
    """Delete up to `limit` messages that nobody holds; how many that were."""
    params = (name("queue", queue), _names(None, tenant)[1], limit)
    return Op("select postrow.purge($1::text, $2::text, $3::int)", params, single)


def purgeable(queue: str, *, tenant: str | None) -> Op[int]:
    """How many messages a purge would delete now."""
    return Op(
        "select coalesce(sum(ready + scheduled), 0)::bigint from postrow.status() "
        "where queue = $1::text and ($2::text is null or tenant = $2::text)",
        (name("queue", queue), _names(None, tenant)[1]),
        single,
    )


def _names(queue: str | None, tenant: str | None) -> tuple[str | None, str | None]:
    return None if queue is None else name("queue", queue), None if tenant is None else name("tenant", tenant)
