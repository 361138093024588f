"""Ops of a worker: lanes, claims, and what becomes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from postrow.errors import LeaseLostError
from postrow.models import Claimed, Lane, LaneEdge, Message, Outcome, moment
from postrow.ops import arrays
from postrow.ops.op import Op, Row, single

Key = tuple[str, UUID]
"""A message: tenant and id."""

# The claim's own transaction need not be flushed: a claim that a crash forgets is an unclaimed message. set_config is
# local to this one statement's transaction, and materialized so that it runs whatever the claim gives. So is the turn;
# who gets none claims nothing, so the token comes from there. The microseconds are counted once, for the first row,
# when all are there. The columns are those of `Claimed`, as bytes and numbers: to read a moment costs a worker ten
# times as much.
CLAIM = """
with begun as materialized (select set_config('synchronous_commit', 'off', true) as lazily,
    case when not $11::bool or postrow.claim_turn($1::text) then $9::uuid end as token, clock_timestamp() as at)
select c.lane, c.frontier,
    (select least(extract(epoch from clock_timestamp() - b.at) * 1000000, 2000000000)::int4 from begun b), c.claimed_at,
    c.tenant, c.priority, c.id, c.payload::text, c.headers::text, c.attempt, c.max_attempts, c.due_at, c.enqueued_at,
    c.subject, c.target, c.group_key, c.topic, c.parent_id, c.hops, c.expires_at, c.failures::text, c.place
from begun, postrow.claim_lanes($1::text, $2::text[], $3::smallint[], $4::timestamptz[], $5::int, $6::int,
    lease => $7::interval, worker => $8::text, token => begun.token, max_bytes => $10::bigint) c
where begun.lazily is not null and begun.token is not null
"""
# The seconds from the statement's arrival until all lanes are found; in a row of their own where there are none.
# date_part gives float8, and so takes less than extract.
LANES = """
select date_part('epoch', clock_timestamp() - statement_timestamp()),
    tenant, priority, ready, date_part('epoch', next_due - postrow.clock()), next_due
from (select) one"""
_LANE, _TOOK, _ID, _DUE = (Claimed._fields.index(name) for name in ("lane", "took", "key", "due"))


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer of a claim: its messages, how far each lane was seen, and the seconds that the server took.

    Without `turn`, it was to have one and got none: it has claimed nothing, and says nothing of the lanes.
    """

    messages: list[Claimed]
    edges: list[LaneEdge]
    took: float
    turn: bool = True


def _read_claim(lanes: Sequence[tuple[str, int, datetime | None]], rows: Sequence[Row]) -> Claim:
    if not rows:  # each lane has one, at least
        return Claim([], [], 0.0, turn=not lanes)
    make = partial(tuple.__new__, Claimed)
    messages = [make(row) for row in rows if row[_ID] is not None]
    taken = Counter([row[_LANE] for row in messages])
    first: dict[int, Claimed] = {}
    for row in rows:
        if row[_LANE] not in first:
            first[row[_LANE]] = make(row)
    first.pop(0, None)  # targeted messages, which have no frontier
    edges = []
    for lane in sorted(first):
        row = first[lane]
        # not the message's own priority: the first of a group may be of another lane
        tenant, priority, _ = lanes[lane - 1]
        frontier = None if row.frontier is None else moment(row.frontier)
        waits = row[_ID] is None and row[_DUE] is not None  # of a lane that gave nothing
        wait = (row.due - row.claimed) / 1e6 if waits else None
        edges.append(LaneEdge(tenant, priority, frontier, taken[lane], wait))
    return Claim(messages, edges, rows[0][_TOOK] / 1e6)


