"""Ops that look: depth, status, show, peek, dead letters; and those that decide dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from postrow import payload as payloads
from postrow.durations import name
from postrow.models import QueueDepth, QueueStatus
from postrow.ops.op import Op, Row, nothing, single

# of a row as JSON, a payload longer than this many characters is cut in lists: lists never read whole payloads
SHOWN = 400


def _place(queue: str, tenant: str | None) -> tuple[str, str | None]:
    return name("queue", queue), None if tenant is None else name("tenant", tenant)


def depth(queue: str, *, tenant: str | None = None) -> Op[int]:
    """How many unfinished messages a queue has."""
    return Op("select postrow.depth($1::text, $2::text)", _place(queue, tenant), single)


def depth_pending(queue: str, *, tenant: str | None = None) -> Op[int]:
    """How many messages of a queue are ready now."""
    return Op("select postrow.depth_pending($1::text, $2::text)", _place(queue, tenant), single)


def status() -> Op[list[QueueStatus]]:
    """Every queue and tenant with something in it."""
    return Op(
        "select queue, tenant, ready, scheduled, claimed, dead, "
        "extract(epoch from postrow.clock() - oldest_ready)::float8, handler, workers, paused from postrow.status()",
        (),
        lambda rows: [QueueStatus(*row) for row in rows],
    )


def depths() -> Op[list[QueueDepth]]:
    """Every queue with something in it, its tenants together."""
    return Op(
        "select queue, sum(ready)::bigint, sum(scheduled)::bigint, sum(claimed)::bigint, sum(dead)::bigint, "
        "coalesce(extract(epoch from postrow.clock() - min(oldest_ready) filter (where not paused)), 0)::float8, "
        "max(workers) from postrow.status() group by queue order by queue",
        (),
        lambda rows: [QueueDepth(*row) for row in rows],
    )


def _read_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [payloads.decode(row[0]) for row in rows]


def show(id_: UUID, *, tenant: str | None = None) -> Op[list[dict[str, Any]]]:
    """The whole life of a message, wherever it is: an object for each place that has the id."""
    return Op("select s::text from postrow.show($1::uuid, $2::text) s", (id_, tenant), _read_json)


def peek(queue: str, *, tenant: str | None = None, limit: int = 10) -> Op[list[dict[str, Any]]]:
    """The first free messages of a queue, unclaimed; `payload` is text, cut to 400 characters."""
    return Op(
        "select (to_jsonb(p) - 'payload' || jsonb_build_object('payload', left(p.payload::text, $4::int)))::text "
        "from postrow.peek($1::text, $2::text, $3::int) p",
        (queue, tenant, limit, SHOWN),
        _read_json,
    )


def dead_letters(
    *,
    queue: str | None = None,
    tenant: str | None = None,
    since: timedelta | None = None,
    resolved: bool = False,
    limit: int = 100,
    after: tuple[datetime, UUID] | None = None,
) -> Op[list[dict[str, Any]]]:
    """Dead letters, newest first; `payload` is text, cut to 400 characters. `since`: died so long ago at most."""
    died_at, id_ = after or (None, None)
    return Op(
        "select (to_jsonb(d) - 'payload' || jsonb_build_object('payload', left(d.payload::text, $6::int)))::text "
        "from postrow.dead_letter d where ($1::text is null or d.queue = $1) and ($2::text is null or d.tenant = $2) "
        "and ($3::interval is null or d.died_at >= postrow.clock() - $3) and ($4::boolean or d.resolved_at is null) "
        "and ($7::timestamptz is null or (d.died_at, d.id) < ($7, $8::uuid)) "
        "order by d.died_at desc, d.id desc limit $5::int",
        (queue, tenant, since, resolved, limit, SHOWN, died_at, id_),
        _read_json,
    )


def unfinished(queue: str, *, tenant: str | None = None) -> Op[list[tuple[str, dict[str, Any]]]]:
    """The unfinished messages of a queue as enqueued: of each its payload's JSON text, and its other columns.

    As text, so that neither a driver nor what its user has set for a connection gives them another type.
    """
    return Op(
        "select m.payload::text, (to_jsonb(m) - '{payload,failures}'::text[])::text "
        "from postrow.message m where m.queue = $1::text and ($2::text is null or m.tenant = $2) "
        "order by m.enqueued_at, m.id",
        _place(queue, tenant),
        lambda rows: [(row[0], payloads.decode(row[1])) for row in rows],
    )


def redrive(id_: UUID, tenant: str) -> Op[UUID]:
    """Send a dead letter again; gives the new message's id."""
    return Op("select postrow.redrive($1::uuid, $2::text)::text", (id_, tenant), lambda rows: UUID(single(rows)))


