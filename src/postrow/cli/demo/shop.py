"""The shop: its queues and handlers. `postrow worker postrow.cli.demo.shop:app` runs them."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import dataclass
from typing import Any

import psycopg

import postrow
from postrow import payload as payloads

LEASE = 2.0  # seconds that a worker may hold a message without a sign of life; short, so that the demo is
PARENT_VARIABLE = "POSTROW_DEMO_PARENT"  # set for a worker whose standard input ends when the demo does

BUSY_MAIL = "busy.example"  # the mail server that refuses twice
UNTAXED = "moon rock"  # no tax rate, so no invoice, ever
HEAVY = "grand piano"  # takes long to book: the worker that does it is killed


@dataclass(frozen=True, slots=True)
class Order:
    """What each of the three messages of an order carries."""

    number: int
    article: str
    email: str


class MailServerBusyError(Exception):
    """A passing trouble: the next try may work."""


class NoTaxRateError(Exception):
    """A lasting trouble: no try will ever work."""


app = postrow.App()
emails = app.queue("demo.email", Order)
bookings = app.queue("demo.warehouse", Order)
invoices = app.queue("demo.invoice", Order)
webhooks = app.queue("demo.webhook")

# Half a second to the next try: an application would give it seconds, or minutes.
soon = postrow.Exponential(base=0.5, factor=1.5)


@emails.consumer(name="send_email", concurrency=8, lease=LEASE, max_attempts=8, retry=soon)
async def send_email(message: postrow.Message[Order]) -> None:
    """Fails twice when the customer's mail server is busy."""
    refused = sum((failure.type or "").endswith(MailServerBusyError.__name__) for failure in message.failures)
    if message.payload.email.endswith(BUSY_MAIL) and refused < 2:
        raise MailServerBusyError("421 busy, try again later")
    await diary.write(message)
    await asyncio.sleep(0.03)


@bookings.consumer(name="book_stock", concurrency=16, lease=LEASE, max_attempts=8, retry=soon)
async def book_stock(message: postrow.Message[Order]) -> None:
    """Books first, then has the label printed: a worker that dies meanwhile has booked, and could not say so."""
    await diary.write(message)
    await asyncio.sleep(1.5 if message.payload.article == HEAVY else 0.2)


@invoices.consumer(name="write_invoice", concurrency=8, lease=LEASE, max_attempts=3, retry=soon)
async def write_invoice(message: postrow.Message[Order]) -> None:
    """Fails each time where there is no tax rate."""
    if message.payload.article == UNTAXED:
        raise NoTaxRateError(f"no tax rate for {UNTAXED}")
    await asyncio.sleep(0.02)
    await diary.write(message)


@webhooks.consumer(name="take_webhook", concurrency=16, lease=LEASE, max_attempts=8, retry=soon)
async def take_webhook(message: postrow.Message[Any]) -> None:
    """Writes down what has arrived, to be compared with what was sent."""
    await diary.write(message, received=payloads.encode(message.payload))


class Diary:
    """Writes what a handler did into the table `effect`, on one connection of the process, each line a transaction."""

    def __init__(self) -> None:
        self._conn: psycopg.AsyncConnection[Any] | None = None
        self._connecting = asyncio.Lock()

    async def write(self, message: postrow.Message[Any], *, received: str | None = None) -> None:
        """The handler's effect: an e-mail sent, a piece of stock booked. `worker` is the connection's name."""
        async with self._connecting:
            if self._conn is None or self._conn.closed:
                self._conn = await psycopg.AsyncConnection.connect(app.dsn, autocommit=True)
        await self._conn.execute(
            "insert into effect (message_id, tenant, queue, subject, attempt, received) "
            "values (%s, %s, %s, %s, %s, %s)",
            [message.id, message.tenant, message.queue, message.subject, message.attempt, received],
        )


diary = Diary()


def _end_with_the_demo() -> None:
    """When the demo is gone (kill -9 too), so is this process."""
    while os.read(0, 1):
        pass
    os._exit(1)


if os.environ.get(PARENT_VARIABLE):
    threading.Thread(target=_end_with_the_demo, name="demo-parent", daemon=True).start()
