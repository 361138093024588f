"""The message that a handler gets: a `Message` like any other, made of a claim's row at the first look."""

import copy
import dataclasses
import json
import types
import weakref
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest

from postrow import App, Message, PayloadTypeError
from postrow.models import Claimed, Failure, moment
from postrow.worker.handed import HandedMessage, hand
from postrow.worker.slots import Slot

MOMENT = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
ID, PARENT, TOKEN = uuid4(), uuid4(), uuid4()
FAILURE = {
    "attempt": 1,
    "at": "2026-03-01T12:00:00+00:00",
    "worker": "w",
    "type": "E",
    "message": "m",
    "traceback": "t",
}


def micros(at):
    return (at - EPOCH) // timedelta(microseconds=1)


def row(**fields):
    """A claim's row, with something in every column."""
    whole = {
        "lane": 1, "frontier": None, "took": 0, "claimed": micros(MOMENT) + 2_500_000,
        "tenant": "acme", "priority": 3, "key": ID.bytes, "payload": '{"a": [1, "é"]}',
        "headers": '{"h": 1}', "attempt": 2, "max_attempts": 7, "due": micros(MOMENT), "enqueued": micros(MOMENT) - 1,
        "subject": "s", "target": "w1", "group_key": "g", "topic": "t", "parent": PARENT.bytes, "hops": 4,
        "expires": micros(MOMENT) + 1, "failures": json.dumps([FAILURE]), "place": b"\0\0\0\0\0\1",
    }  # fmt: skip
    assert tuple(whole) == Claimed._fields
    return Claimed(**whole | fields)


class Calls:
    """What `extend` and `transaction` were asked for."""

    def __init__(self):
        self.made = []

    def extend(self, slot, lease):
        self.made.append(("extend", slot, lease))

    def begin(self, slot, message):
        self.made.append(("transaction", slot, message))


@pytest.fixture
def calls():
    return Calls()


@pytest.fixture
def handed(calls):
    """Makes the message of a row, in a queue of a type."""
    apps = []

    def make(type_=None, **fields):
        apps.append(App("postgresql://nowhere"))
        queue = apps[-1].queue("q", type_)
        slot = Slot(row(**fields), TOKEN, SimpleNamespace(queue=queue), 0.0)
        return hand(slot, calls.extend, calls)

    yield make
    for app in apps:
        app.close()


EXPECTED = {
    "id": ID,
    "tenant": "acme",
    "queue": "q",
    "payload": {"a": [1, "é"]},
    "headers": {"h": 1},
    "attempt": 2,
    "max_attempts": 7,
    "enqueued_at": MOMENT - timedelta(microseconds=1),
    "due_at": MOMENT,
    "priority": 3,
    "subject": "s",
    "target": "w1",
    "group_key": "g",
    "topic": "t",
    "parent_id": PARENT,
    "hops": 4,
    "expires_at": MOMENT + timedelta(microseconds=1),
    "failures": (Failure(1, datetime(2026, 3, 1, 12, tzinfo=UTC), "w", "E", "m", "t"),),
    "claim_token": TOKEN,
}
NULLABLE = {
    "headers": {"headers": None},
    "max_attempts": {"max_attempts": None},
    "subject": {"subject": None},
    "target": {"target": None},
    "group_key": {"group_key": None},
    "topic": {"topic": None},
    "parent_id": {"parent": None},
    "expires_at": {"expires": None},
    "failures": {"failures": None},
}
EMPTY = {"headers": {}, "failures": ()}


def public(cls):
    return {field.name for field in dataclasses.fields(cls) if not field.name.startswith("_")}


def test_it_has_every_field_of_a_message():
    assert set(EXPECTED) == public(Message)


@pytest.mark.parametrize("field", EXPECTED)
def test_each_field_is_what_the_row_says(handed, field):
    value = getattr(handed(), field)

    assert value == EXPECTED[field]
    assert type(value) is type(EXPECTED[field]) or field == "headers"


@pytest.mark.parametrize("field", NULLABLE)
def test_a_null_is_none_or_empty(handed, field):
    assert getattr(handed(**NULLABLE[field]), field) == EMPTY.get(field)


def test_it_is_a_message_and_says_so(handed):
    message = handed()

    assert isinstance(message, Message)
    assert repr(message).startswith("Message(id=UUID(")
    shown = {field.name for field in dataclasses.fields(Message) if field.repr}
    assert {field for field in EXPECTED if f"{field}=" in repr(message)} == shown


def test_it_cannot_be_changed(handed):
    message = handed()
    for name in ("payload", "id", "anything"):
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
            setattr(message, name, 1)
    with pytest.raises(TypeError):
        message.headers["h"] = 2
    assert isinstance(message.headers, types.MappingProxyType)


