"""One function for each type that JSON has, and for each that has a documented encoding as text."""

from __future__ import annotations

import base64
import datetime as dt
import functools
import json
import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, cast

from postrow.errors import BadArgumentError, PayloadError, PayloadUnicodeError
from postrow.payload import path as paths
from postrow.payload.path import Path

if TYPE_CHECKING:
    from postrow.payload.typed import Codec

MAX_DIGITS: Final = 131_072  # before the point: the limit of Postgres's numeric, and so of jsonb
_MAX_BITS = math.ceil(MAX_DIGITS * math.log2(10))

_quote = json.JSONEncoder(ensure_ascii=False).encode


def refusal(path: Path, problem: str, *, hint: str | None = None) -> PayloadError:
    """The error for what stands at `path`."""
    return PayloadError(f"{paths.write(path)}: {problem}", hint=hint)


def text_of(value: object, path: Path) -> str:
    """The JSON text of anything but a dict, a list, a tuple or an Enum."""
    write = _ENCODINGS.get(type(value))
    if write is None:
        write = next((writes for type_, writes in _ENCODINGS.items() if isinstance(value, type_)), _of_class)
    return write(value, path)


def of_str(value: str, path: Path) -> str:
    """A JSON string; refused if jsonb cannot store it."""
    if "\0" in value:
        raise PayloadUnicodeError(
            f"{paths.write(path)}: a NUL character (\\u0000), which jsonb cannot store.",
            hint="Take it out, or send bytes.",
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise PayloadUnicodeError(
            f"{paths.write(path)}: a lone surrogate (U+{ord(value[error.start]):04X}): no character.",
            hint="Decode the text with errors='replace', or send bytes.",
        ) from None
    return _quote(value)


def _of_none(_value: None, _path: Path) -> str:
    return "null"


def _of_bool(value: bool, _path: Path) -> str:
    return "true" if value else "false"


def _of_int(value: int, path: Path) -> str:
    if value.bit_length() > _MAX_BITS or abs(value) >= _first_too_large():
        raise refusal(path, f"an integer of more than {MAX_DIGITS} digits, which jsonb cannot hold.")
    try:
        return int.__repr__(value)
    except ValueError:  # longer than sys.get_int_max_str_digits()
        return format(Decimal(value), "f")


@functools.cache
def _first_too_large() -> int:
    return cast("int", 10**MAX_DIGITS)


def _of_float(value: float, path: Path) -> str:
    """The shortest digits that give the same float.

    Without an exponent when it is large: jsonb would store `1e+23` as an integer, which is another number.
    """
    if not math.isfinite(value):
        raise refusal(
            path,
            f"the float {float.__repr__(value)}, which is not a JSON number.",
            hint="Use None or a text for it.",
        )
    text = float.__repr__(value)
    return f"{Decimal(text):f}.0" if "e+" in text else text


def _of_bytes(value: bytes, _path: Path) -> str:
    return f'"{base64.urlsafe_b64encode(value).decode()}"'  # pydantic's alphabet; it reads the standard one, too


def _of_uuid(value: uuid.UUID, _path: Path) -> str:
    return f'"{value}"'


def _of_decimal(value: Decimal, path: Path) -> str:
    if not value.is_finite():
        raise refusal(path, f"Decimal('{value}'), which is not a JSON number.", hint="Use None or a text for it.")
    return f'"{value}"'


def _of_moment(value: dt.datetime | dt.time, path: Path) -> str:
    offset = value.utcoffset()
    if offset is not None and offset % dt.timedelta(minutes=1):
        raise refusal(path, f"the offset of {value} is not whole minutes, which ISO 8601 cannot express.")
    text = value.isoformat()
    return f'"{text.removesuffix("+00:00")}Z"' if offset == dt.timedelta() else f'"{text}"'


def _of_date(value: dt.date, _path: Path) -> str:
    return f'"{value.isoformat()}"'


def _of_timedelta(value: dt.timedelta, _path: Path) -> str:
    # Pydantic's own writer, because its reader will read it back.
    from pydantic_core import to_jsonable_python  # noqa: PLC0415 -- `import postrow` stays light

    return f'"{to_jsonable_python(value, timedelta_mode="iso8601")}"'


def _of_set(value: set[Any] | frozenset[Any], path: Path) -> str:
    raise refusal(
        path,
        f"a {type(value).__name__}, which has no order.",
        hint="Send sorted(…), or give the queue a type that declares a set.",
    )


def _of_class(value: object, path: Path) -> str:
    """A dataclass or a pydantic model: exactly what the codec of a queue with this type would write."""
    type_: Any = type(value)
    if not hasattr(type_, "__dataclass_fields__") and not hasattr(type_, "__pydantic_serializer__"):
        raise refusal(
            path,
            f"a value of type {type_.__name__}, which JSON cannot carry.",
            hint="Send JSON values, datetime, UUID, Decimal, bytes, Enum, a dataclass or a pydantic model.",
        )
    try:
        codec = _codec_of(type_)
    except BadArgumentError as error:
        raise refusal(path, error.message, hint=error.hint) from error
    return codec.encode(value, what=paths.write(path))


@functools.lru_cache(maxsize=256)
def _codec_of(type_: type) -> Codec[Any]:
    from postrow.payload.typed import Codec  # noqa: PLC0415 -- a circle: a typed payload is written by this module

    return Codec(type_)


# Subclasses are found in this order: bool before int, datetime before date.
_ENCODINGS: Final[dict[type, Callable[[Any, Path], str]]] = {
    str: of_str,
    type(None): _of_none,
    bool: _of_bool,
    int: _of_int,
    float: _of_float,
    dt.datetime: _of_moment,
    dt.time: _of_moment,
    dt.date: _of_date,
    dt.timedelta: _of_timedelta,
    uuid.UUID: _of_uuid,
    Decimal: _of_decimal,
    bytes: _of_bytes,
    set: _of_set,
    frozenset: _of_set,
}
