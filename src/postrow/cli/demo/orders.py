"""What the shop's website does: an order and its messages in one transaction, and some that roll back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg

from postrow.cli.demo.events import Event
from postrow.cli.demo.shop import BUSY_MAIL, HEAVY, UNTAXED, Order, bookings, emails, invoices, webhooks

SHOPS = ("books", "flowers", "toys")  # three owners of messages in one database: tenants
QUEUES = (emails, bookings, invoices)
_ARTICLES = ("atlas", "tulip", "kite", "novel", "fern", "puzzle", "lamp")

TABLES = """
create table orders (
    number   int primary key,
    shop     text not null,
    article  text not null,
    email    text not null
);
create table effect (  -- what handlers did, written by themselves
    n           bigint generated always as identity primary key,
    message_id  uuid not null,
    tenant      text not null,
    queue       text not null,
    subject     text not null,
    attempt     int not null,
    worker      text not null default current_setting('application_name'),
    received    text,
    at          timestamptz not null default clock_timestamp()
);
create index on effect (message_id);
create table rolled_back (  -- messages of transactions that rolled back: only the website knows them; filled at the end
    message_id  uuid primary key,
    number      int not null,
    shop        text not null
)
"""


class CardDeclinedError(Exception):
    """What makes an order roll back, after its messages were enqueued."""


@dataclass(slots=True)
class Website:
    """Takes orders on one connection, and remembers what it did; `heavy` is the order whose worker will be killed."""

    conn: psycopg.Connection[Any]
    heavy: int
    placed: int = 0
    committed: int = 0
    rolled_back: list[tuple[int, str, UUID]] = field(default_factory=list)  # order, shop, message
    events: dict[UUID, Event] = field(default_factory=dict)

    @property
    def refused(self) -> int:
        """How many orders rolled back."""
        return self.placed - self.committed

    def take(self, number: int) -> None:
        """One order: all of it is committed, or nothing was."""
        shop = SHOPS[number % len(SHOPS)]
        order = self._order(number)
        ids: list[UUID] = []
        try:
            with self.conn.transaction():
                self.conn.execute(
                    "insert into orders (number, shop, article, email) values (%s, %s, %s, %s)",
                    [number, shop, order.article, order.email],
                )
                for queue in QUEUES:
                    sent = queue.enqueue(self.conn, order, tenant=shop, subject=f"order:{number}")
                    ids.append(sent.id)
                if number % 10 == 4:
                    raise CardDeclinedError  # noqa: TRY301  # in the transaction: that is what rolls it back
            self.committed += 1
        except CardDeclinedError:
            self.rolled_back += [(number, shop, message_id) for message_id in ids]
        self.placed += 1

    def forward(self, event: Event) -> None:
        """One line of the file of events."""
        with self.conn.transaction():
            sent = webhooks.enqueue(
                self.conn,
                event.payload,
                tenant=SHOPS[event.line % len(SHOPS)],
                subject=f"line:{event.line}",
                headers=None if event.topic is None else {"topic": event.topic},
            )
        self.events[sent.id] = event

    def confess(self) -> None:
        """Write down what was rolled back, so that a query can look for it."""
        with self.conn.transaction(), self.conn.cursor() as cursor:
            cursor.executemany(
                "insert into rolled_back (number, shop, message_id) values (%s, %s, %s)", self.rolled_back
            )

    def _order(self, number: int) -> Order:
        article = HEAVY if number == self.heavy else UNTAXED if number % 50 == 8 else _ARTICLES[number % len(_ARTICLES)]
        host = BUSY_MAIL if number % 25 == 6 else "mail.example"
        return Order(number, article, f"customer-{number}@{host}")


def heavy_of(orders: int) -> int:
    """The order after two fifths of them that nothing else happens to."""
    return next(n for n in range(orders * 2 // 5, orders + 1) if n > 0 and n % 10 in {2, 3, 5, 7, 9})