def test_a_field_is_made_once(handed):
    message = handed()
    for field in ("payload", "id", "failures", "due_at", "headers"):
        assert getattr(message, field) is getattr(message, field)


def test_what_nobody_looks_at_is_not_read(handed):
    message = handed(payload="{broken", headers="{broken", failures="{broken", due=2**63 - 1, expires=-(2**63))

    assert message.id == ID
    assert message.attempt == 2


def test_there_are_no_other_attributes(handed):
    message = handed()
    for name in ("nothing", "__wrapped__", "_nothing"):
        with pytest.raises(AttributeError, match=f"'Message' object has no attribute '{name}'"):
            getattr(message, name)
        assert not hasattr(message, name)
    assert not hasattr(HandedMessage.__new__(HandedMessage), "payload"), "nor of one without a slot, and it ends"


def test_two_of_one_row_are_equal_in_what_a_message_has(handed):
    one = handed()
    other = dataclasses.replace(one, payload={"other": 1})

    assert type(other) is type(one)
    assert other.payload == {"other": 1}
    assert other.id == one.id
    assert one.payload == EXPECTED["payload"]
    assert {name: getattr(copy.copy(one), name) for name in EXPECTED} == EXPECTED


def test_extend_and_transaction_are_of_its_own_slot(handed, calls):
    message = handed()
    message.extend(timedelta(seconds=5))
    message.transaction()

    (extended, extending, lease), (began, beginning, whose) = calls.made
    assert (extended, lease, began) == ("extend", timedelta(seconds=5), "transaction")
    assert extending is beginning
    assert extending.token == TOKEN
    assert whose is message


def test_a_typed_payload_is_read_when_it_is_handed_and_not_again(handed, monkeypatch):
    reads = []

    @dataclasses.dataclass
    class Order:
        a: list[int | str]

        def __post_init__(self):
            reads.append(self)

    message = handed(Order)
    assert len(reads) == 1
    assert message.payload is message.payload is reads[0]
    assert len(reads) == 1


def test_a_payload_that_does_not_fit_the_type_is_refused_when_it_is_handed(handed):
    with pytest.raises(PayloadTypeError):
        handed(list[int])
    with pytest.raises(PayloadTypeError):
        handed(list)


def test_a_plain_payload_that_cannot_be_read_is_an_error_at_the_look_at_it_and_at_each(handed):
    message = handed(payload="[" * 100_000)
    for _ in range(2):
        with pytest.raises(PayloadTypeError, match="the stored payload cannot be read"):
            message.payload  # noqa: B018
    assert message.id == ID


def test_a_moment_is_what_postgres_counts():
    assert moment(0) == EPOCH
    assert moment(micros(MOMENT)) == MOMENT
    assert moment(-1) == EPOCH - timedelta(microseconds=1)


def test_a_row_says_how_long_the_message_waited():
    assert row().waited == 2.5
    assert (row().id, row().due_at) == (UUID(bytes=ID.bytes), MOMENT)


# in a worker


def test_a_payload_that_cannot_be_read_fails_its_message_once_and_no_other(app, db, start, wait_for, monkeypatch):
    queue = app.queue("q")
    seen = []

    @queue.consumer(max_attempts=1)
    async def handler(message):
        seen.append(message.id)
        return message.payload

    real = queue.codec.decode

    def decode(text):
        if "bad" in text:
            raise PayloadTypeError("the stored payload cannot be read: bad")
        return real(text)

    monkeypatch.setattr(type(queue.codec), "decode", lambda _, text: decode(text))
    good, bad, other = db.put(payload="good"), db.put(payload="bad"), db.put(payload="other")
    start()
    wait_for(lambda: not db.live())

    assert sorted(seen) == sorted([good, bad, other])
    assert db.history(good)
    assert db.history(other)
    (failure,) = db.dead(bad).failures
    assert failure["type"] == "postrow.PayloadTypeError" or failure["type"].endswith("PayloadTypeError")


class Value(dict):
    """A payload that can be watched."""


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("batch", [None, 10])
def test_a_worker_that_has_nothing_to_do_holds_no_payload(app, db, start, wait_for, monkeypatch, kind, batch):
    queue = app.queue("q")
    alive = []

    def decode(_, text):
        value = Value(json.loads(text))
        alive.append(weakref.ref(value))
        return value

    monkeypatch.setattr(type(queue.codec), "decode", decode)

    async def in_the_loop(given):
        in_a_thread(given)

    def in_a_thread(given):
        assert all(message.payload for message in (given if batch else [given]))

    queue.consumer(batch=batch)(in_the_loop if kind == "async" else in_a_thread)
    db.put_many([{"n": n} for n in range(20)])
    start()
    wait_for(lambda: db.done() == 20)

    wait_for(lambda: len(alive) == 20 and not any(ref() for ref in alive), what="the payloads to be let go")
