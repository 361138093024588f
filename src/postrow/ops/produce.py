"""Ops of a producer: enqueue and enqueue_many."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypedDict, TypeVar
from uuid import UUID

from postrow import payload as payloads
from postrow.durations import Duration, moment, name, optional_duration, text, whole
from postrow.errors import BadArgumentError
from postrow.models import Enqueued
from postrow.ops.op import Op, Row
from postrow.payload import Codec

T = TypeVar("T")

ENQUEUE = """
select id, deduplicated from postrow.enqueue($1::text, $2::text::jsonb, tenant => $3::text,
    priority => $4::int, delay => $5::interval, available_at => $6::timestamptz, max_attempts => $7::int,
    target => $8::text, target_for => $9::interval, subject => $10::text, expires_at => $11::timestamptz,
    headers => $12::text::jsonb, id => $13::uuid)
"""

ENQUEUE_LINES = """
select id, deduplicated from postrow.enqueue_lines($1::text, $2::text, tenant => $3::text,
    priority => $4::int, delay => $5::interval, available_at => $6::timestamptz, max_attempts => $7::int,
    target => $8::text, target_for => $9::interval, subject => $10::text, expires_at => $11::timestamptz,
    headers => $12::text::jsonb) order by n
"""

CHUNK_MESSAGES = 2_000  # a statement holds so many messages at most ...
CHUNK_BYTES = 8_000_000  # ... and about so many bytes of JSON: both sides hold it in memory
TOGETHER_MESSAGES = 100  # so many payloads are encoded together at most ...
TOGETHER_BYTES = 100_000  # ... while so many had no more than so many bytes: their size is known when they are encoded


class Options(TypedDict, total=False):
    """The options of a message, as `postrow.enqueue` documents them."""

    tenant: str
    priority: int
    delay: Duration | None
    available_at: datetime | None
    max_attempts: int | None
    target: str | None
    target_for: Duration | None
    subject: str | None
    expires_at: datetime | None
    headers: Mapping[str, Any] | None


def _read(rows: Sequence[Row]) -> list[Enqueued]:
    return list(map(Enqueued._make, rows))


def _read_one(rows: Sequence[Row]) -> Enqueued:
    return _read(rows)[0]


def _option_values(options: Options) -> tuple[object, ...]:
    unknown = set(options) - set(Options.__annotations__)
    if unknown:
        raise BadArgumentError(
            f"unknown option {', '.join(sorted(unknown))}", hint=f"Options: {', '.join(Options.__annotations__)}."
        )
    headers = options.get("headers")
    if headers is not None and not isinstance(headers, Mapping):
        raise BadArgumentError(f"headers is {headers!r}", hint="Give a mapping of names to JSON values.")
    max_attempts, target, subject = options.get("max_attempts"), options.get("target"), options.get("subject")
    return (
        name("tenant", options.get("tenant", "default")),
        whole("priority", options.get("priority", 0), least=-32768, most=32767),
        optional_duration("delay", options.get("delay")),
        moment("available_at", options.get("available_at")),
        None if max_attempts is None else whole("max_attempts", max_attempts, least=1),
        None if target is None else name("target", target),
        optional_duration("target_for", options.get("target_for")),
        None if subject is None else text("subject", subject),
        moment("expires_at", options.get("expires_at")),
        None if headers is None else payloads.encode(dict(headers), what="headers"),
    )


def _id(value: UUID | None) -> UUID | None:
    if value is not None and not isinstance(value, UUID):
        raise BadArgumentError(f"id is {value!r}", hint="Give a uuid.UUID, or leave it out.")
    return value


def enqueue(queue: str, payload: str, options: Options, *, id_: UUID | None = None) -> Op[Enqueued]:
    """Put one message, its payload JSON text, into a queue."""
    return Op(ENQUEUE, (name("queue", queue), payload, *_option_values(options), _id(id_)), _read_one)


def new_id() -> UUID:
    """A UUIDv7 made by the client (RFC 9562, section 5.7): 48 bits of milliseconds, 12 of their fraction, 62 random.

    Chosen before the first try, it makes a second try safe: an id is one message.
    """
    milliseconds, nanoseconds = divmod(time.time_ns(), 1_000_000)
    fraction = nanoseconds * 4096 // 1_000_000
    return UUID(int=milliseconds << 80 | 7 << 76 | fraction << 64 | 2 << 62 | secrets.randbits(62))


class Lines(NamedTuple):
    """JSON texts, one a line, and how many."""

    text: str
    count: int


def enqueue_many(queue: str, batches: Iterable[Lines], options: Options) -> Iterator[Op[list[Enqueued]]]:
    """Put many messages into a queue: an op for about each 2,000 of them or 8 MB, made as they are asked for."""
    values = (name("queue", queue), *_option_values(options))
    chunk: list[str] = []
    count = size = 0
    for batch in batches:
        chunk.append(batch.text)
        count += batch.count
        size += len(batch.text)
        if count >= CHUNK_MESSAGES or size >= CHUNK_BYTES:
            yield _many(chunk, values)
            chunk, count, size = [], 0, 0
    if chunk:
        yield _many(chunk, values)


def _many(chunk: list[str], values: tuple[object, ...]) -> Op[list[Enqueued]]:
    queue, *options = values
    return Op(ENQUEUE_LINES, (queue, "\n".join(chunk), *options), _read)  # JSON texts have no line feed of their own


def encoded(payloads_: Iterable[T], codec: Codec[T]) -> Iterator[Lines]:
    """The JSON texts of many payloads, made as they are asked for; an error names the position, from 0.

    Raises:
        BadArgumentError: one payload, where an iterable of them belongs.
    """
    # what can be iterated over and is yet one value: its characters, keys or fields would become messages
    single = isinstance(payloads_, str | bytes | bytearray | memoryview | Mapping) or any(
        hasattr(type(payloads_), mark) for mark in ("_fields", "model_fields")
    )
    if single or not isinstance(payloads_, Iterable):
        raise BadArgumentError(
            f"payloads is one {type(payloads_).__name__}", hint="Give a list of payloads, or another iterable of them."
        )
    return _encoded(iter(payloads_), codec)


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


__all__ = ["Lines", "Options", "encoded", "enqueue", "enqueue_many", "new_id"]
