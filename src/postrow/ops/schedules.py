"""Ops of schedules: declare, list, and what a scheduler does when they are due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from postrow.durations import name
from postrow.ops.op import Op, Row, single
from postrow.schedules import Kind, Missed, Times

COLUMNS = (
    "tenant, name, kind, spec, timezone, queue, payload::text, priority, headers::text, max_attempts, missed, paused, "
    "next_at, last_at, postrow.clock()"
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as the database has it; `now` is its clock at the look."""

    tenant: str
    name: str
    kind: Kind
    spec: str
    timezone: str
    queue: str
    payload: str
    priority: int
    headers: str | None
    max_attempts: int | None
    missed: Missed
    paused: bool
    next_at: datetime | None
    last_at: datetime | None
    now: datetime

    @property
    def times(self) -> Times:
        """When it comes."""
        return Times(self.kind, self.spec, self.timezone)


@dataclass(frozen=True, slots=True)
class Declared:
    """A schedule as an app or a person declares it; the payload is JSON text."""

    name: str
    times: Times
    queue: str
    payload: str
    missed: Missed = "once"
    tenant: str = "default"
    priority: int = 0
    headers: str | None = None
    max_attempts: int | None = None


def put(declared: Declared, *, now: datetime) -> Op[bool]:
    """Make it, or change it; whether anything was written. `now`: its first time is the next one after that."""
    d = declared
    values = (d.name, d.queue, d.payload, d.times.kind, d.times.spec, next(d.times.after(now), None), d.times.timezone)
    more = (d.missed, d.tenant, d.priority, d.headers, d.max_attempts)
    return Op(
        "select postrow.put_schedule($1::text, $2::text, $3::text::jsonb, $4::text, $5::text, $6::timestamptz, "
        "$7::text, missed => $8::text, tenant => $9::text, priority => $10::int, headers => $11::text::jsonb, "
        "max_attempts => $12::int)",
        (*values, *more),
        single,
    )


def _read(rows: Sequence[Row]) -> list[Schedule]:
    return [Schedule(*row) for row in rows]


def due(limit: int) -> Op[list[Schedule]]:
    """Those that are due, the longest waiting first, locked for this transaction."""
    return Op(f"select {COLUMNS} from postrow.due_schedules($1::int)", (limit,), _read)


def fire(schedule: Schedule, times: Sequence[datetime], next_at: datetime | None) -> Op[int]:
    """Enqueue its message for each of the times, and say when it comes next; how many are new."""
    return Op(
        "select postrow.fire($1::text, $2::timestamptz[], $3::timestamptz, $4::text)",
        (schedule.name, list(times), next_at, schedule.tenant),
        single,
    )


def next_in() -> Op[float | None]:
    """Seconds until the first schedule is due; None: there is none."""
    return Op("select extract(epoch from postrow.next_schedule() - postrow.clock())::float8", (), single)


def all_of(*, tenant: str | None = None) -> Op[list[Schedule]]:
    """The schedules, of one tenant or of all."""
    return Op(
        f"select {COLUMNS} from postrow.schedules($1::text)",
        (None if tenant is None else name("tenant", tenant),),
        _read,
    )


def drop(schedule: str, *, tenant: str) -> Op[bool]:
    """Remove a schedule; whether there was one."""
    return Op(
        "select postrow.drop_schedule($1::text, $2::text)", (name("name", schedule), name("tenant", tenant)), single
    )


def pause(schedule: str, *, tenant: str, paused: bool) -> Op[bool]:
    """Pause a schedule or end its pause; whether there is one."""
    return Op(
        "select postrow.pause_schedule($1::text, $2::boolean, $3::text)",
        (name("name", schedule), paused, name("tenant", tenant)),
        single,
    )


def as_json(schedule: Schedule) -> Mapping[str, Any]:
    """For programs: what is known of it, moments in ISO 8601, payload and headers as JSON text."""
    return {
        "tenant": schedule.tenant,
        "name": schedule.name,
        "kind": schedule.kind,
        "spec": schedule.spec,
        "timezone": schedule.timezone,
        "queue": schedule.queue,
        "payload": schedule.payload,
        "priority": schedule.priority,
        "headers": schedule.headers,
        "max_attempts": schedule.max_attempts,
        "missed": schedule.missed,
        "paused": schedule.paused,
        "next_at": None if schedule.next_at is None else schedule.next_at.isoformat(),
        "last_at": None if schedule.last_at is None else schedule.last_at.isoformat(),
    }
