"""Plain payloads: what is carried, what is refused, and what the error says."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum

import pytest
from pydantic import BaseModel

from postrow.errors import PayloadError, PayloadUnicodeError
from postrow.payload import MAX_DEPTH, MAX_DIGITS, decode, encode, plain, writer


class Colour(Enum):
    RED = "red"
    RGB = (255, 0, 0)


class Level(IntEnum):
    HIGH = 3


class Plan(StrEnum):
    PRO = "pro"


class Text(str):
    __slots__ = ()


class Opaque:
    pass


@dataclass
class Holder:
    it: Opaque


Point = namedtuple("Point", "x y")  # noqa: PYI024 -- the untyped kind is the case


def nested(levels: int, value: object = 1) -> object:
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("value", [None, "", 0, 0.0, False, [], {}, "0", {"": ""}, [None], {"a": None}])
def test_falsy_payloads_stay_what_they_are(value):
    back = decode(encode(value))
    assert back == value
    assert type(back) is type(value)


def test_the_text_is_compact_and_keeps_its_characters():
    assert encode({"name": "Zoë 🐘", "items": [1, 2.5, None, True]}) == '{"name":"Zoë 🐘","items":[1,2.5,null,true]}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1, (2,)), "[1,[2]]"),
        (Point(1, 2), "[1,2]"),
        (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        (Text("a"), '"a"'),
        ({Text("a"): 1}, '{"a":1}'),
        ({Plan.PRO: Plan.PRO}, '{"pro":"pro"}'),
        (Colour.RED, '"red"'),
        ([Colour.RGB, Level.HIGH], "[[255,0,0],3]"),
    ],
)
def test_a_subclass_is_written_as_what_it_extends_and_an_enum_as_its_value(value, text):
    assert encode(value) == text


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"items": [0, 1, 2, {"price": math.nan}]}, "payload.items[3].price: the float nan"),
        ([math.inf], "payload[0]: the float inf"),
        (-math.inf, "payload: the float -inf"),
        ({"a b": Decimal("NaN")}, "payload[\"a b\"]: Decimal('NaN')"),
        ({"a": {1: "x"}}, "payload.a: the key 1 is of type int"),
        ({None: 1}, "payload: the key None is of type NoneType"),
        ({True: 1, "true": 2}, "payload: the key True is of type bool"),
        ({("a",): 1}, "payload: the key ('a',) is of type tuple"),
        ({"tags": {"a"}}, "payload.tags: a set, which has no order"),
        ([frozenset()], "payload[0]: a frozenset, which has no order"),
        ({"x": object()}, "payload.x: a value of type object"),
        ([range(3)], "payload[0]: a value of type range"),
        (BaseModel, "payload: a value of type ModelMetaclass"),
        ([bytearray(b"x")], "payload[0]: a value of type bytearray"),
        (10**MAX_DIGITS, "payload: an integer of more than 131072 digits"),
        ([-(10**MAX_DIGITS)], "payload[0]: an integer of more than 131072 digits"),
        (nested(MAX_DEPTH + 1), "nested deeper than 500 levels"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_json_cannot_carry_is_refused_with_its_path(value, message):
    with pytest.raises(PayloadError) as refused:
        encode(value)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": ["x\0y"]}, "payload.a[0]: a NUL character"),
        ({"a": {"\0": 1}}, r'payload.a["\u0000"]: a NUL character'),
        ("\ud800", "payload: a lone surrogate (U+D800)"),
        ({"\udfff": 1}, r'payload["\udfff"]: a lone surrogate (U+DFFF)'),
        ({"a": "\ud83d\ude00"}, "payload.a: a lone surrogate (U+D83D)"),
    ],
)
def test_text_that_jsonb_cannot_store_is_refused_with_its_path(value, message):
    with pytest.raises(PayloadUnicodeError) as refused:
        encode(value)
    assert message in str(refused.value)


def test_the_name_of_the_whole_value_is_the_callers():
    with pytest.raises(PayloadError, match=r"^messages\[2\]\.payload\.a: "):
        encode({"a": {1}}, what="messages[2].payload")


def test_a_backslash_before_u0000_is_no_nul_character():
    assert decode(encode("\\u0000")) == "\\u0000"


def test_a_circle_is_refused_where_it_closes():
    outer: list = []
    outer.append({"again": outer})
    with pytest.raises(PayloadError, match=r"payload\[0\]\.again: contains itself"):
        encode(outer)


def test_the_same_list_twice_is_no_circle():
    inner = [1]
    assert encode({"a": inner, "b": [inner, (inner, inner)]}) == '{"a":[1],"b":[[1],[[1],[1]]]}'


def test_nesting_up_to_the_limit_is_carried_however_deep_the_caller_is():
    def at_depth(frames: int) -> str:
        return encode(nested(MAX_DEPTH)) if frames == 0 else at_depth(frames - 1)

    frames_left = sys.getrecursionlimit() - len(list(iter_frames())) - 30
    assert at_depth(frames_left) == "[" * 500 + "1" + "]" * 500


def iter_frames():
    frame = sys._getframe()
    while frame:
        yield frame
        frame = frame.f_back


@pytest.mark.parametrize("digits", [1, 19, 4300, 4301, MAX_DIGITS])
def test_an_integer_of_any_size_that_jsonb_holds_survives(digits):
    for value in (10**digits - 1, -(10**digits - 1)):
        assert decode(encode({"n": value})) == {"n": value}


@pytest.mark.parametrize("value", [1e16, 1e23, -1.5e300, sys.float_info.max])
def test_a_large_float_has_no_exponent_so_that_jsonb_keeps_it_a_float(value):
    text = encode([value])
    assert "e" not in text
    assert text.endswith(".0]")
    assert decode(text) == [value]


@pytest.mark.parametrize("value", [5e-324, 1e-7, 0.1, 1 / 3, -0.0])
def test_a_small_float_survives(value):
    assert repr(decode(encode(value))) == repr(value)


def test_a_number_too_large_for_a_float_is_read_as_an_integer():
    assert decode("[1E400, -15e399]") == [10**400, -15 * 10**399]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON: Expecting value: line 1 column 1"),
        ('{"a":1,}', "not JSON: .* line 1"),
        ("[NaN]", "NaN is not a JSON number"),
        ("-Infinity", "-Infinity is not a JSON number"),
        (b"[\xff]", "not UTF-8: invalid start byte at byte 1"),
        ("9" * (MAX_DIGITS + 1), "a number of 131073 digits is more than jsonb can hold"),
        ("1e131072", "the number 1e131072 is more than jsonb can hold"),
        ("1e99999999999999999999", "is more than jsonb can hold"),
        ("9" * 400 + ".5", "too large for a float, and not whole"),
    ],
    ids=lambda text: str(text)[:30],
)
def test_a_text_that_is_not_json_or_beyond_jsonb_is_refused(text, message):
    with pytest.raises(PayloadError, match=message):
        decode(text)


def test_of_duplicate_keys_the_last_wins():
    assert decode('{"a": 1, "a": 2}') == {"a": 2}


def test_a_payload_beyond_the_size_of_jsonb_is_refused_with_its_size(monkeypatch):
    monkeypatch.setattr(plain, "MAX_BYTES", 1024**2)
    assert encode("é" * (1024**2 // 2 - 1))
    with pytest.raises(PayloadError, match="2,097,156 bytes of JSON; jsonb holds 1,048,576 at most"):
        encode(["é" * 1024**2])


def test_a_class_within_plain_json_is_written_as_its_own_queue_would():
    class User(BaseModel):
        name: str

    @dataclass
    class Order:
        price: Decimal
        tags: set[str]
        by_day: dict[int, str] = field(default_factory=dict)

    value = {"user": User(name="Ada"), "orders": [Order(Decimal("1.10"), {"a"}, {1: "x"})]}
    assert json.loads(encode(value)) == {
        "user": {"name": "Ada"},
        "orders": [{"price": "1.10", "tags": ["a"], "by_day": {"1": "x"}}],
    }
    with pytest.raises(PayloadError, match=r"payload\.orders\[0\]\.price: "):
        encode({"orders": [Order(Decimal("inf"), set())]})


def test_a_dataclass_that_pydantic_cannot_read_is_refused_with_the_reason():
    with pytest.raises(PayloadError, match=r"payload\.x: the type Holder cannot be the payload of a queue"):
        encode({"x": Holder(Opaque())})


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, {"b": None, "c": [True, False, [], {}]}], "d": 'q"\\\n\u2028\x1f'},
        [[[]], {"": {}}],
        "x",
        1.5,
        [],
    ],
)
def test_the_fast_and_the_careful_way_write_the_same(value):
    assert plain._encode_fast(value) == writer.write(value, "payload") == encode(value)


def test_pydantic_is_not_loaded_before_it_is_needed():
    code = (
        "import sys; from postrow.payload import Codec, decode, encode;"
        "decode(encode({'a': [1]})); Codec(dict); sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
