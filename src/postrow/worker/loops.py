"""The event loop of a worker that has none of the caller's, and what is waited for when it ends."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from postrow.worker.threads import Threads

T = TypeVar("T")

YOUNG = 10_000  # new objects after which the garbage collector looks at them
END_BOUND = 2.0  # seconds for tasks that are left to end when they are cancelled


def new_event_loop() -> asyncio.AbstractEventLoop:
    """One of uvloop's where that is installed, else one of asyncio's."""
    try:
        import uvloop  # noqa: PLC0415  # an extra
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, int]) -> int:
    """As asyncio.run, in such a loop, but neither tasks nor threads that do not end are waited for."""
    loop = new_event_loop()
    executor = _Daemons()
    loop.set_default_executor(executor)
    try:
        with collecting_rarely():
            return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(_end_tasks())
        loop.run_until_complete(loop.shutdown_asyncgens())
        executor.shutdown()
        loop.close()


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let the garbage collector look at new objects after 10,000 of them, where it would sooner.

    A claim brings thousands, which are gone without its help when their messages are done: a fifth of what a worker
    spends on a message were looks that found nothing. One that is off, or looks more rarely, is left as it is.
    """
    young, *older = gc.get_threshold()
    if young:
        gc.set_threshold(max(young, YOUNG), *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)


class _Daemons(ThreadPoolExecutor):
    """Where asyncio.to_thread of a handler runs. asyncio's own threads are waited for at the process's end, too."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)  # of which it starts none
        self._pool = Threads(min(32, (os.cpu_count() or 1) + 4), name="asyncio")  # as many as there are in asyncio's
        self._submitting = threading.Lock()

    def submit(self, fn: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        """As any executor."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **options))
            except BaseException as error:  # noqa: BLE001  # it is the caller's
                future.set_exception(error)

        with self._submitting:
            self._pool.submit(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Take no more. What runs is not waited for."""
        self._pool.close()


async def until(condition: Callable[[], bool], bound: float) -> None:
    """Wait until a condition holds, looking a hundred times a second, `bound` seconds at most."""
    end = asyncio.get_running_loop().time() + bound
    while not condition() and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110  # counters, not an event
        await asyncio.sleep(0.01)


async def in_daemon_thread(work: Callable[[], None], bound: float) -> None:
    """Do what blocks on a thread of its own, which is waited for `bound` seconds; an executor's may all be taken."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    await until(lambda: not thread.is_alive(), bound)


async def _end_tasks() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=END_BOUND)
