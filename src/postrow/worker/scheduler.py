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

AT_ONCE = 100  # schedules in one transaction, beside those that could not be fired before
EVERY = 5.0  # seconds between looks at most: a schedule may be declared elsewhere


class Scheduler:
    """One loop on one connection."""

    def __init__(self, database: Database, weather: Weather) -> None:
        self._database = database
        self._weather = weather
        self._wrong: dict[tuple[str, str], str] = {}  # what was said of schedules that cannot be fired

    async def run(self) -> None:
        """Until cancelled. Raises when the database is away: to be called again."""
        async with await self._database.connect("scheduler") as conn:
            while True:
                wait = await execute_async(conn, schedules.next_in())
                self._weather.fine("scheduler")
                if wait is not None and wait <= 0:
                    if await self._fire(conn):
                        continue
                    wait = 1.0  # another has it, or something is wrong with it
                await asyncio.sleep(EVERY if wait is None else min(wait, EVERY))

    async def _fire(self, conn: psycopg.AsyncConnection[Any]) -> bool:
        """Fire all that are due; whether any was. One that cannot be fired stays due, and keeps no other back."""
        fired = False
        async with conn.transaction():
            for schedule in await execute_async(conn, schedules.due(AT_ONCE + len(self._wrong))):
                key = (schedule.tenant, schedule.name)
                try:
                    async with conn.transaction():
                        await self._fire_one(conn, schedule)
                except Exception as error:  # a cron expression, a time zone that this machine has not, a timeout, ...
                    if conn.closed:  # it is the database that is away
                        raise
                    said = f"{type(error).__name__}: {error}"
                    if self._wrong.get(key) != said:
                        self._wrong[key] = said
                        log.error("schedule %s / %s cannot be fired: %s", *key, said)  # noqa: TRY400  # one line
                else:
                    self._wrong.pop(key, None)
                    fired = True
        return fired

    async def _fire_one(self, conn: psycopg.AsyncConnection[Any], schedule: schedules.Schedule) -> None:
        assert schedule.next_at is not None
        times, next_at = schedule.times.due(schedule.next_at, schedule.now, schedule.missed)
        new = await execute_async(conn, schedules.fire(schedule, times, next_at))
        missed = logging.DEBUG if len(times) == 1 else logging.INFO
        log.log(missed, "schedule %s / %s: %s enqueued into %s", schedule.tenant, schedule.name, new, schedule.queue)
