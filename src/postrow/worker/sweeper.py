"""Runs the sweep: any worker may, and one of a fleet does."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any
from uuid import UUID

import psycopg

from postrow.drivers.psycopg3 import execute_async
from postrow.models import SweepStep
from postrow.ops import fleet
from postrow.worker.connections import Database, Weather
from postrow.worker.metrics import Meter

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


class Sweeper:
    """When it is its turn, calls postrow.sweep, one step a call, until nothing more is to do; again a second later."""

    def __init__(self, database: Database, weather: Weather, *, worker: UUID, meter: Meter | None = None) -> None:
        self._database = database
        self._worker = worker
        self._meter = meter
        self._weather = weather
        self._connected_before = False

    async def run(self) -> None:
        """Sweep until cancelled. Raises when the database is away: to be called again."""
        async with await self._database.connect("sweeper") as conn:
            if self._connected_before:
                await asyncio.sleep(AFTER_OUTAGE)
            self._connected_before = True
            turns = itertools.count()
            waits = FIRST_ASK
            while True:
                pause = EVERY
                if await self._its_turn(conn):
                    await self._sweep(conn, full=next(turns) % FULL_EVERY == 0)
                else:
                    pause, waits = waits, ASK_EVERY
                self._weather.fine("sweeper")
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311  # jitter, not a secret

    async def _its_turn(self, conn: psycopg.AsyncConnection[Any]) -> bool:
        return await execute_async(conn, fleet.sweep_turn(self._worker))

    async def _sweep(self, conn: psycopg.AsyncConnection[Any], *, full: bool) -> None:
        for step in (None,) if full else PRESSING:
            steps = await self._step(conn, step)
            more = [done.step for done in steps if done.more]
            while more:
                if not await self._its_turn(conn):
                    return
                again = await self._step(conn, more[0])
                if not any(done.more for done in again):
                    more.pop(0)

    async def _step(self, conn: psycopg.AsyncConnection[Any], step: str | None) -> list[SweepStep]:
        steps = await execute_async(conn, fleet.sweep(step))
        if self._meter is not None:
            for done in steps:
                self._meter.swept(done.step, done.done)
        return steps
