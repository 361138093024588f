"""Runs the sweep: any worker may, and one of a fleet does."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from typing import Any
from uuid import UUID

import psycopg

from postrow.drivers.psycopg3 import execute_async
from postrow.errors import PostrowError
from postrow.models import SweepStep
from postrow.ops import fleet
from postrow.worker.connections import Database, Weather, one_line
from postrow.worker.metrics import Meter

log = logging.getLogger("postrow.worker")

EVERY = 1.0  # seconds between looks for expired leases and targets, give or take a quarter
# seconds between the questions of those whose turn it is not, give or take a quarter. A sweeper that has died is missed
# after 2.5 s, so what it would have taken back comes 15 s late at most, and 3 s in a large fleet; its own leases have
# longer to go, as a rule. That each of 200 workers sweeps, or asks, every second would cost a seventh of a core, or a
# fiftieth.
ASK_EVERY = 10.0
FIRST_ASK = 2.6  # until the second question: the one that had the last turn may just have died
FULL_EVERY = 15  # of which one does all steps
# seconds after an outage until the first sweep: heartbeats come back within 5, and then renew leases that have ended
# meanwhile and that nobody has taken; what lives need not run twice
AFTER_OUTAGE = 6.0
PRESSING = ("leases", "targets")
OTHERS = tuple(step for step in fleet.SWEEP_STEPS if step not in PRESSING)


class Sweeper:
    """When it is its turn, calls postrow.sweep, one step a call, until nothing more is to do; again a second later."""

    def __init__(self, database: Database, weather: Weather, *, worker: UUID, meter: Meter | None = None) -> None:
        self._database = database
        self._worker = worker
        self._meter = meter
        self._weather = weather
        self._connected_before = False
        self._turns = itertools.count()
        self._wrong: dict[str, str] = {}  # what was said of steps that fail

    async def run(self) -> None:
        """Sweep until cancelled. Raises when the database is away: to be called again."""
        async with await self._database.connect("sweeper") as conn:
            begins_at = time.monotonic() + (AFTER_OUTAGE if self._connected_before else 0.0)
            self._connected_before = True
            waits = FIRST_ASK
            while True:
                if await self._its_turn(conn):
                    if time.monotonic() >= begins_at:
                        await self._sweep(conn, full=next(self._turns) % FULL_EVERY == 0)
                    pause = EVERY
                else:
                    pause, waits = waits, ASK_EVERY
                self._weather.fine("sweeper")
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311  # jitter, not a secret

    async def _its_turn(self, conn: psycopg.AsyncConnection[Any]) -> bool:
        return await execute_async(conn, fleet.sweep_turn(self._worker))

    async def _sweep(self, conn: psycopg.AsyncConnection[Any], *, full: bool) -> None:
        for step in PRESSING:
            if not await self._finish(conn, step):
                return
        for step in OTHERS if full else ():
            try:
                if not await self._finish(conn, step):
                    return
            except (psycopg.Error, PostrowError) as error:  # of its own, as a partition that another role owns
                if conn.closed:
                    raise
                said = one_line(error)
                if self._wrong.get(step) != said:
                    self._wrong[step] = said
                    log.warning("the step %s of the sweep failed, the others go on: %s", step, said)
            else:
                self._wrong.pop(step, None)

    async def _finish(self, conn: psycopg.AsyncConnection[Any], step: str) -> bool:
        """Do one step until nothing more is to do. False: another has the turn now."""
        while any(done.more for done in await self._step(conn, step)):
            if not await self._its_turn(conn):
                return False
        return True

    async def _step(self, conn: psycopg.AsyncConnection[Any], step: str) -> list[SweepStep]:
        steps = await execute_async(conn, fleet.sweep(step))
        if self._meter is not None:
            for done in steps:
                self._meter.swept(done.step, done.done)
        return steps
