"""Queues with a type: what is sent comes back equal, or is refused with the field's name."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Generic, Literal, NotRequired, TypeVar
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, computed_field, field_serializer
from pydantic import dataclasses as pydantic_dataclasses
from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from postrow.errors import BadArgumentError, PayloadError, PayloadTypeError, PayloadUnicodeError
from postrow.payload import Codec, decode, encode

T = TypeVar("T")
BASE64 = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
ANY_BYTES = bytes(range(256))


class Plan(Enum):
    FREE = 1
    PRO = "pro"


class Level(IntEnum):
    HIGH = 3


class Item(TypedDict):
    price: Decimal
    note: NotRequired[bytes]


@dataclass
class Inner:
    blob: bytes
    plan: Plan = Plan.FREE


@dataclass(frozen=True, slots=True)
class Order:
    number: int
    name: str = "x"
    at: datetime | None = None
    price: Decimal = Decimal("1.10")
    items: list[Item] = field(default_factory=list)
    inner: Inner | None = None
    by_day: dict[date, int] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    pair: tuple[int, ...] = ()
    ratio: float = 0.0
    anything: Any = None


class Welcome(BaseModel):
    user_id: int
    email: str = "ada@example.com"
    ratio: float | None = None
    blob: bytes = b""
    extra: Any = None


class WelcomePlus(Welcome):
    coupon: str = "c"


class Blob(BaseModel):
    model_config = BASE64
    data: bytes
    inner: Inner | None = None


@pydantic_dataclasses.dataclass
class Checked:
    number: int


@dataclass
class Node:
    children: list[Node]
    inner: Inner | None = None


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    name: str


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Box(BaseModel, Generic[T]):
    it: T


PARIS = ZoneInfo("Europe/Paris")
IDENTIFIER = uuid.UUID("0192f3a0-0000-7000-8000-000000000001")
ROUND_TRIPS = [
    (int, -(10**4298), None),
    (float, 1e23, "100000000000000000000000.0"),
    (float, 3, "3.0"),
    (str, "Zoë", '"Zoë"'),
    (bytes, b"\xfb\xff\xfe\x00", '"-__-AA=="'),
    (bytes, ANY_BYTES, None),
    (uuid.UUID, IDENTIFIER, f'"{IDENTIFIER}"'),
    (Decimal, Decimal("1.10"), '"1.10"'),
    (Decimal, Decimal("-0E+7"), '"-0E+7"'),
    (datetime, datetime(2024, 5, 1, 12, 0, 0), '"2024-05-01T12:00:00"'),  # noqa: DTZ001
    (datetime, datetime(2024, 5, 1, 12, 0, 0, 1, UTC), '"2024-05-01T12:00:00.000001Z"'),
    (
        datetime,
        datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=-3.5))),
        '"2024-05-01T12:00:00-03:30"',
    ),
    (datetime, datetime(2024, 10, 27, 2, 30, tzinfo=PARIS), '"2024-10-27T02:30:00+02:00"'),
    (datetime, datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=PARIS), '"2024-10-27T02:30:00+01:00"'),
    (datetime, datetime.min, '"0001-01-01T00:00:00"'),  # noqa: DTZ901
    (date, date(2024, 2, 29), '"2024-02-29"'),
    (time, time(1, 2, 3, 4), '"01:02:03.000004"'),
    (time, time(1, 2, 3, tzinfo=UTC), '"01:02:03Z"'),
    (timedelta, timedelta(microseconds=-1), '"-PT0.000001S"'),
    (timedelta, timedelta(days=400, hours=2), '"P1Y35DT2H"'),
    (timedelta, timedelta.max, None),
    (timedelta, timedelta.min, None),
    (Plan, Plan.PRO, '"pro"'),
    (Level, Level.HIGH, "3"),
]


@pytest.mark.parametrize(("type_", "value", "text"), ROUND_TRIPS, ids=lambda value: repr(value)[:40])
def test_a_value_comes_back_typed(type_, value, text):
    codec = Codec(type_)
    written = codec.encode(value)
    assert text is None or written == text
    back = codec.decode(written)
    assert isinstance(back, type_)
    assert str(back) == str(float(value) if type_ is float else value) or back == value
    if isinstance(value, datetime):
        assert back.utcoffset() == value.utcoffset()


@pytest.mark.parametrize(("type_", "value", "text"), ROUND_TRIPS, ids=lambda value: repr(value)[:40])
def test_plain_json_writes_what_a_queue_with_a_type_writes(type_, value, text):
    if type_ is not float:  # where the declaration turns an int into a float
        assert encode({"a": [value]}) == f'{{"a":[{Codec(type_).encode(value)}]}}'


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Order, Order(1)),
        (
            Order,
            Order(
                2,
                at=datetime(2024, 5, 1, tzinfo=UTC),
                items=[{"price": Decimal("0.10")}, {"price": Decimal(3), "note": ANY_BYTES}],
                inner=Inner(ANY_BYTES, Plan.PRO),
                by_day={date(2024, 5, 1): 3},
                tags=frozenset({"a", "b"}),
                pair=(1, 2),
                ratio=1e23,
                anything={"n": [1, None]},
            ),
        ),
        (Item, {"price": Decimal("1.00"), "note": b"\xff"}),
        (Welcome, Welcome(user_id=1, blob="Zoë".encode(), extra=[1, {"a": None}])),
        (Blob, Blob(data=ANY_BYTES, inner=Inner(ANY_BYTES))),
        (Checked, Checked(1)),
        (Node, Node([Node([], Inner(b"\xff")), Node([])])),
        (Cat | Dog, Dog(name="Rex")),
        (Annotated[Cat | Dog, Field(discriminator="kind")], Dog(name="Rex")),
        (Box[Order], Box[Order](it=Order(1))),
        (RootModel[list[int]], RootModel[list[int]]([1])),
        (list[Order], [Order(1), Order(2)]),
        (dict[int, str], {1: "a"}),
        (set[int], {1, 2}),
        (tuple[int, str], (1, "a")),
        (dict, {"a": [1]}),
        (dict[str, Any], {"a": [1]}),
        (list, [1, "a"]),
        (None, {"a": [None]}),
        (Any, "a"),
        (str | None, None),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:30],
)
def test_a_payload_comes_back_equal_and_of_the_same_class(type_, value):
    codec = Codec(type_)
    back = codec.decode(codec.encode(value))
    assert back == value
    assert type(back) is type(value)
    assert codec.decode(codec.encode(value).encode()) == value


@pytest.mark.parametrize(
    ("type_", "value", "message"),
    [
        (Order, Order("17"), "payload.number: is of type str, and would come back as int"),
        (Order, Order("x"), "payload.number: Input should be a valid integer"),
        (Order, Order(1.0), "payload.number: is of type float, and would come back as int"),
        (Order, Order(1, name=IDENTIFIER), "payload.name: is of type UUID, and would come back as str"),
        (
            Order,
            Order(1, at=date(2024, 5, 1)),
            "payload.at: is of type date, and would come back as datetime",
        ),
        (Order, Order(1, price=1.5), "payload.price: is of type float, and would come back as Decimal"),
        (Order, Order(1, price=Decimal("NaN")), "payload.price: Input should be a finite number"),
        (Order, Order(1, ratio=float("nan")), "payload.ratio: the float nan"),
        (Order, Order(1, pair=[1]), "payload.pair: is of type list, and would come back as tuple"),
        (Order, Order(1, inner=Inner("text")), "payload.inner.blob: "),
        (Order, Order(1, inner=Inner(b"", "pro")), "payload.inner.plan: "),
        (
            Order,
            Order(1, items=[{"price": Decimal(1), "odd": 1}]),
            "payload.items[0].odd: would not come back",
        ),
        (Order, Order(1, items=[{}]), "payload.items[0].price: Field required"),
        (Order, Order(1, anything={1: 2}), "payload.anything[1]: would not come back"),
        (Order, Order(1, anything=[{1}]), "payload.anything[0]: is of type set, and would come back as list"),
        (Order, Order(1, anything=float("inf")), "payload.anything: the float inf"),
        (Order, Order(10**5000), "payload: Invalid JSON: number out of range"),
        (Order, {"number": 1}, "payload: is of type dict, and would come back as Order"),
        (Order, None, "payload: "),
        (Item, {"price": "1"}, "payload.price: is of type str, and would come back as Decimal"),
        (Welcome, WelcomePlus(user_id=1), "payload: is of type WelcomePlus, and would come back as Welcome"),
        (Welcome, Welcome(user_id=1, blob=b"\xff"), "payload.blob: bytes that are not UTF-8."),
        (Welcome, Welcome(user_id=1, ratio=float("inf")), "payload.ratio: the float inf"),
        (Welcome, Welcome(user_id=1, extra=float("nan")), "payload.extra: "),
        (Welcome, Welcome.model_construct(user_id="1"), "payload.user_id: is of type str"),
        (Welcome, Welcome.model_construct(), "payload.user_id: Field required"),
        (Welcome, {"user_id": 1}, "payload: "),
        (dict[int, str], {"1": "a"}, 'payload["1"]: would not come back'),
        (list[int], [1, "2"], "payload[1]: is of type str"),
        (datetime, datetime(1880, 1, 1, tzinfo=PARIS), "payload: datetime.datetime(1880"),  # +00:09:21
        (dict, [1], "payload: should be a dict, is a list"),
        (dict[str, Any], {1: 2}, "payload: the key 1 is of type int"),
        (list[Any], {"a": 1}, "payload: should be a list[typing.Any], is a dict"),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_a_payload_that_would_not_come_back_equal_is_refused_with_the_field(type_, value, message):
    with pytest.raises(PayloadError) as refused:
        Codec(type_).encode(value)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Order(1, name="\0"), "payload.name: a NUL character"),
        (Order(1, inner=None, anything={"\ud800": 1}), r'payload.anything["\ud800"]: a lone surrogate'),
    ],
)
def test_text_that_jsonb_cannot_store_is_refused_with_the_field(value, message):
    with pytest.raises(PayloadUnicodeError) as refused:
        Codec(Order).encode(value)
    assert message in str(refused.value)


def test_bytes_in_a_model_that_are_not_utf8_are_refused_with_what_to_write():
    with pytest.raises(PayloadError, match=r'ConfigDict\(ser_json_bytes="base64", val_json_bytes="base64"\)'):
        Codec(Welcome).encode(Welcome(user_id=1, blob=b"\xff"))


@pytest.mark.parametrize(
    "config",
    [
        ConfigDict(ser_json_bytes="base64"),
        ConfigDict(val_json_bytes="base64"),
        ConfigDict(ser_json_bytes="hex"),
    ],
)
def test_a_model_that_writes_bytes_in_one_way_and_reads_them_in_another_is_refused(config):
    class Odd(BaseModel):
        model_config = config
        data: bytes

    with pytest.raises(PayloadError, match=r"payload\.data: "):
        Codec(Odd).encode(Odd(data=b"four"))


def test_a_serializer_without_its_validator_is_refused():
    class Hashed(BaseModel):
        secret: str

        @field_serializer("secret")
        def hide(self, _value: str) -> str:
            return "***"

    with pytest.raises(PayloadError, match=r"payload\.secret: 'a' would come back as '\*\*\*'"):
        Codec(Hashed).encode(Hashed(secret="a"))


def test_aliases_are_what_is_stored():
    class Aliased(BaseModel):
        user_id: int = Field(alias="userId")

    codec = Codec(Aliased)
    text = codec.encode(Aliased(userId=1))
    assert text == '{"userId":1}'
    assert codec.decode(text) == Aliased(userId=1)


def test_what_a_model_leaves_out_or_computes_is_not_carried():
    class Partial(BaseModel):
        number: int
        cache: int = Field(0, exclude=True)
        _hidden: int = PrivateAttr(0)

        @computed_field
        def double(self) -> int:
            return 2 * self.number

    value = Partial(number=1, cache=7)
    value._hidden = 3
    codec = Codec(Partial)
    assert codec.encode(value) == '{"number":1}'
    assert codec.decode('{"number":1}') == Partial(number=1)


def test_what_a_pydantic_dataclass_leaves_out_is_not_carried():
    @pydantic_dataclasses.dataclass
    class Partial:
        number: int
        cache: int = Field(default=0, exclude=True)

    assert Codec(Partial).encode(Partial(1, 7)) == '{"number":1}'


def test_a_model_that_allows_extra_fields_carries_them():
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        number: int

    codec = Codec(Open)
    value = Open(number=1, more=[1])
    assert codec.decode(codec.encode(value)) == value


def test_a_field_declared_any_follows_the_rules_of_plain_json():
    value = Order(1, anything=[(1, 2), IDENTIFIER, Decimal("1.10"), Plan.PRO, datetime(2024, 5, 1, tzinfo=UTC)])
    codec = Codec(Order)
    back = codec.decode(codec.encode(value))
    assert back.anything == [[1, 2], str(IDENTIFIER), "1.10", "pro", "2024-05-01T00:00:00Z"]
    assert back.anything == decode(encode(value.anything))


def test_a_class_without_equality_is_compared_by_its_fields():
    @dataclass(eq=False)
    class Plain:
        number: int
        items: list[int]

    codec = Codec(Plain)
    back = codec.decode(codec.encode(Plain(1, [2])))
    assert (back.number, back.items) == (1, [2])
    with pytest.raises(PayloadError, match=r"payload\.items\[0\]: is of type str"):
        codec.encode(Plain(1, ["2"]))


def test_an_object_that_holds_itself_is_refused():
    node = Node([])
    node.children.append(node)
    for write in (encode, Codec(Node).encode):
        with pytest.raises(PayloadError, match="payload: Circular reference"):
            write(node)


def test_the_limits_of_a_queue_with_a_type_are_named():
    value: Any = 1
    for _ in range(230):
        value = [value]
    with pytest.raises(PayloadError, match="carries about 200 levels"):
        Codec(Order).encode(Order(1, anything=value))


@pytest.mark.parametrize(
    ("type_", "text", "message"),
    [
        (
            Order,
            '{"number": "x"}',
            "the type of its queue, Order: payload.number: Input should be a valid integer",
        ),
        (Order, '{"number": 1, "inner": {"blob": "*"}}', "payload.inner.blob: Data should be valid base64"),
        (Order, '{"number": 1, "items": [{}, 3]}', "payload.items[0].price: Field required (and 1 more)"),
        (Order, f'{{"number": 1, "ratio": 1{"0" * 400}}}', "payload.ratio: Input should be a "),
        (Order, "[]", "payload: Input should be an object"),
        (Welcome, "null", "the type of its queue, Welcome: payload: Input should be an object"),
        (Plan, '"gold"', "payload: Input should be 1 or 'pro'"),
        (dict, "[]", "payload: should be a dict, is a list"),
        (None, "9" * 400 + ".5", "the stored payload cannot be read: the number 9999"),
    ],
)
def test_a_stored_payload_of_another_shape_is_refused_with_the_type_and_the_field(type_, text, message):
    with pytest.raises(PayloadTypeError) as refused:
        Codec(type_).decode(text)
    assert message in str(refused.value)


def test_the_error_about_a_stored_payload_does_not_show_the_value():
    with pytest.raises(PayloadTypeError) as refused:
        Codec(Order).decode('{"number": "hunter2"}')
    assert "hunter2" not in str(refused.value)


def test_a_validator_that_raises_anything_is_a_payload_error():
    class Fragile(BaseModel):
        number: int

        def model_post_init(self, _context: object) -> None:
            raise KeyError(self.number)

    with pytest.raises(PayloadTypeError, match="payload: KeyError: 1"):
        Codec(Fragile).decode('{"number": 1}')


class Opaque:
    pass


@pytest.mark.parametrize("type_", [Opaque, list[Opaque], Annotated[Opaque, []], dict[str, Annotated[Opaque, []]], 3])
def test_a_type_that_cannot_be_carried_is_refused_when_the_queue_is_made(type_):
    with pytest.raises(BadArgumentError, match=r"cannot be the payload of a queue: .*schema"):
        Codec(type_)


@pytest.mark.parametrize("type_", [Callable[[], int], "Undefined"])
def test_a_type_that_turns_out_to_be_no_use_is_refused_at_the_latest_when_it_is_used(type_):
    with pytest.raises((PayloadError, BadArgumentError), match="payload"):
        Codec(type_).encode(len)


def test_the_class_of_the_user_is_not_changed():
    before = set(vars(Inner))
    Codec(Inner).encode(Inner(b"\xff"))
    assert {name for name in set(vars(Inner)) - before if "config" in name} == set()
