r"""Payloads: Python values to JSON text for `$1::text::jsonb`, and JSON text back to the type of a queue.

A value is carried as the table says, or refused with an error that names its path (`payload.items[3].price`).
Nothing is changed that is not in the table.

| Python | JSON | back, plain queue | back, queue with a type |
|---|---|---|---|
| `None`, `bool`, `str` | the same | the same | the same |
| `int` | number, up to 131,072 digits (jsonb's own limit) | `int` | `int`, up to 4,300 digits |
| `float` | number; a large whole one is written out with `.0` | `float` | `float` |
| `float` NaN, infinity | refused | | |
| `dict` with `str` keys | object | `dict` | `dict` |
| `dict` with other keys | refused | | as declared: `dict[int, str]` |
| `list` | array | `list` | as declared |
| `tuple`, named tuple | array | `list` | as declared |
| `set`, `frozenset` | refused | | array, as declared: `set[str]` |
| `datetime` | ISO 8601 text, `2024-05-01T12:00:00Z` or `…+02:00` | `str` | `datetime` |
| `datetime` without a zone | ISO 8601 text without an offset | `str` | `datetime` without a zone |
| `date`, `time` | ISO 8601 text | `str` | `date`, `time` |
| `timedelta` | ISO 8601 duration, `P1DT2H`, `-PT0.000001S` (a year is 365 days) | `str` | `timedelta` |
| `UUID` | text, lower case, with hyphens | `str` | `UUID` |
| `Decimal` | text with every digit, `"1.10"`; NaN and infinity refused | `str` | `Decimal` |
| `bytes` | base64 text, URL-safe alphabet, padded | `str` | `bytes` |
| `Enum` | its value | the value | the `Enum` |
| dataclass, pydantic model | object, under the aliases if it has any | `dict` | the same class |
| `TypedDict` | object | `dict` | `dict` |
| anything else | refused | | if pydantic carries the declared type both ways |

Subclasses of `str`, `int`, `float`, `dict`, `list` and `tuple` count as what they extend.

Limits: 500 levels of nesting (about 200 in a queue with a type), 255 MB of UTF-8. The NUL character and lone
surrogates are refused, in keys too: jsonb cannot store them.

What jsonb itself does: `-0.0` comes back as `0.0`; keys come back in jsonb's own order; of duplicate keys in
a text the last wins; `1E400` in a text is stored as an integer of 401 digits, and comes back as an `int`.

A queue with a type does not trust the declaration. `Codec.encode` reads its own text back and compares, so
a field that a subclass added, a coerced `"17"`, or a serializer without its validator is an error for the
producer, not a surprise for the consumer. "Equal" is the `==` of the value's own type. A field that
pydantic is told to leave out (`Field(exclude=True)`) is left out. In a field declared `Any` the column
"plain queue" holds. A `datetime` keeps its offset, not the name of its zone.

Pydantic's own classes (models, pydantic dataclasses) have their own configuration, which decides on two
things:

- bytes. The default is UTF-8 text, and bytes that are not UTF-8 are refused; `ConfigDict(ser_json_bytes=
  "base64", val_json_bytes="base64")` carries any. Plain dataclasses and TypedDicts get base64 unasked.
- a stored number beyond the range of a float, which only SQL or another language can have written: infinity,
  unless the configuration says `allow_inf_nan=False`. Plain dataclasses and TypedDicts refuse it.
"""

from postrow.payload.plain import MAX_BYTES, decode, encode, encode_lines
from postrow.payload.scalars import MAX_DIGITS
from postrow.payload.typed import Codec
from postrow.payload.writer import MAX_DEPTH

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_DIGITS", "Codec", "decode", "encode", "encode_lines"]
