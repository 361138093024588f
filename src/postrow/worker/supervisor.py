"""Keeps a worker's loops alive: none dies silently, each begins again with back-off."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from postrow.worker.connections import DATABASE_ERRORS, Backoff, Weather

log = logging.getLogger("postrow.worker")

STEADY = 5.0  # seconds that a loop has to run before its failures count from the beginning again


class Supervisor:
    """Runs each part as a task of its own and restarts what fails, until the part returns by itself."""

    def __init__(self, weather: Weather) -> None:
        self._weather = weather
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def keep(self, name: str, run: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Start a part."""
        task = asyncio.create_task(self._keep(name, run), name=f"postrow-{name}")
        self.tasks[name] = task
        return task

    @property
    def dead(self) -> list[str]:
        """Parts that have ended."""
        return [name for name, task in self.tasks.items() if task.done()]

    async def end(self, *names: str, timeout: float) -> None:  # noqa: ASYNC109  # a bound, not a failure
        """Cancel parts, and wait until they are gone, `timeout` seconds at most: a frozen server can hold them."""
        tasks = [self.tasks[name] for name in names if name in self.tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    async def _keep(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        backoff = Backoff()
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await run()
            except asyncio.CancelledError:
                raise
            except DATABASE_ERRORS as error:
                self._weather.failed(name, error)
            except Exception:
                log.exception("the %s failed, and begins again", name)
            else:
                return
            if loop.time() - began > STEADY:
                backoff.reset()
            await self._pause(backoff.pause())

    async def _pause(self, seconds: float) -> None:
        """Wait, or less when another part has found the database again."""
        began = time.monotonic()
        while (left := began + seconds - time.monotonic()) > 0 and self._weather.cleared < began:  # noqa: ASYNC110  # set by a thread, too
            await asyncio.sleep(min(left, 0.25))
