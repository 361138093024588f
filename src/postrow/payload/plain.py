"""Plain JSON: the fast way for values that are JSON already, and the way back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import Any, Never

from postrow.errors import PayloadError
from postrow.payload import writer
from postrow.payload.scalars import MAX_DIGITS
from postrow.payload.writer import MAX_DEPTH

MAX_BYTES = 255 * 1024 * 1024  # of UTF-8 text; jsonb holds at most 268,435,455 bytes in one string, array or object

_SCALARS = frozenset({str, int, float, bool, type(None)})
_CONTAINERS = frozenset({dict, list})
_PLAIN = _SCALARS | _CONTAINERS
_KEYS = frozenset({str})

# No check for circles (the nesting is limited before) and no escapes beyond JSON's own: a third faster.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))


def _make_dumps() -> Callable[[object], str]:
    """`_ENCODER.encode` makes its C encoder anew at each call; kept, a short payload takes 1.5 us and not 2.8."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return _ENCODER.encode
    encode = make(None, _ENCODER.default, json.encoder.encode_basestring, None, ":", ",", False, False, False)

    def dumps(value: object) -> str:
        # a text alone is not for the C encoder's top level in every version; it is rare
        return _ENCODER.encode(value) if isinstance(value, str) else "".join(encode(value, 0))

    return dumps


_dumps = _make_dumps()


def encode(value: object, *, what: str = "payload") -> str:
    """The JSON text of a value, ready for `$1::text::jsonb`.

    The table in the documentation of `postrow.payload` says how each type is written. `what` is the name that
    errors use for the whole value.

    Raises:
        PayloadError: the value, or a part of it, cannot be carried; the message names the path.
        PayloadUnicodeError: a text in it has a NUL character or a lone surrogate.
    """
    text = _encode_fast(value)
    if text is None:
        text = writer.write(value, what)
    # A character is at most four bytes, so that only a large text is measured.
    if len(text) > MAX_BYTES // 4 and (size := len(text.encode())) > MAX_BYTES:
        raise PayloadError(
            f"{what}: {size:,} bytes of JSON; jsonb holds {MAX_BYTES:,} at most.",
            hint="Store the content elsewhere and enqueue a reference to it.",
        )
    return text


def encode_lines(values: Sequence[object], *, what: Callable[[int], str]) -> str:
    """The JSON texts of many values, one a line, as `encode` gives them; `what` gives the name of one by its index.

    Objects without objects in them, the usual payloads, take half the time.
    """
    lines = _encode_lines_fast(values)
    if lines is None:
        lines = "\n".join([encode(value, what=what(n)) for n, value in enumerate(values)])
    return lines


def _encode_lines_fast(values: Sequence[object]) -> str | None:
    """The lines, when all values are flat and plain objects, and none needs a closer look; None otherwise."""
    objects: Any = values
    flat = (
        {dict}.issuperset(map(type, objects))
        and _KEYS.issuperset(map(type, chain.from_iterable(objects)))
        and _SCALARS.issuperset(map(type, chain.from_iterable(map(dict.values, objects))))
    )
    if not flat:
        return None
    try:
        text = _dumps(values)[1:-1]
    except ValueError:
        return None
    # between flat objects stands "},{", and if it stands nowhere else it is where the lines end
    if text.count("},{") != len(values) - 1 or len(text) > MAX_BYTES // 4 or not _is_storable(text):
        return None
    return text.replace("},{", "}\n{")


def _encode_fast(value: object) -> str | None:
    """The text, when the value is plain and nothing in it needs a closer look; None otherwise."""
    try:
        text = _dumps(value) if _is_plain(value, MAX_DEPTH) else None
    except (ValueError, RecursionError):
        return None  # NaN, an integer of more than 4,300 digits, a call stack that is almost used up
    return text if text is not None and _is_storable(text) else None


def _is_storable(text: str) -> bool:
    """Whether jsonb takes the text as it is; where it is not certain, False."""
    # "e+" may be a float that jsonb would turn into an integer, "\\u0000" a NUL, or not: the writer knows.
    if "e+" in text or "\\u0000" in text:
        return False
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_plain(value: object, depth: int) -> bool:
    """Whether the value is made of exactly JSON's own types, at most `depth` levels deep.

    Works on the set of types in a container, so that most elements cost no Python code. Recursion that takes
    one frame of the call stack a level, as the encoder does after it.
    """
    kind = type(value)
    if kind not in _CONTAINERS:
        return kind in _SCALARS
    items: Any = value
    if depth == 0 or (kind is dict and not _KEYS.issuperset(map(type, items))):
        return False
    if kind is dict:
        items = items.values()
    kinds = set(map(type, items))
    if kinds <= _SCALARS:
        return True
    if not kinds <= _PLAIN:
        return False
    for item in items:  # noqa: SIM110 -- all(…) would take a second frame a level
        if type(item) in _CONTAINERS and not _is_plain(item, depth - 1):
            return False
    return True


def decode(text: str | bytes) -> Any:
    """The value of a JSON text (bytes: UTF-8).

    Integers of any size that jsonb holds come back exactly. A number with a fraction or an exponent is a
    `float`; one that is too large for that is an `int` if it is whole. Of duplicate keys the last wins, as in
    jsonb.

    Raises:
        PayloadError: not JSON (NaN and infinity are not), a number beyond jsonb's limits, or nested too deep.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            raise PayloadError(f"not UTF-8: {error.reason} at byte {error.start}.") from None
    try:
        try:  # what Postgres writes has no space around it, and to look for some takes as long as to read a short text
            value, end = _DECODER.raw_decode(text)
            if end == len(text):
                return value
        except ValueError:
            pass  # what is wrong with it, the decoder says
        try:
            return _DECODER.decode(text)
        except json.JSONDecodeError as error:
            raise PayloadError(f"not JSON: {error}.") from None
        except ValueError:  # an integer that is longer than sys.get_int_max_str_digits()
            return _DECODER_OF_LONG_INTEGERS.decode(text)
    except RecursionError:
        raise PayloadError(
            f"nested too deep: {MAX_DEPTH} levels are carried, fewer where the call stack is almost used up."
        ) from None


def _integer(text: str) -> int:
    if len(text.removeprefix("-")) > MAX_DIGITS:
        raise _too_large(f"a number of {len(text)} digits")
    return int(Decimal(text))  # exact, and without the limit of int(text)


def _float(text: str) -> float | int:
    number = float(text)
    if -math.inf < number < math.inf:
        return number
    try:
        exact = Decimal(text)
    except InvalidOperation:  # its exponent has more than 18 digits
        raise _too_large(f"the number {text[:40]}") from None
    if exact.adjusted() >= MAX_DIGITS:
        raise _too_large(f"the number {text[:40]}")
    if exact != (whole := int(exact)):
        raise PayloadError(f"the number {text[:40]}… is too large for a float, and not whole as an int must be.")
    return whole


def _too_large(number: str) -> PayloadError:
    return PayloadError(f"{number} is more than jsonb can hold ({MAX_DIGITS} digits before the point).")


def _refuse_constant(name: str) -> Never:
    raise PayloadError(f"not JSON: {name} is not a JSON number.")


_DECODER = json.JSONDecoder(parse_float=_float, parse_constant=_refuse_constant)
_DECODER_OF_LONG_INTEGERS = json.JSONDecoder(parse_float=_float, parse_constant=_refuse_constant, parse_int=_integer)
