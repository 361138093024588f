"""What a worker tells the database, and a person, when it starts: its handlers, and what is routed to them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import psycopg

from postrow.app import App
from postrow.drivers.psycopg3 import execute_async
from postrow.durations import duration
from postrow.errors import SchemaMismatchError
from postrow.ops import Op, fleet, schedules, topics
from postrow.queues import Consumer

log = logging.getLogger("postrow.worker")


def registrations(app: App, consumers: Iterable[Consumer], *, now: datetime) -> Iterator[Op[Any]]:
    """Make the handlers the consumers of their queues, and the app's subscriptions and schedules known.

    `now`: the database's clock, since a worker's own may be wrong.
    """
    for consumer in consumers:
        yield registration(app, consumer)
    for pattern, queue, tenant in app.subscriptions:
        yield topics.subscribe(pattern, queue, tenant=tenant)
    for declared in app.schedules.values():
        yield schedules.put(declared, now=now)


def registration(app: App, consumer: Consumer) -> Op[None]:
    """Makes an app's handler the consumer of its queue."""
    return fleet.register_consumer(
        consumer.queue.name,
        consumer.name,
        tenant=consumer.tenant,
        lease=consumer.lease,
        retry=consumer.retry,
        max_attempts=consumer.max_attempts,
        keep_history=consumer.keep_history,
        tells_dead=any((f"{consumer.queue.name}:dead", tenant) in app.consumers for tenant in (consumer.tenant, "*")),
        on_dead=consumer.on_dead,
        max_in_flight=consumer.max_in_flight,
        rate=consumer.rate,
        tenant_max_in_flight=consumer.tenant_max_in_flight,
        tenant_rate=consumer.tenant_rate,
    )


async def present_version(conn: psycopg.AsyncConnection[Any]) -> tuple[int, int] | None:
    """The version of the database's schema; None where there is none."""
    try:
        return await execute_async(conn, fleet.schema_version())
    except SchemaMismatchError:
        return None


def _limits(consumer: Consumer) -> Iterator[str]:
    for whose, in_flight, rate in (
        ("", consumer.max_in_flight, consumer.rate),
        (" of a tenant", consumer.tenant_max_in_flight, consumer.tenant_rate),
    ):
        if in_flight is not None:
            yield f"{in_flight} in flight{whose}"
        if rate is not None:
            yield f"{rate.count} each {duration('per', rate.per).total_seconds():g} s{whose}"
    if consumer.on_dead == "block":
        yield "a dead letter blocks its group"


def say_wiring(app: App, consumers: Sequence[Consumer], *, worker: str) -> None:
    """Log what a worker handles, and what is routed to its app's queues."""
    for consumer in consumers:
        log.info(
            "worker %s: queue %s -> %s%s, concurrency %s%s, lease %g s, %s attempts%s",
            worker,
            consumer.queue.name,
            consumer.name,
            "" if consumer.tenant == "*" else f" (tenant {consumer.tenant})",
            consumer.concurrency,
            "" if consumer.batch is None else f" (batches of up to {consumer.batch})",
            consumer.lease.total_seconds(),
            consumer.max_attempts,
            "".join(f", {limit}" for limit in _limits(consumer)),
        )
    handled = {consumer.queue.name for consumer in app.consumers.values()}
    for pattern, queue, tenant in app.subscriptions:
        whose = "" if tenant == "*" else f" (tenant {tenant})"
        if queue in handled:
            log.info("worker %s: topic %s -> queue %s%s", worker, pattern, queue, whose)
        else:
            log.warning("topic %s -> queue %s%s, which has no handler in this app", pattern, queue, whose)
    for declared in app.schedules.values():
        log.info("worker %s: schedule %s (%s) -> queue %s", worker, declared.name, declared.times.said, declared.queue)
