"""Whether what came back is what was sent, and where it differs.

Asked only when `==` has said no, or has nothing to compare by: so it may be slow, and must be exact.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator
from typing import Any

from postrow.errors import PayloadError
from postrow.payload import path as paths
from postrow.payload import plain

_PLAIN = (str, int, float, type(None), list, dict)

Steps = tuple[object, ...]


def first_difference(sent: object, back: object, *, exact: bool = False) -> tuple[Steps, str] | None:
    """Where the two differ (keys, fields and indexes) and how; None if they are the same.

    Where no type was declared, the documented plain form of a value counts as the same: a UUID, and its text.
    With `exact` it does not, and neither does `1.0` for `1`: to look up what pydantic has complained about.
    """
    if not exact and _same(sent, back):
        return None
    if exact and not _is_a(sent, type(back)):
        return (), _change(sent, back)
    pairs = _pairs(sent, back)
    if pairs is not None:
        return _difference_inside(*pairs, exact=exact)
    if exact and _same(sent, back):
        return None
    if type(sent) is type(back) and type(sent).__eq__ is object.__eq__ and _fields(sent) is None:
        return None  # nothing to compare by
    return (), _change(sent, back)


def _pairs(sent: object, back: object) -> tuple[dict[Any, object], dict[Any, object]] | None:
    """What is inside of two containers of one kind, by key, field or index; None if they are not such."""
    if type(sent) is type(back) and (fields := _fields(sent)) is not None:
        return fields, _fields(back) or {}
    if isinstance(sent, dict) and isinstance(back, dict):
        return sent, back
    if isinstance(sent, (list, tuple)) and isinstance(back, (list, tuple)) and len(sent) == len(back):
        return dict(enumerate(sent)), dict(enumerate(back))
    return None


def _difference_inside(sent: dict[Any, object], back: dict[Any, object], *, exact: bool) -> tuple[Steps, str] | None:
    for name, child in sent.items():
        if name not in back:
            return (name,), "would not come back: the type does not have it"
        if found := first_difference(child, back[name], exact=exact):
            steps, problem = found
            return (name, *steps), problem
    for name in back:
        if name not in sent:
            return (name,), "was not sent, and would come back"
    return None


def _same(sent: object, back: object) -> bool:
    if sent == back or (sent != sent and back != back):  # noqa: PLR0124 -- NaN, where the user's own config carries it
        return True
    if isinstance(sent, dt.datetime) and isinstance(back, dt.datetime):
        # Python calls the two unequal when one is in the repeated hour of a zone.
        return sent.replace(tzinfo=None, fold=0) == back.replace(tzinfo=None) and sent.utcoffset() == back.utcoffset()
    if not isinstance(back, _PLAIN) or isinstance(sent, (list, dict)):
        return False
    try:
        return plain.encode(sent) == plain.encode(back)
    except PayloadError:
        return False


def _is_a(value: object, type_: type) -> bool:
    return isinstance(value, type_) or (type_ is float and type(value) is int)


def _change(sent: object, back: object) -> str:
    if type(sent) is type(back):
        return f"{paths.shown(sent)} would come back as {paths.shown(back)}"
    return f"is of type {type(sent).__name__}, and would come back as {type(back).__name__}"


def _fields(value: object) -> dict[Any, object] | None:
    """The fields of a model or a dataclass that are carried; None for anything else."""
    from pydantic import BaseModel  # noqa: PLC0415 -- loaded already where this is asked; not by `import postrow`

    if isinstance(value, BaseModel):
        declared = type(value).model_fields
        carried = {name: getattr(value, name) for name in declared if not declared[name].exclude}
        return carried | (value.model_extra or {})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        declared = getattr(value, "__pydantic_fields__", {})
        names = [field.name for field in dataclasses.fields(value)]
        return {name: getattr(value, name) for name in names if name not in declared or not declared[name].exclude}
    return None


def first_not_unicode(value: object) -> tuple[Steps, str | bytes] | None:
    """The first bytes that are not UTF-8, or text that cannot be, and where they are."""
    if isinstance(value, str | bytes):
        try:
            value.decode() if isinstance(value, bytes) else value.encode()
        except UnicodeError:
            return (), value
        return None
    for name, child in _children(value):
        if found := first_not_unicode(name):
            return (name,), found[1]
        if found := first_not_unicode(child):
            return (name, *found[0]), found[1]
    return None


def _children(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from enumerate(value)
    else:
        yield from (_fields(value) or {}).items()
