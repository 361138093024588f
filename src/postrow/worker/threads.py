"""Threads for handlers. They are daemons: a handler that never ends must not keep the process from ending."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Work = Callable[[], None]


class Threads:
    """Runs work on threads, at most `most` at once; a thread is started when none is idle, and kept.

    The standard library's pool would do, but at the interpreter's end it waits for what runs, for ever if need be.
    """

    def __init__(self, most: int, *, name: str = "postrow-handler") -> None:
        self._most = most
        self._name = name
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def submit(self, work: Work) -> None:
        """Run `work`, which must not raise, on one of the threads. From one thread only.

        Raises:
            RuntimeError: there is no thread, and none can be started.
        """
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                if not self._threads:
                    raise
                # it waits for one of those that there are
            else:
                self._threads.append(thread)
        self._work.put(work)

    def close(self) -> None:
        """Let each thread end when its work is done. Waits for none."""
        for _ in self._threads:
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # it holds a message: not until the next one comes
            self._idle.release()
