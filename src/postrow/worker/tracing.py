"""Whether a worker's handlers are traced."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from postrow.models import Message
from postrow.ops.tracing import LIBRARY
from postrow.worker.slots import Slot

log = logging.getLogger("postrow.worker")


class RunSpan(Protocol):
    """The span of one run of a handler."""

    def end(self, error: BaseException | None) -> None:
        """The handler has returned, or raised this; called in its own task or thread."""


class Tracing(Protocol):
    """Makes a span of each run of a handler."""

    def begin(self, slots: Sequence[Slot], messages: Sequence[Message[Any]]) -> RunSpan | None:
        """Begin one, as the current span; called in the handler's own task or thread. Of one message, or of many."""


def tracing(worker: str) -> Tracing | None:
    """How a worker that starts now traces: None, unless the program has set up OpenTelemetry."""
    if LIBRARY not in sys.modules:
        return None
    from postrow.worker import spans  # noqa: PLC0415  # the library is there, since it is loaded

    if not spans.set_up():
        return None
    log.info("handlers are traced with OpenTelemetry")
    return spans.Spans(worker)
