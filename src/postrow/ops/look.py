"""Ops that look: depth, status, show, peek, dead letters; and those that decide dead letters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from postrow.models import QueueStatus
from postrow.ops.op import Op, Row, nothing, single

# of a row as JSON, a payload longer than this many characters is cut in lists: lists never read whole payloads
SHOWN = 400


def depth(queue: str, *, tenant: str | None = None) -> Op[int]:
    """How many unfinished messages a queue has."""
    return Op("select postrow.depth($1::text, $2::text)", (queue, tenant), single)


def depth_pending(queue: str, *, tenant: str | None = None) -> Op[int]:
    """How many messages of a queue are ready now."""
    return Op("select postrow.depth_pending($1::text, $2::text)", (queue, tenant), single)


def status() -> Op[list[QueueStatus]]:
    """Every queue and tenant with something in it."""
    return Op(
        "select queue, tenant, ready, scheduled, claimed, dead, "
        "extract(epoch from postrow.clock() - oldest_ready)::float8, handler, workers from postrow.status()",
        (),
        lambda rows: [QueueStatus(*row) for row in rows],
    )


def _read_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [json.loads(row[0]) for row in rows]


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
