"""For the tests of applications that use Postrow: run what is queued, look at it, move the clock, make databases.

Nothing in here needs pytest; its fixtures are in `postrow.testing.fixtures`. Nothing is a stand-in either: messages go
through a real Postgres, its functions and the worker's own code.
"""

from postrow.testing.clocks import Clock, clock
from postrow.testing.databases import Databases
from postrow.testing.draining import drain, drain_async, register
from postrow.testing.outcomes import Drained, Handled
from postrow.testing.queued import QueuedMessage, enqueued

__all__ = [
    "Clock",
    "Databases",
    "Drained",
    "Handled",
    "QueuedMessage",
    "clock",
    "drain",
    "drain_async",
    "enqueued",
    "register",
]