def resolve(id_: UUID, tenant: str, *, resolution: str, reason: str) -> Op[None]:
    """Decide a dead letter without sending it again."""
    return Op(
        "select postrow.resolve($1::uuid, $2::text, $3::text, $4::text)",
        (id_, tenant, resolution, reason),
        nothing,
    )


def now() -> Op[datetime]:
    """The database's clock."""
    return Op("select postrow.clock()", (), single)


@dataclass(frozen=True, slots=True)
class DeadKey:
    """What names a dead letter."""

    tenant: str
    id: UUID


def dead_keys(
    *, queue: str | None = None, tenant: str | None = None, since: timedelta | None = None
) -> Op[list[DeadKey]]:
    """All dead letters that wait for a decision, oldest first. `since`: died so long ago at most."""
    return Op(
        "select d.tenant, d.id::text from postrow.dead_letter d "
        "where d.resolved_at is null and ($1::text is null or d.queue = $1) and ($2::text is null or d.tenant = $2) "
        "and ($3::interval is null or d.died_at >= postrow.clock() - $3) order by d.died_at, d.tenant, d.id",
        (queue, tenant, since),
        lambda rows: [DeadKey(row[0], UUID(row[1])) for row in rows],
    )


def consumers() -> Op[list[dict[str, Any]]]:
    """Every consumer with its policy, durations in seconds, and `workers`: those heard of in the last minute."""
    return Op(
        "select (to_jsonb(c) || jsonb_build_object('lease', extract(epoch from c.lease), "
        "'retry_base', extract(epoch from c.retry_base), 'retry_cap', extract(epoch from c.retry_cap), "
        "'rate_period', extract(epoch from c.rate_period), "
        "'tenant_rate_period', extract(epoch from c.tenant_rate_period), "
        "'workers', (select count(*) from postrow.worker w "
        "where w.beat_at > postrow.clock() - interval '1 minute' and exists (select from unnest(w.queues, w.tenants) "
        "u(queue, tenant) where u.queue = c.queue and (u.tenant = c.tenant) is not false))))::text "
        "from postrow.consumer c order by c.queue, c.tenant",
        (),
        _read_json,
    )


def replace_consumer(queue: str, handler: str, *, tenant: str = "*") -> Op[str | None]:
    """Give a queue to another handler, with the policy of the present one; gives its name (None: there is none)."""
    return Op(
        "select c.handler, postrow.register_consumer(c.queue, $2::text, tenant => c.tenant, kind => c.kind, "
        "lease => c.lease, retry => c.retry, retry_base => c.retry_base, retry_factor => c.retry_factor, "
        "retry_cap => c.retry_cap, retry_jitter => c.retry_jitter, max_attempts => c.max_attempts, "
        "keep_history => c.keep_history, tells_dead => c.tells_dead, on_dead => c.on_dead, "
        "max_in_flight => c.max_in_flight, rate => c.rate, rate_period => c.rate_period, "
        "tenant_max_in_flight => c.tenant_max_in_flight, tenant_rate => c.tenant_rate, "
        "tenant_rate_period => c.tenant_rate_period, replace => true)::text "
        "from postrow.consumer c where c.queue = $1::text and c.tenant = $3::text",
        (queue, handler, tenant),
        lambda rows: rows[0][0] if rows else None,
    )


def unregister_consumer(queue: str, *, tenant: str = "*") -> Op[bool]:
    """Take the consumer of a queue away; whether there was one."""
    return Op("select postrow.unregister_consumer($1::text, $2::text)", (queue, tenant), single)
