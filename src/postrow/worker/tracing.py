"""Whether a worker's handlers are traced."""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from postrow.models import Message
from postrow.ops.tracing import LIBRARY
from postrow.worker.slots import Slot

log = logging.getLogger("postrow.worker")


class Tracing(Protocol):
    """Makes a span of each run of a handler."""

    def process(self, slot: Slot, message: Message[Any]) -> AbstractContextManager[object]:
        """What is entered around the handler, in its own task or thread."""


class _Untraced:
    """Makes none."""

    _nothing = nullcontext()

    def process(self, slot: Slot, message: Message[Any]) -> AbstractContextManager[object]:  # noqa: ARG002
        """Nothing."""
        return self._nothing


UNTRACED: Tracing = _Untraced()


def tracing(worker: str) -> Tracing:
    """How a worker that starts now traces: not at all, unless the program has set up OpenTelemetry."""
    if LIBRARY not in sys.modules:
        return UNTRACED
    from postrow.worker import spans  # noqa: PLC0415  # the library is there, since it is loaded

    if not spans.set_up():
        return UNTRACED
    log.info("handlers are traced with OpenTelemetry")
    return spans.Spans(worker)
