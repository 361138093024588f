"""The worker: claims messages, runs their handlers, writes what became of them.

Parts: the claimer takes messages, the executor runs handlers, the acker writes outcomes, the heartbeat renews leases,
the listener hears taps, the sweeper makes promises true in the end, the supervisor keeps them alive.
"""

from postrow.worker.worker import Worker

__all__ = ["Worker"]
