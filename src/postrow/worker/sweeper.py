"""Runs the sweep: any worker may, the database lets one at a time."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import psycopg

from postrow.drivers.psycopg3 import execute_async
from postrow.models import SweepStep
from postrow.ops import fleet
from postrow.worker.connections import Database, Weather
from postrow.worker.metrics import Meter

EVERY = 1.0  # seconds between looks for expired leases and targets, give or take a quarter
FULL_EVERY = 15  # of which one does all steps
# seconds after an outage until the first sweep: heartbeats come back within 5, and then renew leases that have ended
# meanwhile and that nobody has taken; what lives need not run twice
AFTER_OUTAGE = 6.0
PRESSING = ("leases", "targets")


class Sweeper:
    """Calls postrow.sweep, one step a call, until nothing more is to do; then again a second later."""

    def __init__(self, database: Database, weather: Weather, *, meter: Meter | None = None) -> None:
        self._database = database
        self._meter = meter
        self._weather = weather
        self._connected_before = False

    async def run(self) -> None:
        """Sweep until cancelled. Raises when the database is away: to be called again."""
        async with await self._database.connect("sweeper") as conn:
            if self._connected_before:
                await asyncio.sleep(AFTER_OUTAGE)
            self._connected_before = True
            for turn in itertools.count():
                for step in (None,) if turn % FULL_EVERY == 0 else PRESSING:
                    steps = await self._step(conn, step)
                    more = [done.step for done in steps if done.more]
                    while more:
                        again = await self._step(conn, more[0])
                        if not any(done.more for done in again):
                            more.pop(0)
                self._weather.fine("sweeper")
                await asyncio.sleep(EVERY * random.uniform(0.75, 1.25))  # noqa: S311  # jitter, not a secret

    async def _step(self, conn: psycopg.AsyncConnection[Any], step: str | None) -> list[SweepStep]:
        steps = await execute_async(conn, fleet.sweep(step))
        if self._meter is not None:
            for done in steps:
                self._meter.swept(done.step, done.done)
        return steps
