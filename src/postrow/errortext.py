"""What is kept of an exception: three short texts that Postgres can store, whatever was raised.

A worker must be able to record any failure. So nothing in here raises, and nothing in here trusts the
exception: not its `__str__`, not its size, not its characters.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_REPLACEMENT = "\ufffd"
_CUT = "…"
_FRAMES = 20  # looked at; about six fit into 800 bytes
_LINKS = 1000  # of a chain of groups that is followed


@dataclass(frozen=True, slots=True)
class ErrorText:
    """An exception as text, without NUL characters and lone surrogates.

    `type` is the class with its module (builtins without), `message` its `str`, `traceback` the innermost
    frames, oldest first. Each is cut to its limit; an ellipsis marks the cut.
    """

    type: str
    message: str
    traceback: str


def clean_text(text: str, *, limit: int) -> str:
    """The head of a text that Postgres can store, at most `limit` bytes of UTF-8. Never raises.

    NUL characters and lone surrogates become U+FFFD. A text that was cut ends in an ellipsis.
    """
    return _clean(text, limit, keep_tail=False)


def describe_error(
    error: BaseException, *, type_limit: int = 100, message_limit: int = 800, traceback_limit: int = 800
) -> ErrorText:
    """An exception as three texts within their limits (bytes of UTF-8). Never raises.

    Of an exception group the message also has the first exception that is not a group; of an exception with a
    cause (`raise … from …`), the traceback ends in the cause's type and message.
    """
    return ErrorText(
        type=_attempt(lambda: _type_name(type(error), type_limit), ""),
        message=_attempt(lambda: clean_text(_message(error, message_limit), limit=message_limit), ""),
        traceback=_attempt(lambda: _clean(_traceback(error), traceback_limit, keep_tail=True), ""),
    )


def _attempt(describe: Callable[[], str], otherwise: str) -> str:
    try:
        return describe()
    except BaseException:  # noqa: BLE001 -- code of the exception's own class runs here: it may raise anything at all
        return otherwise


def _type_name(class_: type[BaseException], limit: int) -> str:
    name = f"{class_.__qualname__}"
    module = f"{class_.__module__}"
    if module != "builtins" and len(f"{module}.{name}".encode(errors="replace")) <= limit:
        name = f"{module}.{name}"  # where there is no room for both, the name of the class says more
    return clean_text(name, limit=limit)


def _message(error: BaseException, limit: int) -> str:
    message = _str(error)
    if isinstance(error, BaseExceptionGroup):
        first = _first_in(error)
        if first is not None:
            # Room for both: the group's own message is often only a count.
            return f"{clean_text(message, limit=limit // 2)}; first: {_one_line(first, limit)}"
    return message


def _str(error: BaseException) -> str:
    """`str(error)`; if that raises, what it raised."""
    try:
        return str.__str__(str(error))
    except BaseException as broken:  # noqa: BLE001 -- as in _attempt
        return f"(its message cannot be read: str() raised {type(broken).__name__})"


def _one_line(error: BaseException, limit: int) -> str:
    return f"{_type_name(type(error), limit)}: {clean_text(_str(error), limit=limit)}"


def _first_in(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    error: BaseException = group
    for _ in range(_LINKS):
        if not isinstance(error, BaseExceptionGroup):
            return error
        error = error.exceptions[0]
    return None


def _traceback(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__, limit=-_FRAMES)
    # As plain tuples, so that no room goes to the lines of ^^^^ under the code.
    text = "".join(traceback.format_list([(f.filename, f.lineno or 0, f.name, f.line) for f in frames]))
    if error.__cause__ is not None:
        text += f"caused by {_one_line(error.__cause__, 200)}"
    return text.rstrip()


def _clean(text: str, limit: int, *, keep_tail: bool) -> str:
    # A character is a byte at least: one more than `limit` of them are enough to know whether there is more.
    part = str.__getitem__(text, slice(-limit - 1, None) if keep_tail else slice(limit + 1)) if limit > 0 else ""
    data = _UNSTORABLE.sub(_REPLACEMENT, part).encode()
    if len(data) <= limit:
        return data.decode()
    mark = _CUT.encode() if limit >= len(_CUT.encode()) else b""
    room = limit - len(mark)
    kept = mark + data[len(data) - room :] if keep_tail else data[:room] + mark
    return kept.decode(errors="ignore")  # half a character may stand at the cut
