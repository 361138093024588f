"""SIGTERM and SIGINT: the first stops a worker gracefully, the second ends the process at once."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

log = logging.getLogger("postrow.worker")


@contextlib.contextmanager
def stopping_on_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """In the main thread: call `stop` with the name of the first signal. Elsewhere: nothing.

    Plain handlers, not the event loop's: they run also while a handler's code blocks the loop, so that the second
    signal works then too. So `stop` may run in the middle of anything: it only sets flags.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = False

    def received(number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        if seen:
            with contextlib.suppress(Exception):  # a log line that was being written when the signal came
                log.warning("second signal: ending at once; what is held comes back when its leases end")
            os._exit(128 + number)
        seen = True
        stop(signal.Signals(number).name)

    before = {number: signal.signal(number, received) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: it was set by code that is not Python's, and cannot be set again from here
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
