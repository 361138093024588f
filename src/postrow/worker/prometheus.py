"""The page of metrics, in the formats of Prometheus; loaded only where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from postrow.models import QueueDepth
from postrow.worker.depths import Depths
from postrow.worker.metrics import Counts, Histogram, State

STATES = ("ready", "scheduled", "claimed", "dead")


class Page(Collector):
    """One worker's metrics, in a registry of its own: several workers of a process do not meet.

    Args:
        counts: what the worker has counted.
        state: how it is now.
        depths: what is in the database's queues; None while the database is not known.
        worker: its name.
        version: of the package.
    """

    def __init__(
        self,
        counts: Counts,
        *,
        state: Callable[[], State],
        depths: Callable[[], Depths | None],
        worker: str,
        version: str,
    ) -> None:
        self._counts = counts
        self._state = state
        self._depths = depths
        self._info = (worker, version)
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def describe(self) -> list[Metric]:
        """Nothing: no name is taken in a registry of our own."""
        return []

    def render(self, accept: str) -> tuple[str, bytes]:
        """The page's content type and text, in the format that the asker's Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        return content_type, encode(self.registry)

    def collect(self) -> Iterator[Metric]:
        """Every metric; those of which nothing is known now have no samples."""
        info = GaugeMetricFamily("postrow_worker_info", "This worker, always 1", labels=["worker", "version"])
        info.add_metric(self._info, 1)
        yield info
        yield from self._of_the_state(self._state())
        yield from self._of_the_work()
        depths = self._depths()
        yield from self._of_the_queues(depths.now() if depths is not None else None)

    def _of_the_state(self, state: State) -> Iterator[Metric]:
        running = GaugeMetricFamily("postrow_handlers_running", "Handlers that run now", labels=["queue"])
        database = GaugeMetricFamily(
            "postrow_database_up", "Whether a part of the worker has its database, 1 or 0", labels=["part"]
        )
        single = [
            GaugeMetricFamily("postrow_concurrency", "Messages that the worker handles at once, at most"),
            GaugeMetricFamily("postrow_held_messages", "Messages claimed whose outcome is not written yet"),
            GaugeMetricFamily("postrow_unwritten_outcomes", "Outcomes that wait to be written"),
            GaugeMetricFamily("postrow_loop_blocked_seconds", "For how long the event loop has owed a turn"),
            GaugeMetricFamily("postrow_worker_ready", "What /ready says, 1 or 0"),
        ]
        now = dict.fromkeys(self._counts.queues, 0)
        for consumer, number in list(state.running.items()):
            now[self._counts.labels.of(consumer.queue.name)] += number
        for queue, number in now.items():
            running.add_metric([queue], number)
        for part, up in state.database.items():
            database.add_metric([part], up)
        values = (state.concurrency, state.held, state.unwritten, state.loop_blocked_for, state.ready)
        for family, value in zip(single, values, strict=True):
            family.add_metric([], value)
        yield from (running, database, *single)

    def _of_the_work(self) -> Iterator[Metric]:
        queues = list(self._counts.queues.items())
        claimed = CounterMetricFamily("postrow_claimed_messages", "Messages claimed", labels=["queue"])
        ended = CounterMetricFamily(
            "postrow_outcomes", "Messages that left this worker, by how", labels=["queue", "outcome"]
        )
        lost = CounterMetricFamily(
            "postrow_leases_lost", "Messages that another worker took while this one held them", labels=["queue"]
        )
        for queue, counts in queues:
            claimed.add_metric([queue], counts.claimed)
            lost.add_metric([queue], counts.lost)
            for end, number in counts.ends.items():
                ended.add_metric([queue, end], number)
        swept = CounterMetricFamily("postrow_sweep_findings", "What this worker's sweep found to do", labels=["step"])
        for step, number in list(self._counts.sweep.items()):
            swept.add_metric([step], number)
        yield from (claimed, ended, lost, swept)
        yield _histogram("postrow_claim_seconds", "What a claim took", ["queue"], (([q], c.claims) for q, c in queues))
        yield _histogram(
            "postrow_tap_to_claim_seconds",
            "From a tap to the answer of the claim that took something after it",
            ["queue"],
            (([q], c.taps) for q, c in queues),
        )
        yield _histogram(
            "postrow_time_in_queue_seconds",
            "From a message's due time to the start of its handler",
            ["queue"],
            (([q], c.waits) for q, c in queues),
        )
        yield _histogram(
            "postrow_handler_seconds",
            "What a handler took, by what became of its message",
            ["queue", "outcome"],
            (([q, end], h) for q, c in queues for end, h in c.handlers.items() if any(h.counts)),
        )

    def _of_the_queues(self, found: tuple[list[QueueDepth], float] | None) -> Iterator[Metric]:
        messages = GaugeMetricFamily(
            "postrow_messages", "Messages in the database, by state", labels=["queue", "state"]
        )
        oldest = GaugeMetricFamily(
            "postrow_oldest_ready_seconds", "How long the oldest ready message has been due, or 0", labels=["queue"]
        )
        workers = GaugeMetricFamily(
            "postrow_queue_workers", "Workers of the queue that were heard of in the last minute", labels=["queue"]
        )
        age = GaugeMetricFamily("postrow_depth_age_seconds", "How old the figures of the database's queues are")
        if found is not None:
            depths, seconds = found
            age.add_metric([], seconds)
            for queue, depth in _labelled(depths, self._counts).items():
                for state, number in zip(STATES, depth[:4], strict=True):
                    messages.add_metric([queue, state], number)
                oldest.add_metric([queue], depth[4])
                workers.add_metric([queue], depth[5])
        yield from (messages, oldest, workers, age)


def _labelled(depths: Iterable[QueueDepth], counts: Counts) -> dict[str, tuple[float, ...]]:
    """Ready, scheduled, claimed, dead, the oldest's age and workers, by label; those under one label together."""
    found: dict[str, tuple[float, ...]] = {}
    for d in depths:
        label = counts.labels.of(d.queue)
        *sums, oldest, workers = found.get(label, (0, 0, 0, 0, 0, 0))
        sums = [a + b for a, b in zip(sums, (d.ready, d.scheduled, d.claimed, d.dead), strict=True)]
        found[label] = (*sums, max(oldest, d.oldest_ready), max(workers, d.workers))
    return found


def _histogram(
    name: str, text: str, labels: list[str], values: Iterable[tuple[list[str], Histogram]]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=labels)
    for given, histogram in values:
        bounds = [*map(str, histogram.bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
        family.add_metric(given, buckets=buckets, sum_value=histogram.total)
    return family
