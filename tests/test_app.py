import functools
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

import postrow
from postrow.errors import BadArgumentError, ConsumerConflictError, PayloadError


class Welcome(BaseModel):
    user_id: int


@dataclass
class Point:
    x: int


class Order(TypedDict):
    number: int


def test_the_dsn_is_the_given_one_or_the_environments(monkeypatch):
    monkeypatch.setenv("POSTROW_DSN", "postgresql://from/environment")
    assert postrow.App("postgresql://given").dsn == "postgresql://given"
    app = postrow.App()
    monkeypatch.setenv("POSTROW_DSN", "postgresql://later")  # read at the first look, not at the import
    assert app.dsn == "postgresql://later"
    monkeypatch.setenv("POSTROW_DSN", "postgresql://too/late")
    assert app.dsn == "postgresql://later"


@pytest.mark.parametrize("value", [None, ""])
def test_no_dsn_at_all_is_refused_with_the_ways_to_give_one(monkeypatch, value):
    monkeypatch.delenv("POSTROW_DSN", raising=False)
    if value is not None:
        monkeypatch.setenv("POSTROW_DSN", value)
    for app in (postrow.App(), postrow.App("")):
        with pytest.raises(BadArgumentError, match="no database is given") as caught:
            _ = app.dsn
        assert "POSTROW_DSN" in caught.value.hint
        assert "embedded:" in caught.value.hint


@pytest.mark.parametrize("dsn", [7, b"postgresql://x", Path("/x")])
def test_a_dsn_is_a_text(dsn):
    with pytest.raises(BadArgumentError, match="dsn is"):
        postrow.App(dsn)


@pytest.mark.parametrize("type_", [None, dict, list[int], Welcome, Point, dict[str, Welcome]], ids=str)
def test_a_queue_is_declared_once_and_found_by_name(type_):
    app = postrow.App("unused")
    queue = app.queue("emails", type_)
    assert app.queue("emails") is queue
    assert app.queue("emails", type_) is queue
    assert (queue.app, queue.name, queue.type) == (app, "emails", type_)
    assert repr(queue).startswith("Queue('emails', ")


def test_a_type_that_is_equal_is_the_same_type():
    app = postrow.App("unused")
    assert app.queue("numbers", list[int]) is app.queue("numbers", list[int])


def test_a_queue_with_two_types_is_refused():
    app = postrow.App("unused")
    app.queue("emails", Welcome)
    with pytest.raises(BadArgumentError, match=r"queue emails has the type .*Welcome"):
        app.queue("emails", Point)


@pytest.mark.parametrize("name", [None, 7, b"x", ["q"]])
def test_a_queue_has_a_name(name):
    with pytest.raises(BadArgumentError, match="queue is"):
        postrow.App("unused").queue(name)


def test_a_typed_queue_checks_what_goes_in(conn):
    app = postrow.App("unused")
    sent = app.queue("emails", Welcome).enqueue(conn, Welcome(user_id=7))
    found = conn.execute("select payload from postrow.message where id = %s", [sent.id]).fetchone()
    assert found == ({"user_id": 7},)
    with pytest.raises(PayloadError):
        app.queue("emails", Welcome).enqueue(conn, Point(7))
    with pytest.raises(PayloadError):
        app.queue("orders", Order).enqueue(conn, {"number": "x"})


def test_a_handler_has_the_documented_defaults():
    emails = postrow.App("unused").queue("emails", Welcome)

    @emails.consumer()
    async def send_welcome(message): ...

    (consumer,) = emails.app.consumers.values()
    assert consumer.handler is send_welcome
    assert (consumer.queue, consumer.name, consumer.tenant, consumer.concurrency) == (emails, "send_welcome", "*", 10)
    assert (consumer.lease, consumer.timeout, consumer.max_attempts) == (timedelta(minutes=1), None, 5)
    assert (consumer.retry, consumer.keep_history, consumer.batch) == (postrow.Exponential(), True, None)
    assert consumer.is_async


def test_a_queue_has_one_consumer_and_one_for_a_tenant_beside_it():
    app = postrow.App("unused")
    emails = app.queue("emails")
    emails.consumer(name="first")(lambda message: None)
    emails.consumer(name="of-acme", tenant="acme")(lambda message: None)
    for options in ({"name": "second"}, {"name": "first"}, {"name": "other", "tenant": "acme"}):
        with pytest.raises(ConsumerConflictError, match=r"consumed by handler (first|of-acme)") as caught:
            app.queue("emails").consumer(**options)(lambda message: None)
        assert "One consumer for a queue" in caught.value.hint
    assert [consumer.name for consumer in app.consumers.values()] == ["first", "of-acme"]


class Object:
    def method(self, message): ...

    async def async_method(self, message): ...

    async def __call__(self, message): ...


async def with_more(prefix, message): ...


@pytest.mark.parametrize(
    ("handler", "is_async"),
    [
        (lambda message: None, False),
        (Object().method, False),
        (Object().async_method, True),
        (Object(), True),
        (functools.partial(with_more, "x"), True),
    ],
    ids=["lambda", "method", "async method", "object with an async call", "partial"],
)
def test_what_can_be_called_with_a_message_is_a_handler(handler, is_async):
    queue = postrow.App("unused").queue("q")
    assert queue.consumer(name="handler")(handler) is handler
    (consumer,) = queue.app.consumers.values()
    assert consumer.is_async is is_async


def generator(message):
    yield message


async def async_generator(message):
    yield message


@pytest.mark.parametrize(
    "handler", [lambda: None, lambda a, b: None, generator, async_generator, 7, None, lambda *, message: None]
)
def test_what_cannot_be_called_with_a_message_is_no_handler(handler):
    queue = postrow.App("unused").queue("q")
    with pytest.raises(BadArgumentError, match=r"handler .*(is a generator|cannot be called)"):
        queue.consumer(name="handler")(handler)
    assert queue.app.consumers == {}


@pytest.mark.parametrize(
    "option",
    [
        {"concurrency": 0},
        {"concurrency": None},
        {"concurrency": True},
        {"concurrency": 100_001},
        {"lease": 0},
        {"lease": 0.2},
        {"lease": None},
        {"lease": timedelta(days=367)},
        {"lease": "60"},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": "x"},
        {"max_attempts": 0},
        {"max_attempts": None},
        {"max_attempts": 2.5},
        {"max_attempts": 2**31},
        {"retry": "exponential"},
        {"retry": 7},
        {"retry": postrow.Exponential},
        {"keep_history": None},
        {"batch": 0},
        {"batch": 501},
        {"batch": 2.5},
        {"batch": True},
        {"batch": "10"},
        {"keep_history": 0},
        {"name": 7},
        {"tenant": None},
        {"tenant": b"x"},
    ],
    ids=str,
)
def test_an_option_of_a_handler_outside_its_range_is_refused_by_name(option):
    queue = postrow.App("unused").queue("q")
    (name,) = option
    with pytest.raises(BadArgumentError, match=name):
        queue.consumer(**option)(lambda message: None)
    assert queue.app.consumers == {}
