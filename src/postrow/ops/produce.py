"""Ops of a producer: enqueue, enqueue_many and once."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice, repeat
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, cast
from uuid import UUID, SafeUUID

from postrow import payload as payloads
from postrow.durations import Duration, duration, moment, name, optional_duration, text, whole
from postrow.errors import BadArgumentError
from postrow.models import Enqueued
from postrow.ops import lineage, tracing
from postrow.ops.op import Op, Row, single
from postrow.payload import Codec

T = TypeVar("T")

ENQUEUE = """
select id, deduplicated from postrow.enqueue($1::text, $2::text::jsonb, tenant => $3::text,
    priority => $4::int, delay => $5::interval, available_at => $6::timestamptz, max_attempts => $7::int,
    target => $8::text, target_for => $9::interval, subject => $10::text, expires_at => $11::timestamptz,
    headers => $12::text::jsonb, id => $13::uuid, dedup_key => $14::text, dedup_for => $15::interval,
    dedup_while => $16::text, parent_id => $17::uuid, hops => $18::int, group_key => $19::text)
"""

ENQUEUE_LINES = """
select first_id, messages from postrow.enqueue_lines($1::text, $2::text, tenant => $3::text,
    priority => $4::int, delay => $5::interval, available_at => $6::timestamptz, max_attempts => $7::int,
    target => $8::text, target_for => $9::interval, subject => $10::text, expires_at => $11::timestamptz,
    headers => $12::text::jsonb, parent_id => $13::uuid, hops => $14::int, group_key => $15::text)
"""

# the same, for messages that have keys of their own: the list is JSON
ENQUEUE_KEYED = """
select id, deduplicated from postrow.enqueue_many($1::text, $2::text::jsonb, tenant => $3::text,
    priority => $4::int, delay => $5::interval, available_at => $6::timestamptz, max_attempts => $7::int,
    target => $8::text, target_for => $9::interval, subject => $10::text, expires_at => $11::timestamptz,
    headers => $12::text::jsonb, parent_id => $13::uuid, hops => $14::int, group_key => $15::text,
    dedup_for => $16::interval, dedup_while => $17::text) order by n