def claim_lanes(
    queue: str,
    lanes: Sequence[tuple[str, int, datetime | None]],
    *,
    per_lane: int,
    limit: int,
    lease: timedelta,
    worker: str,
    token: UUID,
    max_bytes: int | None = None,
    turn: bool = False,
) -> Op[Claim]:
    """Claim from lanes (tenant, priority, after), in their order; messages targeted at `worker` come first.

    `turn`: not beside two others of the queue that are to have one.
    """
    tenants, priorities, afters = zip(*lanes, strict=True) if lanes else ((), (), ())
    lists = (arrays.texts(tenants), arrays.numbers(priorities), arrays.moments(afters))
    params = (queue, *lists, per_lane, limit, lease, worker, token, max_bytes, turn)
    return Op(CLAIM, params, partial(_read_claim, lanes), raw=True)


@dataclass(frozen=True, slots=True)
class Discovery:
    """The answer of a discovery: the lanes, and the seconds that the server took."""

    lanes: list[Lane]
    took: float


def _read_lanes(rows: Sequence[Row]) -> Discovery:
    found = [Lane(*row[1:]) for row in rows if row[1] is not None]
    return Discovery(found, rows[0][0])


def lanes(
    queue: str,
    *,
    worker: str | None = None,
    marks: Sequence[tuple[str, int, datetime]] = (),
    after: str | None = None,
    to: str | None = None,
    others: bool = True,
) -> Op[Discovery]:
    """Discover the lanes of a queue, with those that only hold messages for `worker`.

    `marks`: lanes (tenant, priority, after) of which nothing before that moment is looked at; without `others` those
    lanes, and those that hold messages for `worker`, are all. Without marks: of the tenants behind `after`, up to `to`.
    """
    call = "lanes($1::text, worker => $2::text, after_tenant => $3::text, to_tenant => $4::text)"
    given: tuple[object, ...] = (queue, worker, after, to)
    if marks:
        lists = "$3::text[], $4::smallint[], $5::timestamptz[]"
        call = f"lanes_ahead($1::text, {lists}, worker => $2::text, others => $6::bool)"
        tenants, priorities, afters = zip(*marks, strict=True)
        given = (queue, worker, arrays.names(tenants), arrays.numbers(priorities), arrays.moments(afters), others)
    return Op(f"{LANES} left join postrow.{call} on true", given, _read_lanes)


def release_claim(token: UUID, queue: str) -> Op[int]:
    """Give back what a claim took whose answer was lost."""
    return Op("select postrow.release_claim($1::uuid, $2::text)", (token, queue), single)


def free_groups(groups: Sequence[tuple[str, str, str]]) -> Op[int]:
    """Let groups (queue, tenant, key) go on of which a message was acknowledged in a handler's own transaction."""
    lists = ([group[i] for group in groups] for i in range(3))
    return Op("select postrow.free_groups($1::text[], $2::text[], $3::text[])", tuple(lists), single)


class Held(NamedTuple):
    """What a settlement needs to know of a message: whose it is, and the token of its claim."""

    tenant: str
    id: UUID
    token: UUID


def _lists(held: Sequence[Held]) -> tuple[str, str, str]:
    """Three arrays as text: a driver's own dump of lists takes ten times as long."""
    return (
        arrays.names([h.tenant for h in held]),
        "{" + ",".join([h.id.hex for h in held]) + "}",
        "{" + ",".join([h.token.hex for h in held]) + "}",
    )


def _read_outcomes(rows: Sequence[Row]) -> dict[Key, Outcome]:
    return {(row[0], row[1]): row[2] for row in rows}


def _settle(call: str, held: Sequence[Held], *more: object) -> Op[dict[Key, Outcome]]:
    return Op(f"select tenant, id, outcome from postrow.{call}", (*_lists(held), *more), _read_outcomes)


def ack_at(claimed: Sequence[Claimed], tokens: Sequence[UUID]) -> Op[dict[Key, Outcome]]:
    """Done, of messages that are where the claim left them, without waiting. Tells what was not accepted."""
    sql = "select tenant, id, outcome from postrow.ack_at($1::text[], $2::uuid[], $3::uuid[], $4::tid[])"
    lists = (
        arrays.texts([row.tenant for row in claimed]),
        arrays.uuids([row.key for row in claimed]),
        arrays.uuids([token.bytes for token in tokens]),
        arrays.tids([row.place for row in claimed]),
    )
    return Op(sql, lists, _read_exceptions, raw=True)


