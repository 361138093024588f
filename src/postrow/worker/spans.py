"""Spans of handlers, made with OpenTelemetry; loaded only where the program traces.

The names are those of OpenTelemetry's semantic conventions for messaging, which are still in development.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from postrow.models import Message, Snooze
from postrow.ops.tracing import CARRIED, SYSTEM
from postrow.worker.slots import Slot

log = logging.getLogger("postrow.worker")


def set_up() -> bool:
    """Whether spans go anywhere: what the API gives without an SDK makes none, at 10 microseconds each."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


class Spans:
    """Spans named `process <queue>`, of the kind consumer."""

    def __init__(self, worker: str) -> None:
        self._tracer = trace.get_tracer(SYSTEM)
        self._worker = worker
        self._carrier = TraceContextTextMapPropagator()

    def begin(self, slots: Sequence[Slot], messages: Sequence[Message[Any]]) -> _Active | None:
        """A child of the span that made the message, and linked to it; without one the beginning of a new trace.

        The conventions ask for the link, and allow the parent where a span is of one message. A span around the
        worker itself is no parent: it would collect the messages of days. Of many messages it is linked to all.
        """
        try:
            return _Active(self._started(slots[0], messages))
        except Exception:  # a sampler's or exporter's own code: no reason to fail a message
            log.exception("no span could be made of a handler's run")
            return None

    def _started(self, slot: Slot, messages: Sequence[Message[Any]]) -> trace.Span:
        nowhere = context.Context()
        made_in = [self._carrier.extract(_carried(message.headers), nowhere) for message in messages]
        creations = [trace.get_current_span(made).get_span_context() for made in made_in]
        message = messages[0]
        attributes: dict[str, str | int] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": message.queue,
            "messaging.consumer.group.name": slot.consumer.name,
            "messaging.client.id": self._worker,
        }
        if slot.call is None:
            attributes["messaging.message.id"] = str(message.id)
            attributes["messaging.postrow.tenant"] = message.tenant
            attributes["messaging.postrow.message.attempt"] = message.attempt
        else:
            attributes["messaging.batch.message_count"] = len(messages)
        return self._tracer.start_span(
            f"process {message.queue}",
            context=made_in[0] if slot.call is None else nowhere,
            kind=trace.SpanKind.CONSUMER,
            links=[trace.Link(creation) for creation in creations if creation.is_valid],
            attributes=attributes,
        )


class _Active:
    """A span that is the current one while a handler runs, and ends with it."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._token = context.attach(trace.set_span_in_context(span))

    def end(self, error: BaseException | None) -> None:
        """The handler has returned, or raised this."""
        context.detach(self._token)
        try:
            # a snooze is no failure; nor is a cancellation, by which a worker that stops gives a message back
            if error is not None and not isinstance(error, Snooze | asyncio.CancelledError):
                self._failed(error)
            self._span.end()
        except Exception:  # as above; or the error's own str()
            log.exception("the span of a handler's run could not be ended")

    def _failed(self, error: BaseException) -> None:
        name = type(error).__qualname__
        self._span.set_attribute("error.type", name)
        self._span.set_status(trace.StatusCode.ERROR, f"{name}: {error}"[:800])
        self._span.record_exception(error)


def _carried(headers: Mapping[str, Any]) -> dict[str, str]:
    """The trace context among a message's headers, whose values may be anything."""
    return {name: value for name in CARRIED if isinstance(value := headers.get(name), str)}
