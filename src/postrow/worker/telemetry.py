"""What a worker shows of itself to others' tools: its metrics, where their library is installed, and spans."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from postrow.queues import Consumer
from postrow.worker.connections import Database
from postrow.worker.depths import Depths
from postrow.worker.health import Metrics
from postrow.worker.metrics import Counts, State


class Telemetry:
    """Metrics are counted only where they can be asked for: with a health port, and the library.

    Args:
        consumers: the worker's.
        worker: its name.
        version: the package's.
        asked_for: whether there is a port.
        state: gives how the worker is now, from any thread.
    """

    def __init__(
        self,
        consumers: Sequence[Consumer],
        *,
        worker: str,
        version: str,
        asked_for: bool,
        state: Callable[[], State],
    ) -> None:
        self.meter: Counts | None = None
        self.metrics: Metrics | None = None
        self._depths: Depths | None = None
        self._queues = len({consumer.queue.name for consumer in consumers})
        if not asked_for:
            return
        try:
            from postrow.worker.prometheus import Page  # noqa: PLC0415  # the library may not be installed
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "prometheus_client":
                raise
            return
        counts = Counts(consumers)
        self.meter = counts
        page = Page(counts, state=state, depths=lambda: self._depths, worker=worker, version=version)
        self.metrics = page.render

    def found(self, database: Database) -> None:
        """The worker knows its database: depths can be looked up there."""
        self._depths = Depths(database, queues=self._queues)