def _read_exceptions(rows: Sequence[Row]) -> dict[Key, Outcome]:
    return {(row[0], UUID(bytes=row[1])): row[2] for row in rows}


def ack_with_effects(messages: Sequence[Message[Any]]) -> Op[None]:
    """Done, in the transaction of their effects: waits for the rows, and raises what the fence says.

    Raises:
        LeaseLostError: when the answer is read, of the first message that is not ours.
    """

    def read(rows: Sequence[Row]) -> None:
        outcomes: dict[Key, Outcome] = {(tenant, id_): outcome for tenant, id_, outcome in rows}
        for message in messages:
            outcome = outcomes[message.tenant, message.id]
            if outcome == "stale":
                raise LeaseLostError(
                    f"message {message.id} of queue {message.queue} is not ours any more: its lease has ended",
                    hint="Roll this transaction back: whoever has the message now does its work again.",
                )
            if outcome != "accepted":
                raise LeaseLostError(
                    f"message {message.id} of queue {message.queue} is settled already",
                    hint="Roll this transaction back: its work was done by another run.",
                )

    held = [Held(message.tenant, message.id, message.claim_token) for message in messages]
    sql = "select tenant, id, outcome from postrow.ack($1::text::text[], $2::text::uuid[], $3::text::uuid[])"
    return Op(sql, _lists(held), read)


def fail(
    held: Sequence[Held],
    *,
    errors: Sequence[str],
    types: Sequence[str | None],
    tracebacks: Sequence[str | None],
    retry_after: Sequence[timedelta | None],
    wait: bool = True,
) -> Op[dict[Key, Outcome]]:
    """Failed; `retry_after` counts from the database's clock, None is the policy's delay."""
    return _settle(
        "fail($1::text::text[], $2::text::uuid[], $3::text::uuid[], $4::text[], types => $5::text[], "
        "tracebacks => $6::text[], "
        "retry_at => (select array_agg(postrow.clock() + a.delay order by a.n) "
        "from unnest($7::interval[]) with ordinality a(delay, n)), wait => $8::boolean)",
        held,
        list(errors),
        list(types),
        list(tracebacks),
        list(retry_after),
        wait,
    )


def release(
    held: Sequence[Held], *, until: Sequence[datetime | timedelta | None] | None = None, wait: bool = True
) -> Op[dict[Key, Outcome]]:
    """Give back unharmed; with `until` not before that moment, or so long from the database's now."""
    moments = [u if isinstance(u, datetime) else None for u in until or [None] * len(held)]
    delays = [u if isinstance(u, timedelta) else None for u in until or [None] * len(held)]
    return _settle(
        "release($1::text::text[], $2::text::uuid[], $3::text::uuid[], "
        "until => (select array_agg(coalesce(a.moment, postrow.clock() + a.delay) order by a.n) "
        "from unnest($4::timestamptz[], $5::interval[]) with ordinality a(moment, delay, n)), "
        "wait => $6::boolean)",
        held,
        moments,
        delays,
        wait,
    )


def bury(held: Sequence[Held], *, reasons: Sequence[str], wait: bool = True) -> Op[dict[Key, Outcome]]:
    """A dead letter now."""
    return _settle(
        "bury($1::text::text[], $2::text::uuid[], $3::text::uuid[], $4::text[], wait => $5::boolean)",
        held,
        list(reasons),
        wait,
    )


def extend(held: Sequence[Held], lease: timedelta) -> Op[dict[Key, Outcome]]:
    """Hold for `lease` from now; never waits."""
    return _settle("extend($1::text::text[], $2::text::uuid[], $3::text::uuid[], $4::interval)", held, lease)
