"""What a handler's run led to."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from datetime import datetime, timedelta

from postrow.errors import LeaseLostError
from postrow.errortext import clean_text, describe_error
from postrow.models import Bury, Retry, Snooze
from postrow.worker.slots import DONE, Outcome, Slot

RELEASED = Outcome("release")


def returned(value: object) -> Outcome:
    """The outcome of a sync handler that returned. If it gave a coroutine, as behind a decorator, nothing has run."""
    if not inspect.iscoroutine(value):
        return DONE
    value.close()
    return Outcome("fail", "the handler is a plain def that returned a coroutine: make it an async def", "TypeError")


def failure(error: BaseException) -> Outcome:
    """The outcome of a handler that raised. Never raises, whatever the exception's own code does."""
    try:
        if isinstance(error, Bury):
            return Outcome("bury", clean_text(str(error.reason), limit=800))
        if isinstance(error, Snooze):
            return Outcome("release", until=_until(error))
        if isinstance(error, Retry):
            return Outcome("fail", clean_text(str(error.reason), limit=800), "Retry", retry_after=_after(error))
    except BaseException as broken:  # noqa: BLE001  # a reason whose str() raises, a subclass without the attribute
        error = broken
    text = describe_error(error)
    return Outcome("fail", text.message, text.type, text.traceback)


# A subclass may have set what no constructor has checked: seconds, or what is no time at all. An outcome that cannot
# even be sent would hold up all others.


def _after(error: Retry) -> timedelta | None:
    after = error.after
    return after if after is None or isinstance(after, timedelta) else Retry(after=after).after


def _until(error: Snooze) -> datetime | timedelta:
    until = error.until
    return until if isinstance(until, datetime | timedelta) else Snooze(until).until


def timed_out(timeout: timedelta) -> Outcome:
    """The outcome of a handler that took longer than it may."""
    return Outcome("fail", f"the handler took longer than its timeout of {timeout.total_seconds():g} s", "TimeoutError")


def lease_lost(slot: Slot) -> LeaseLostError:
    """What `message.extend` raises when another has the message."""
    return LeaseLostError(f"message {slot.id} of queue {slot.queue} is held by another worker now")


def of_each(value: object, count: int) -> Sequence[Outcome]:
    """The outcomes of a handler of many messages that returned this: nothing, or a list with one result for each.

    An exception in it is that message's failure, or what `Retry`, `Snooze` and `Bury` say; anything else is done: as
    asyncio.gather(..., return_exceptions=True) gives it. What is neither fails them all, lest failures be overlooked.
    """
    if value is None:
        return [DONE] * count
    if not isinstance(value, list | tuple):
        outcome = returned(value)
        if outcome is DONE:
            text = f"the handler of batches returned {type(value).__name__}: return None, or a list with one for each"
            outcome = Outcome("fail", text, "TypeError")
        return [outcome] * count
    if len(value) != count:
        text = f"the handler returned {len(value)} results for {count} messages: return one for each, or None"
        return [Outcome("fail", text, "ValueError")] * count
    return [DONE if error is None else failure(error) for error in map(raised_in, value)]


def raised_in(result: object) -> BaseException | None:
    """The exception that a result is, also where it is a class; None: it is none."""
    if isinstance(result, type) and issubclass(result, BaseException):
        try:
            return result()
        except BaseException as error:  # noqa: BLE001  # it wants arguments, or its own code is broken
            return error
    return result if isinstance(result, BaseException) else None
