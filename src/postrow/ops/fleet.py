"""Ops of a fleet: consumers, workers, the sweep, the schema's version."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from postrow.durations import duration
from postrow.models import OnDead, Rate, RetryPolicy, SweepStep
from postrow.ops.op import Op, Row, nothing, single

SWEEP_STEPS = ("leases", "expired", "targets", "groups", "seen", "history", "dead", "workers")

REGISTER = """
select postrow.register_consumer($1::text, $2::text, tenant => $3::text, lease => $4::interval, retry => $5::text,
    retry_base => $6::interval, retry_factor => $7::float8, retry_cap => $8::interval, retry_jitter => $9::boolean,
    max_attempts => $10::int, keep_history => $11::boolean, replace => $12::boolean,
    tells_dead => $13::boolean, on_dead => $14::text, max_in_flight => $15::int, rate => $16::int,
    rate_period => $17::interval, tenant_max_in_flight => $18::int, tenant_rate => $19::int,
    tenant_rate_period => $20::interval)
"""


def register_consumer(
    queue: str,
    handler: str,
    *,
    tenant: str,
    lease: timedelta,
    retry: RetryPolicy,
    max_attempts: int,
    keep_history: bool,
    replace: bool = False,
    tells_dead: bool = False,
    on_dead: OnDead = "continue",
    max_in_flight: int | None = None,
    rate: Rate | None = None,
    tenant_max_in_flight: int | None = None,
    tenant_rate: Rate | None = None,
) -> Op[None]:
    """Make `handler` the consumer of a queue."""
    params = (
        queue,
        handler,
        tenant,
        lease,
        retry.kind,
        duration("base", retry.base),
        float(retry.factor),
        duration("cap", retry.cap),
        retry.jitter,
        max_attempts,
        keep_history,
        replace,
        tells_dead,
        on_dead,
        max_in_flight,
        *_rate(rate),
        tenant_max_in_flight,
        *_rate(tenant_rate),
    )
    return Op(REGISTER, params, nothing)


def _rate(rate: Rate | None) -> tuple[int | None, timedelta | None]:
    return (None, None) if rate is None else (rate.count, duration("per", rate.per))


def consumers(queue: str) -> Op[dict[str, str]]:
    """The handlers of a queue by tenant, "*" for all."""
    return Op("select tenant, handler from postrow.consumers($1::text)", (queue,), dict)


def beat(
    id_: UUID,
    *,
    name: str,
    host: str,
    pid: int,
    consumed: Sequence[tuple[str, str]],
    version: str,
    clock: datetime | None = None,
) -> Op[int]:
    """Say that a worker lives, and what time it is by its own clock; how many that have one of its queues do.

    Of `consumed` each is a queue, and the tenant whose consumer it is, "*" for all.
    """
    queues, tenants = [queue for queue, _ in consumed], [tenant for _, tenant in consumed]
    return Op(
        "select postrow.beat($1::uuid, $2::text, $3::text, $4::int, $5::text[], $6::text, $7::timestamptz, $8::text[])",
        (id_, name, host, pid, queues, version, clock, tenants),
        single,
    )


def leave(id_: UUID) -> Op[None]:
    """Say that a worker has stopped."""
    return Op("select postrow.leave($1::uuid)", (id_,), nothing)


def _read_steps(rows: Sequence[Row]) -> list[SweepStep]:
    return [SweepStep(*row) for row in rows]


def sweep_turn(worker: UUID) -> Op[bool]:
    """Whether it is this worker's turn to sweep."""
    return Op("select postrow.sweep_turn($1::uuid)", (worker,), single)


def sweep(step: str | None = None, *, limit: int = 1000) -> Op[list[SweepStep]]:
    """One step of the sweep, or each once; no rows when another sweeps."""
    return Op("select step, done, more from postrow.sweep($1::text, $2::int)", (step, limit), _read_steps)


def clock() -> Op[datetime]:
    """The database's clock, by which what is due is judged."""
    return Op("select postrow.clock()", (), single)


def schema_version() -> Op[tuple[int, int]]:
    """The schema's major and minor version."""

    def read(rows: Sequence[Row]) -> tuple[int, int]:
        major, minor = str(single(rows)).split(".")
        return int(major), int(minor)

    return Op("select postrow.schema_version()", (), read)
