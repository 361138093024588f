"""Where in a payload something is: `payload.items[3].price`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TypeAlias

# A path grows by one link a level and is only written out when there is an error to report.
Path: TypeAlias = "tuple[Path | None, object]"

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_STEPS = 12  # written out; a path may have 500
_MAX_SHOWN = 60  # characters of a key or a value in a message


def root(what: str) -> Path:
    """The path of the whole value, which errors will call `what`."""
    return (None, what)


def write(path: Path) -> str:
    """The path as text; the middle of a very long one is left out."""
    steps: list[object] = []
    link: Path | None = path
    while link is not None:
        link, step = link
        steps.append(step)
    steps.reverse()
    return join(str(steps[0]), steps[1:])


def join(what: str, steps: Iterable[object]) -> str:
    """`what` and the steps into it: text is a key or a field, a number an index."""
    written = [_step(step) for step in steps]
    if len(written) > _MAX_STEPS:
        half = _MAX_STEPS // 2
        written = [*written[:half], "…", *written[-half:]]
    return what + "".join(written)


def _step(step: object) -> str:
    if isinstance(step, str):
        if _IDENTIFIER.fullmatch(step):
            return f".{step}"
        return f"[{json.dumps(_cut(step))}]"  # ASCII only: the key itself may be what cannot be written
    return f"[{shown(step)}]"


def shown(value: object) -> str:
    """A value in a message: its `repr`, cut."""
    try:
        return _cut(repr(value))
    except Exception:  # noqa: BLE001 -- a message about a broken value must not break on it
        return f"a {type(value).__name__}"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
