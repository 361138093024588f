"""What runs between the start and the end of a worker, and how it is stopped in the right order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from postrow.worker.acker import Acker
from postrow.worker.claimer import Claimer
from postrow.worker.connections import DATABASE_ERRORS
from postrow.worker.executor import Executor
from postrow.worker.heartbeat import Heartbeat
from postrow.worker.loops import until
from postrow.worker.slots import Slots
from postrow.worker.supervisor import Supervisor
from postrow.worker.transactions import Transactions

log = logging.getLogger("postrow.worker")

STOP_BOUND = 10.0  # seconds for the last outcomes to be written, beyond the grace
CANCEL_BOUND = 2.0  # seconds for cancelled handlers, and cancelled parts, to clean up
FAREWELL_BOUND = 5.0  # seconds for the heartbeat to say that the worker has gone
BUSY_BOUND = 2.0  # of them for outcomes of messages that others have locked


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one worker, from when they are built until they have ended."""

    slots: Slots
    executor: Executor
    acker: Acker
    claimer: Claimer
    heartbeat: Heartbeat
    supervisor: Supervisor
    transactions: Transactions

    async def wind_down(self, grace: float) -> None:
        """Claim no more, let handlers finish, release the rest, write all outcomes. The heartbeat goes on meanwhile."""
        executor, acker = self.executor, self.acker
        self.claimer.stop()
        executor.stop()
        await until(lambda: not self.claimer.claiming, CANCEL_BOUND)
        await self.supervisor.end("claimer", "listener", timeout=CANCEL_BOUND)
        with contextlib.suppress(*DATABASE_ERRORS, TimeoutError):
            async with asyncio.timeout(CANCEL_BOUND):
                await self.claimer.give_back()
        await until(lambda: executor.total == 0, grace)
        left = [slot for slot in self.slots.all() if not slot.ended and slot.outcome is None]
        if left:
            log.warning("%s handlers did not finish within the grace: their messages are released", len(left))
            for slot in left:
                executor.release(slot)
            await until(lambda: executor.total == 0, CANCEL_BOUND)
            for slot in left:
                executor.abandon(slot)
        acker.close()
        await until(lambda: acker.pending == acker.pending_busy, STOP_BOUND)
        if acker.pending == acker.pending_busy:
            await until(lambda: acker.pending == 0, BUSY_BOUND)
        if acker.pending:
            log.error("%s outcomes could not be written: these messages come back when their leases end", acker.pending)

    async def end(self) -> None:
        """Whatever has become of them: let go of tasks, threads and connections."""
        await self.supervisor.end(*self.supervisor.tasks, timeout=CANCEL_BOUND)
        self.executor.close()
        await self.transactions.close()
        self.heartbeat.stop()
        await until(lambda: not self.heartbeat.alive, FAREWELL_BOUND)
