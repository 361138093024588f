"""Payloads through jsonb: what an enqueue takes is what a claim gives, as the table of `postrow.payload` says."""

import enum
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

import postrow
from postrow import payload as payloads
from postrow.errors import PayloadUnicodeError

SUITE = Path(__file__).parent / "payload" / "data" / "json-test-suite"
VALID = [pytest.param(path.read_bytes(), id=path.stem) for path in sorted(SUITE.glob("y_*.json"))]


def claimed(conn, queue="q"):
    """The payload of the one message that is ready, as a worker reads it: jsonb as text."""
    ((text,),) = conn.execute("select payload::text from postrow.claim(%s, 2)", [queue]).fetchall()
    return text


def same(one, other):
    """Equal in type and value; zero has no sign in jsonb."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("data", VALID)
def test_a_valid_text_of_the_json_suite_survives(conn, data):
    value = payloads.decode(data)
    try:
        postrow.enqueue(conn, "q", value)
    except PayloadUnicodeError:
        assert rb"\u0000" in data  # valid JSON that jsonb cannot store
        return
    assert same(payloads.decode(claimed(conn)), value)


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**400), max_value=10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5), max_leaves=15
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES)
def test_any_json_value_survives(conn, value):
    for enqueue in (
        lambda: postrow.enqueue(conn, "q", value, headers={"value": value}),
        lambda: postrow.enqueue_many(conn, "q", [value], headers={"value": value}),
    ):
        enqueue()
        row = conn.execute("select payload::text, headers::text from postrow.claim('q', 2)").fetchone()
        assert same(payloads.decode(row[0]), value)
        assert same(payloads.decode(row[1]), {"value": value})


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Everything:
    moment: datetime
    there: datetime
    naive: datetime
    day: date
    clock: time
    span: timedelta
    id: UUID
    price: Decimal
    data: bytes
    colour: Colour
    pair: tuple[int, str]
    names: set[str]
    numbers: dict[int, float]
    size: int


EVERYTHING = Everything(
    moment=datetime(2024, 5, 1, 12, 0, 0, 1, tzinfo=UTC),
    there=datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=2))),
    naive=datetime(2024, 5, 1, 12),  # noqa: DTZ001  # carried as it is
    day=date(2024, 2, 29),
    clock=time(23, 59, 59, 999999),
    span=timedelta(days=-1, microseconds=1),
    id=UUID("0192f3a0-0000-7000-8000-000000000000"),
    price=Decimal("1.10"),
    data=b"\xff\x00\xfe",
    colour=Colour.RED,
    pair=(1, "x"),
    names={"a", "b"},
    numbers={1: 1e22, -2: 5e-324, 3: 0.1},
    size=10**300,
)


class Model(BaseModel):
    user_id: int
    nested: list[dict[str, float | None]]


class Keys(TypedDict):
    b: int
    a: str


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Everything, EVERYTHING),
        (Model, Model(user_id=2**70, nested=[{"x": 1.5, "y": None}])),
        (Keys, {"b": 1, "a": "é\u2028"}),
        (list[int], [3, 1, 2]),
        (str, '"quoted" \\ and \U0001f600'),
        (int, 10**4000),
        (type(None), None),
    ],
    ids=["dataclass", "model", "typed dict", "list", "text", "large int", "none"],
)
def test_a_typed_payload_comes_back_as_it_was(conn, type_, value):
    queue = postrow.App("unused").queue("q", type_)
    queue.enqueue(conn, value)
    assert queue.codec.decode(claimed(conn)) == value
    queue.enqueue_many(conn, [value])
    assert queue.codec.decode(claimed(conn)) == value


def test_what_jsonb_itself_changes_is_as_documented(conn):
    postrow.enqueue(conn, "q", -0.0)
    assert math.copysign(1, payloads.decode(claimed(conn))) == 1
    postrow.enqueue(conn, "q", {"b": 1, "aa": 2, "a": 3})
    assert list(payloads.decode(claimed(conn))) == ["a", "b", "aa"]
    for text, expected in [('{"a": 1, "a": 2}', {"a": 2}), ("1E400", 10**400), ("1.10", 1.1)]:
        conn.execute("select postrow.enqueue('q', %s::text::jsonb)", [text])
        assert same(payloads.decode(claimed(conn)), expected)


def test_an_integer_of_the_most_digits_survives(conn):
    value = -(10**payloads.MAX_DIGITS - 1)
    postrow.enqueue(conn, "q", value)
    assert claimed(conn) == "-" + "9" * payloads.MAX_DIGITS


def test_the_deepest_nesting_survives(conn):
    value = 1
    for _ in range(payloads.MAX_DEPTH):
        value = [value]
    postrow.enqueue(conn, "q", value)
    assert payloads.decode(claimed(conn)) == value
