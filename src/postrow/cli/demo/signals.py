"""What ends the demo early: it cleans up first, and is not hurried meanwhile."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def unwinding() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind the block as Ctrl-C does; one that comes while it unwinds, or after it, is ignored.

    A clean-up takes a second or two, and half of one would leave processes behind.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    wanted = [number for number in _ENDING if before[number] is not signal.SIG_IGN]  # nohup stays nohup

    def end(number: int, _frame: FrameType | None) -> None:
        ignore()
        if _deferred.on:
            _deferred.number = number
        else:
            _raise(number)

    for number in wanted:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in wanted:
            signal.signal(number, before[number])


@contextmanager
def deferred() -> Iterator[None]:
    """A signal that comes while the block runs unwinds at its end: a process that was just made must be known first."""
    _deferred.on = True
    try:
        yield
    finally:
        _deferred.on = False
        number, _deferred.number = _deferred.number, None
        if number is not None:
            _raise(number)


class _Deferred:
    """Whether signals have to wait, and the one that does."""

    on = False
    number: int | None = None


_deferred = _Deferred()


def _raise(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def ignore() -> None:
    """From now on, until `unwinding` ends: the clean-up has begun."""
    if threading.current_thread() is threading.main_thread():
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
