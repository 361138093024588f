"""Ops of topics: publish, and the subscriptions that route what is published."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from postrow.durations import name, text
from postrow.models import Enqueued, Published
from postrow.ops import lineage, tracing
from postrow.ops.op import Op, Row, single
from postrow.ops.produce import PublishOptions, an_id, group, shared_values

PUBLISH = """
select queue, id, deduplicated, dead from postrow.publish($1::text, $2::text::jsonb, tenant => $3::text,
    priority => $4::int, delay => $5::interval, available_at => $6::timestamptz, max_attempts => $7::int,
    subject => $8::text, expires_at => $9::timestamptz, headers => $10::text::jsonb, id => $11::uuid,
    parent_id => $12::uuid, hops => $13::int, group_key => $14::text)
"""


log = logging.getLogger("postrow")

WARNED = 1000  # topics at most: names may be made of data
_unrouted: set[str] = set()
KNOWN = tuple(PublishOptions.__annotations__)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A pattern of topics whose messages go to a queue; `tenant` "*" is all."""

    tenant: str
    pattern: str
    queue: str
    registered_by: str
    registered_at: datetime


def publish(topic: str, payload: str, options: PublishOptions, *, id_: UUID | None = None) -> Op[Published]:
    """Publish a payload, JSON text, to a topic."""
    topic = text("topic", topic)

    def read(rows: Sequence[Row]) -> Published:
        if not rows and topic not in _unrouted and len(_unrouted) < WARNED:
            _unrouted.add(topic)
            log.warning("nobody subscribes to topic %s: what is published to it is only recorded", topic)
        if any(dead for *_, dead in rows):
            log.warning("topic %s was published in a chain of too many handlers: its messages are dead letters", topic)
        return Published(topic, {queue: Enqueued(id_, again) for queue, id_, again, dead in rows if not dead})

    tenant, priority, delay, available_at, max_attempts, _, _, subject, expires_at, headers = shared_values(
        options, tracing.Making("publish", topic, an_id(id_)), known=KNOWN
    )
    values = (tenant, priority, delay, available_at, max_attempts, subject, expires_at, headers)
    return Op(PUBLISH, (topic, payload, *values, id_, *lineage.published(), group(options)), read)


def subscribe(pattern: str, queue: str, *, tenant: str) -> Op[bool]:
    """Route topics that fit the pattern to a queue; whether that is new."""
    return Op("select postrow.subscribe($1::text, $2::text, tenant => $3::text)", _key(pattern, queue, tenant), single)


def unsubscribe(pattern: str, queue: str, *, tenant: str) -> Op[bool]:
    """Route them no more; whether they were."""
    return Op(
        "select postrow.unsubscribe($1::text, $2::text, tenant => $3::text)", _key(pattern, queue, tenant), single
    )


def _key(pattern: str, queue: str, tenant: str) -> tuple[str, str, str]:
    return text("pattern", pattern), name("queue", queue), text("tenant", tenant)


def subscriptions(*, topic: str | None = None, tenant: str | None = None) -> Op[list[Subscription]]:
    """The subscriptions; those that a topic fits, and those that a tenant has, if these are given."""
    return Op(
        "select tenant, pattern, queue, registered_by, registered_at from postrow.subscriptions($1::text, $2::text)",
        (topic, tenant),
        lambda rows: [Subscription(*row) for row in rows],
    )
