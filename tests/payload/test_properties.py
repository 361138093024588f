"""Arbitrary values: carried exactly, or refused with an error of ours."""

from __future__ import annotations

import uuid
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postrow.errors import PayloadError, PayloadUnicodeError
from postrow.payload import Codec, decode, encode, plain, writer

STORABLE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | STORABLE
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(STORABLE, inner, max_size=5))
ANYTHING = st.recursive(
    st.none() | st.floats() | st.text(st.characters()) | st.binary() | st.sets(st.integers()) | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.dictionaries(st.text(st.characters()) | st.integers(), inner, max_size=4)
    ),
)
# Whole minutes: what ISO 8601 can say.
ZONES = st.none() | st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


def shape(value: object) -> object:
    """The value with its types, so that 1, 1.0 and True are three things."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return (type(value), repr(value))


@given(JSON)
@settings(deadline=None)
def test_any_json_value_comes_back_exactly(value):
    text = encode(value)
    assert shape(decode(text)) == shape(value)
    assert decode(text.encode()) == value


@given(JSON)
@settings(deadline=None)
def test_the_fast_and_the_careful_way_write_the_same(value):
    assert plain._encode_fast(value) in {None, writer.write(value, "payload")}


@given(ANYTHING)
@settings(deadline=None)
def test_anything_at_all_is_carried_or_refused_by_a_payload_error(value):
    try:
        text = encode(value)
    except PayloadError:
        return
    text.encode()
    decode(text)


@given(st.text(st.characters()))
@settings(deadline=None)
def test_a_text_is_refused_exactly_when_jsonb_cannot_store_it(value):
    storable = "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)
    if storable:
        assert decode(encode({value: value})) == {value: value}
    else:
        with pytest.raises(PayloadUnicodeError):
            encode({value: 1})
        with pytest.raises(PayloadUnicodeError):
            encode([value])


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (bytes, st.binary()),
        (uuid.UUID, st.uuids()),
        (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
        (date, st.dates()),
        (time, st.times(timezones=ZONES)),
        (datetime, st.datetimes(timezones=ZONES)),
        (timedelta, st.timedeltas()),
    ],
)
def test_a_value_with_a_documented_encoding_comes_back_and_plain_json_writes_the_same(type_, values):
    codec = Codec(type_)

    @given(values)
    @settings(deadline=None)
    def check(value):
        text = codec.encode(value)
        assert codec.decode(text) == value
        assert encode(value) == text

    check()
