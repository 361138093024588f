"""Spans of producers, where the program traces with OpenTelemetry: a message carries the trace that it was made in.

A span can be active only where the program has loaded the library, so it is never loaded from here: without it this is
one look into a dict. The names are those of OpenTelemetry's semantic conventions for messaging, which are still in
development: https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

SYSTEM = "postrow"
LIBRARY = "opentelemetry.trace"
CARRIED = ("traceparent", "tracestate")  # W3C trace context


class Making(NamedTuple):
    """What is done: `enqueue`, `enqueue_many` or `publish`; to which queue or topic; with which id, if one is given."""

    operation: str
    destination: str
    id: UUID | None = None


def outgoing(headers: Mapping[str, Any] | None, making: Making, *, tenant: object) -> Mapping[str, Any] | None:
    """The headers of a message that is made here, with the trace context of a span for its making.

    Unchanged where no span is active, or where the caller has given a `traceparent`. Baggage is left out: it would be
    kept in the database with each message.
    """
    if LIBRARY not in sys.modules or (headers is not None and CARRIED[0] in headers):
        return headers
    from opentelemetry import trace  # noqa: PLC0415  # it is loaded already
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    if not trace.get_current_span().get_span_context().is_valid:
        return headers
    attributes: dict[str, str] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": making.operation,
        "messaging.operation.type": "create",
        "messaging.destination.name": making.destination,
        "messaging.postrow.tenant": str(tenant),
    }
    if making.id is not None:
        attributes["messaging.message.id"] = str(making.id)
    # Of the making alone: the statement that follows, and the commit, are spans of the database library's.
    span = trace.get_tracer(SYSTEM).start_span(
        f"{making.operation} {making.destination}", kind=trace.SpanKind.PRODUCER, attributes=attributes
    )
    context: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(context, trace.set_span_in_context(span))
    span.end()
    return {**(headers or {}), **context}
