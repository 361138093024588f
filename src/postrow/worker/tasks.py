"""Tasks of the event loop for async handlers, as few as can be: each costs as much as all else of a short handler."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")

BREATH = 0.005  # seconds after which a task that has not waited for anything lets the loop do something else


class Tasks(Generic[T]):
    """Runs units of work, each as if it had a task of its own.

    It has one as soon as it waits for anything: the others that are there then get another. Those that end without
    waiting share one, as long as they leave it as it was: a unit that sets a context variable, names its task, wants to
    be called back at its end, or cancels it, is the last of it. What a unit keeps elsewhere by asyncio.current_task()
    the next one finds.

    Args:
        run: the coroutine function that does one unit of work; it must not raise.
    """

    def __init__(self, run: Callable[[T], Coroutine[Any, Any, None]]) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._ready: deque[T] = deque()
        self._turn = 0  # the task that takes from `_ready` now is the one of this turn
        self._taken = False  # there is one
        # the one that a unit begins in: asyncio.current_task() takes longer
        self.current: asyncio.Task[Any] | None = None

    def submit(self, unit: T) -> None:
        """Run it, in its turn."""
        self._ready.append(unit)
        if not self._taken:
            self._launch()

    def _launch(self) -> None:
        self._taken = True
        self._loop.create_task(self._work(self._turn), context=self._context.copy())
        self._loop.call_soon(self._pass_on, self._turn)  # right after the task's first step

    def _pass_on(self, turn: int) -> None:
        """The task of this turn has ended, or what it runs waits for something: another takes what is left."""
        if turn != self._turn:
            return
        self._turn += 1
        self._taken = False
        if self._ready:
            self._launch()

    async def _work(self, turn: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.current = task
        name = task.get_name()
        before = [*contextvars.copy_context().items()]
        until = time.monotonic() + BREATH
        while self._ready and turn == self._turn:
            await self._run(self._ready.popleft())
            if (
                task.cancelling()
                or _has_changed(before)
                or getattr(task, "_callbacks", None)  # a task of a factory's may lack it
                or task.get_name() != name
                or time.monotonic() > until
            ):
                return


def _has_changed(before: Sequence[tuple[contextvars.ContextVar[Any], Any]]) -> bool:
    """Whether a variable was set since. Not `==` of contexts: a value may equal another, or refuse to be compared."""
    now = contextvars.copy_context()
    if len(now) != len(before):
        return True
    for variable, value in before:  # noqa: SIM110  # none as a rule: a generator would cost more than all else here
        if now.get(variable, _UNSET) is not value:
            return True
    return False


_UNSET = object()
