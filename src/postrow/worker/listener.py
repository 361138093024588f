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
            await self._hear_until_quiet(conn)
            await conn.execute("select")  # a connection that died without a word shows itself here
            self._hear_all(conn)  # what came behind the answer has been read with it, as a rule

    async def _hear_until_quiet(self, conn: psycopg.AsyncConnection[Any]) -> None:
        """Hear taps where the socket is read, without a task in between, until none came for a while.

        conn.notifies() does as much, but wakes ten times a second: more than all else that an idle worker does.
        """
        loop = asyncio.get_running_loop()
        failed = loop.create_future()
        last = loop.time()

        def readable() -> None:
            nonlocal last
            last = loop.time()
            try:
                conn.pgconn.consume_input()
                self._hear_all(conn)
            except Exception as error:  # noqa: BLE001  # the connection is lost: it is the task's
                loop.remove_reader(fd)
                failed.set_exception(error)

        fd = conn.fileno()
        loop.add_reader(fd, readable)
        try:
            while (left := last + QUIET - loop.time()) > 0:
                await asyncio.wait({failed}, timeout=left)
                if failed.done():
                    failed.result()
        finally:
            loop.remove_reader(fd)

    def _hear_all(self, conn: psycopg.AsyncConnection[Any]) -> None:
        while notify := conn.pgconn.notifies():
            self._hear(psycopg.Notify("postrow", notify.extra.decode(errors="replace"), notify.be_pid))

    def _hear(self, notify: psycopg.Notify) -> None:
        queue, _, tenant = notify.payload.partition(" ")
        self._tapped(queue, tenant)
