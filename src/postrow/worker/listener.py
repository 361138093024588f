"""Hears taps on a connection of its own. Losing one costs latency and nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import psycopg

from postrow.worker.connections import Database, Weather

log = logging.getLogger("postrow.worker")

QUIET = 30.0  # seconds without a tap after which the connection is tried


class Listener:
    """LISTEN first, then a full look; then a call for each tap.

    Args:
        database: a direct one: through a pooler in transaction mode LISTEN hears nothing, and it says so and waits.
        connected: called when taps can be heard (again): what was committed before needs a look.
        tapped: called with queue and tenant. A tap may be forged: nothing depends on it.
    """

    def __init__(
        self,
        database: Database,
        weather: Weather,
        *,
        connected: Callable[[], None],
        tapped: Callable[[str, str], None],
    ) -> None:
        self._database = database
        self._weather = weather
        self._connected = connected
        self._tapped = tapped

    async def run(self) -> None:
        """Listen until cancelled. Raises when the connection is lost: to be called again."""
        if not self._database.shared:
            async with await self._database.connect("listener") as conn:
                if not self._database.shared:  # which that connection has found out
                    await self._listen(conn)
        # in a session of nobody's, LISTEN would be heard by strangers if by anyone
        self._weather.fine("listener")
        log.warning(
            "no taps: a pooler is before the database that shares sessions out (or may do so: its mode could not be "
            "told), and LISTEN hears nothing through it. Messages are found by looking, each poll interval. "
            "Give --listen-dsn a DSN that leads to Postgres itself, or choose --transport poll"
        )
        await asyncio.Event().wait()

    async def _listen(self, conn: psycopg.AsyncConnection[Any]) -> None:
        conn.add_notify_handler(self._hear)  # those that come with the answers below
        await conn.execute("listen postrow")
        self._weather.fine("listener")
        self._connected()
        while True:
            if await _readable(conn, QUIET):
                conn.pgconn.consume_input()
                while notify := conn.pgconn.notifies():
                    self._hear(psycopg.Notify("postrow", notify.extra.decode(errors="replace"), notify.be_pid))
            else:
                await conn.execute("select")  # a connection that died without a word shows itself here

    def _hear(self, notify: psycopg.Notify) -> None:
        queue, _, tenant = notify.payload.partition(" ")
        self._tapped(queue, tenant)


async def _readable(conn: psycopg.AsyncConnection[Any], timeout: float) -> bool:  # noqa: ASYNC109  # as a result
    """Whether the server sends something within so many seconds.

    conn.notifies() does the same, but wakes ten times a second: more than all else that an idle worker does.
    """
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    fd = conn.fileno()
    loop.add_reader(fd, came.set)
    try:
        async with asyncio.timeout(timeout):
            await came.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
    return True