"""

# in the first statement of a long list, which the server waits for; in each next one twice as many
FIRST_MESSAGES = 250
CHUNK_MESSAGES = 2_000  # a statement holds so many messages at most ...
CHUNK_BYTES = 8_000_000  # ... and about so many bytes of JSON: both sides hold it in memory
KEYED_MESSAGES = 100_000  # with keys, which one statement takes in sorted order: two lists within these bounds ...
KEYED_BYTES = 64_000_000  # ... cannot deadlock
TOGETHER_MESSAGES = 25  # so many payloads are encoded together at most ...
TOGETHER_BYTES = 100_000  # ... while so many had no more than so many bytes: their size is known when they are encoded


DedupWhile = Literal["waiting", "alive"]
"""How long a key stands for its message: until that is claimed, or until it is finished."""


class Common(TypedDict, total=False):
    """The options that one message has, many can have in common, and those of one publish have."""

    tenant: str
    priority: int
    delay: Duration | None
    available_at: datetime | None
    max_attempts: int | None
    subject: str | None
    expires_at: datetime | None
    headers: Mapping[str, Any] | None


class PublishOptions(Common, total=False):
    """The options of all messages that one publish makes."""

    group_key: str | None


class Shared(Common, total=False):
    """The options that one message has, and many can have in common."""

    target: str | None
    target_for: Duration | None
    dedup_for: Duration | None
    dedup_while: DedupWhile | None


class Options(Shared, total=False):
    """The options of a message, as `postrow.enqueue` documents them."""

    group_key: str | None
    dedup_key: str | None


class ManyOptions(Shared, total=False):
    """The options of many messages; the keys of each come from its payload, or one group has them all."""

    group_key: str | Callable[[Any], str | None] | None
    dedup_key: Callable[[Any], str | None] | None


ALL = tuple(Options.__annotations__)  # of all its bases, too


def _read(rows: Sequence[Row]) -> list[Enqueued]:
    return list(map(Enqueued._make, rows))


# A UUID's own slots: `UUID(int=...)` looks at five other arguments, which takes as long as the encoding of a message.
# `map` runs all of it outside of the interpreter: 0.8 us a message of a long list, not 1.6.
_set_int = UUID.__dict__["int"].__set__
_set_is_safe = UUID.__dict__["is_safe"].__set__


def _read_lines(rows: Sequence[Row]) -> list[Enqueued]:
    """The answer to `enqueue_lines`: ids that follow one by one."""
    ((first, count),) = rows
    if not count:
        return []
    ids: list[UUID] = list(map(object.__new__, repeat(UUID, count)))
    for each in (
        map(_set_int, ids, range(first.int, first.int + count)),
        map(_set_is_safe, ids, repeat(SafeUUID.unknown)),
    ):
        deque(each, maxlen=0)  # runs it
    return list(map(Enqueued._make, zip(ids, repeat(False))))


def _read_one(rows: Sequence[Row]) -> Enqueued:
    return _read(rows)[0]


def shared_values(
    options: Options | ManyOptions | Common,
    making: tracing.Making,
    *,
    known: Collection[str] = ALL,
) -> tuple[object, ...]:
    """The values of the options that one message and many share, but for those of deduplication.

    Raises:
        BadArgumentError: an option that is none of `known`, or a value outside its range.
    """
    unknown = set(options) - set(known)
    if unknown:
        raise BadArgumentError(f"unknown option {', '.join(sorted(unknown))}", hint=f"Options: {', '.join(known)}.")
    headers = options.get("headers")
    if headers is not None and not isinstance(headers, Mapping):
        raise BadArgumentError(f"headers is {headers!r}", hint="Give a mapping of names to JSON values.")
    max_attempts, subject = options.get("max_attempts"), options.get("subject")
    own = cast("Shared", options)  # what a publish has not is not there
    target = own.get("target")
    tenant = name("tenant", options.get("tenant", "default"))
    values = (
        tenant,
        whole("priority", options.get("priority", 0), least=-32768, most=32767),
        optional_duration("delay", options.get("delay")),
        moment("available_at", options.get("available_at")),
        None if max_attempts is None else whole("max_attempts", max_attempts, least=1),
        None if target is None else name("target", target),
        optional_duration("target_for", own.get("target_for")),
        None if subject is None else text("subject", subject),
        moment("expires_at", options.get("expires_at")),
    )
    headers = tracing.outgoing(headers, making, tenant=tenant)
    return (*values, None if headers is None else payloads.encode(dict(headers), what="headers"))


def _rule(options: Options | ManyOptions | Shared) -> tuple[object, ...]:
    rule = options.get("dedup_while")
    return (
        optional_duration("dedup_for", options.get("dedup_for")),
        None if rule is None else text("dedup_while", rule),
    )


def group(options: Options | ManyOptions | PublishOptions) -> str | None:
    """The key of a group, where all have the same."""
    key = options.get("group_key")
    return None if key is None or callable(key) else text("group_key", key)


def an_id(value: UUID | None) -> UUID | None:
    """A caller's own id, or None.

    Raises:
        BadArgumentError: anything else.
    """
    if value is not None and not isinstance(value, UUID):
        raise BadArgumentError(f"id is {value!r}", hint="Give a uuid.UUID, or leave it out.")
    return value


def enqueue(queue: str, payload: str, options: Options, *, id_: UUID | None = None) -> Op[Enqueued]:
    """Put one message, its payload JSON text, into a queue."""
    key = options.get("dedup_key")
    keyed = (None if key is None else text("dedup_key", key), *_rule(options))
    return Op(
        ENQUEUE,
        (
            name("queue", queue),
            payload,
            *shared_values(options, tracing.Making("enqueue", queue, an_id(id_))),
            id_,
            *keyed,
            *lineage.enqueued(),
            group(options),
        ),
        _read_one,
    )


def new_id() -> UUID:
    """A UUIDv7 made by the client (RFC 9562, section 5.7): 48 bits of milliseconds, 12 of their fraction, 62 random.

    Chosen before the first try, it makes a second try safe: an id is one message.
    """
    milliseconds, nanoseconds = divmod(time.time_ns(), 1_000_000)
    fraction = nanoseconds * 4096 // 1_000_000
    return UUID(int=milliseconds << 80 | 7 << 76 | fraction << 64 | 2 << 62 | secrets.randbits(62))


class Lines(NamedTuple):
    """JSON texts, one a line, and how many messages they are."""

    text: str
    messages: int


def enqueue_many(
    queue: str, batches: Iterable[Lines], options: ManyOptions, *, count: int | None = None
) -> Iterator[Op[list[Enqueued]]]:
    """Put many messages into a queue: an op for about each 2,000 of them or 8 MB, made as they are asked for.

    The first ones of a list are smaller, where `count` tells that it is long. With keys of their own in the options the
    batches have them; with a `dedup_key` an op holds up to 100,000 or 64 MB.
    """
    making = tracing.Making("enqueue_many", queue)
    values = (name("queue", queue), *shared_values(options, making), *lineage.enqueued(), group(options))
    deduplicated = options.get("dedup_key") is not None
    keyed = deduplicated or callable(options.get("group_key"))
    make = partial(_keyed_op, values, _rule(options)) if keyed else partial(_lines_op, values)
    if not deduplicated and any(_rule(options)):
        raise BadArgumentError(
            "dedup_for or dedup_while is given without dedup_key", hint="Give the key, or leave both out."
        )
    most, most_bytes = (KEYED_MESSAGES, KEYED_BYTES) if deduplicated else (CHUNK_MESSAGES, CHUNK_BYTES)
    first = most if deduplicated or count is None or count <= most else min(FIRST_MESSAGES, most)
    return _chunks(batches, make, first, most, most_bytes)


def _chunks(
    batches: Iterable[Lines], make: Callable[[list[str]], Op[list[Enqueued]]], first: int, most: int, most_bytes: int
) -> Iterator[Op[list[Enqueued]]]:
    chunk: list[str] = []
    count = size = 0
    enough = first
    for batch in batches:
        chunk.append(batch.text)
        count += batch.messages
        size += len(batch.text)
        if count >= enough or size >= most_bytes:
            yield make(chunk)
            chunk, count, size = [], 0, 0
            enough = min(2 * enough, most)
    if chunk:
        yield make(chunk)


def _lines_op(values: tuple[object, ...], chunk: list[str]) -> Op[list[Enqueued]]:
    queue, *options = values
    lines = "\n".join(chunk)  # JSON texts have no line feed of their own
    return Op(ENQUEUE_LINES, (queue, lines, *options), _read_lines)


def _keyed_op(values: tuple[object, ...], rule: tuple[object, ...], chunk: list[str]) -> Op[list[Enqueued]]:
    queue, *options = values
    return Op(ENQUEUE_KEYED, (queue, "[" + ",".join(chunk) + "]", *options, *rule), _read)


def batches(payloads_: Iterable[T], codec: Codec[T], options: ManyOptions) -> Iterator[Lines]:
    """What `enqueue_many` takes, made from payloads as it is asked for; an error names the position, from 0.

    Raises:
        BadArgumentError: one payload, where an iterable of them belongs; or a key that is not made of each payload.
    """
    # what can be iterated over and is yet one value: its characters, keys or fields would become messages
    single = isinstance(payloads_, str | bytes | bytearray | memoryview | Mapping) or any(
        hasattr(type(payloads_), mark) for mark in ("_fields", "model_fields")
    )
    if single or not isinstance(payloads_, Iterable):
        raise BadArgumentError(
            f"payloads is one {type(payloads_).__name__}", hint="Give a list of payloads, or another iterable of them."
        )
    key_of = options.get("dedup_key")
    group_of = options.get("group_key")
    if key_of is None and not callable(group_of):
        return _encoded(iter(payloads_), codec)
    if key_of is not None and not callable(key_of):
        raise BadArgumentError(
            f"dedup_key is {key_of!r}: one key for many messages",
            hint="Give a function from a payload to its key, such as dedup_key=lambda payload: payload['id'].",
        )
    keys = {"dedup_key": key_of, "group_key": group_of if callable(group_of) else None}
    return _keyed(payloads_, codec, {name: of for name, of in keys.items() if of is not None})


def _encoded(values: Iterator[T], codec: Codec[T]) -> Iterator[Lines]:
    done = 0
    together = 1
    while batch := list(islice(values, together)):
        text = codec.encode_lines(batch, what=partial(_position, done))
        yield Lines(text, len(batch))
        done += len(batch)
        together = min(2 * together, TOGETHER_MESSAGES) if len(text) < TOGETHER_BYTES else 1


def _position(done: int, n: int) -> str:
    return f"payloads[{done + n}]"


def _keyed(values: Iterable[T], codec: Codec[T], keys: Mapping[str, Callable[[T], str | None]]) -> Iterator[Lines]:
    for n, value in enumerate(values):
        own = ""
        for option, key_of in keys.items():
            key = key_of(value)
            if key is not None:
                own += f',"{option}":{payloads.encode(text(f"{option} of payloads[{n}]", key))}'
        yield Lines(f'{{"payload":{codec.encode(value, what=_position(0, n))}{own}}}', 1)


def once(key: str, *, scope: str, tenant: str, keep: Duration) -> Op[bool]:
    """Whether this transaction is the first that brings the key."""
    return Op(
        "select postrow.once($1::text, scope => $2::text, tenant => $3::text, keep => $4::interval)",
        (text("key", key), text("scope", scope), name("tenant", tenant), duration("keep", keep)),
        single,
    )


__all__ = [
    "Lines",
    "ManyOptions",
    "Options",
    "PublishOptions",
    "an_id",
    "batches",
    "enqueue",
    "enqueue_many",
    "group",
    "new_id",
    "once",
    "shared_values",
]
