"""Enqueues what is scheduled, when it is due. Every worker may: the row's lock makes it one at a time."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import psycopg

from postrow.drivers.psycopg3 import execute_async
from postrow.ops import schedules
from postrow.worker.connections import Database, Weather

log = logging.getLogger("postrow.worker")

EVERY = 5.0  # seconds between looks at most: a schedule may be declared elsewhere


class Scheduler:
    """One loop on one connection."""

    def __init__(self, database: Database, weather: Weather) -> None:
        self._database = database
        self._weather = weather

    async def run(self) -> None:
        """Until cancelled. Raises when the database is away: to be called again."""
        async with await self._database.connect("scheduler") as conn:
            while True:
                wait = await execute_async(conn, schedules.next_in())
                self._weather.fine("scheduler")
                if wait is not None and wait <= 0:
                    if await self._fire(conn):
                        continue
                    wait = 1.0  # another has it
                await asyncio.sleep(EVERY if wait is None else min(wait, EVERY))

    async def _fire(self, conn: psycopg.AsyncConnection[Any]) -> bool:
        async with conn.transaction():
            found = await execute_async(conn, schedules.due())
            for schedule in found:
                assert schedule.next_at is not None
                times, next_at = schedule.times.due(schedule.next_at, schedule.now, schedule.missed)
                new = await execute_async(conn, schedules.fire(schedule, times, next_at))
                missed = logging.DEBUG if len(times) == 1 else logging.INFO
                log.log(
                    missed, "schedule %s / %s: %s enqueued into %s", schedule.tenant, schedule.name, new, schedule.queue
                )
        return bool(found)
