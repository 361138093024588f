"""Handlers see the type of their queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, reveal_type

from pydantic import BaseModel
from typing_extensions import TypedDict

import postrow


class Welcome(BaseModel):
    user_id: int
    email: str


@dataclass
class Charge:
    cents: int


class Order(TypedDict):
    number: int


app = postrow.App("postgresql://localhost/shop")
emails = app.queue("emails", Welcome)
charges = app.queue("charges", Charge)
orders = app.queue("orders", Order)
numbers = app.queue("numbers", list[int])
plain = app.queue("plain")


@emails.consumer(concurrency=20, lease=60, timeout=timedelta(seconds=30), max_attempts=5, retry=postrow.Linear(base=1))
async def send_welcome(message: postrow.Message[Welcome]) -> None:
    reveal_type(message.payload.email)  # R: str
    reveal_type(message.failures[0].message)  # R: str | None
    await message.extend(300)
    raise postrow.Retry(after=60)


@charges.consumer()
def charge(message: postrow.Message[Charge]) -> int:
    if message.attempt > 3:
        raise postrow.Bury("card closed")
    if message.payload.cents == 0:
        raise postrow.Snooze(until=timedelta(hours=1))
    return message.payload.cents


@orders.consumer()
def order(message: postrow.Message[Order]) -> None:
    reveal_type(message.payload["number"])  # R: int


@numbers.consumer()
def add(message: postrow.Message[list[int]]) -> None:
    reveal_type(message.payload)  # R: list[int]


@plain.consumer()
def anything(message: postrow.Message[Any]) -> None: ...


@app.queue("more", Charge).consumer()
def base(message: postrow.Message[object]) -> None:  # who takes anything takes a Charge
    ...


@emails.consumer(batch=100, concurrency=2, timeout=30)
async def send_many(messages: list[postrow.Message[Welcome]]) -> list[Exception | None]:
    reveal_type(messages[0].payload.email)  # R: str
    return [None for _ in messages]


@charges.consumer(batch=10)
def charge_many(messages: Sequence[postrow.Message[Charge]]) -> None: ...


@emails.consumer(batch=10)  # E: arg-type
def of_one_of_many(message: postrow.Message[Welcome]) -> None: ...


@emails.consumer()  # E: arg-type
def of_many_of_one(messages: list[postrow.Message[Welcome]]) -> None: ...


@emails.consumer(batch="10")  # E: call-overload, untyped-decorator
def of_a_word(messages: list[postrow.Message[Welcome]]) -> None: ...


# a handler stays a function that can be called in a test
def call(message: postrow.Message[Charge]) -> int:
    return charge(message)


@emails.consumer()  # E: arg-type
def of_another_type(message: postrow.Message[Charge]) -> None: ...


@emails.consumer()  # E: arg-type
def of_the_payload_alone(message: Welcome) -> None: ...


@emails.consumer()  # E: arg-type
def of_nothing() -> None: ...


@emails.consumer(concurency=3)  # E: call-overload, untyped-decorator
def misspelt(message: postrow.Message[Welcome]) -> None: ...


@emails.consumer(retry="exponential")  # E: call-overload, untyped-decorator
def with_a_word(message: postrow.Message[Welcome]) -> None: ...


def changes(message: postrow.Message[Welcome]) -> None:
    message.attempt = 1  # E: misc
