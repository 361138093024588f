from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.types.datetime import TimestamptzLoader
from sqlalchemy.orm import Session

import postrow
from postrow import App
from postrow.testing import drain, enqueued


@dataclass
class Order:
    number: int


def test_enqueued_gives_what_the_transaction_has_put_in_and_not_committed(postrow_conn, postrow_dsn):
    sent = postrow.enqueue(postrow_conn, "orders", {"number": 1})
    (message,) = enqueued(postrow_conn, "orders")
    assert (message.id, message.payload, message.tenant, message.queue) == (
        sent.id,
        {"number": 1},
        "default",
        "orders",
    )
    with psycopg.connect(postrow_dsn) as other:
        assert enqueued(other, "orders") == []
    postrow_conn.rollback()
    assert enqueued(postrow_conn, "orders") == []


def test_enqueued_gives_payloads_of_the_type_of_a_queue(postrow_conn):
    orders = App("postgresql://nowhere").queue("orders", Order)
    orders.enqueue_many(postrow_conn, [Order(1), Order(2)])
    assert [message.payload for message in enqueued(postrow_conn, orders)] == [Order(1), Order(2)]


def test_enqueued_refuses_a_payload_that_does_not_fit_the_type(postrow_conn):
    postrow.enqueue(postrow_conn, "orders", "many")
    with pytest.raises(postrow.PayloadTypeError):
        enqueued(postrow_conn, App("postgresql://nowhere").queue("orders", Order))


def test_enqueued_gives_every_option(postrow_conn):
    expires = datetime(2090, 1, 1, tzinfo=UTC)
    postrow.enqueue(
        postrow_conn,
        "orders",
        None,
        tenant="acme",
        priority=3,
        delay=timedelta(minutes=5),
        max_attempts=2,
        target="laptop",
        subject="order:17",
        expires_at=expires,
        headers={"trace": "t"},
    )
    (message,) = enqueued(postrow_conn, "orders")
    assert message.payload is None
    assert (message.tenant, message.priority, message.delay) == ("acme", 3, timedelta(minutes=5))
    assert (message.max_attempts, message.target, message.subject) == (2, "laptop", "order:17")
    assert (message.expires_at, message.headers) == (expires, {"trace": "t"})
    assert (message.attempt, message.claimed, message.dedup_key) == (0, False, None)
    assert message.available_at == message.enqueued_at + timedelta(minutes=5)


def test_enqueued_gives_the_key_of_deduplication(postrow_conn):
    postrow_conn.execute("select postrow.enqueue('orders', '1', dedup_key => 'k')")
    assert [message.dedup_key for message in enqueued(postrow_conn, "orders")] == ["k"]


def test_enqueued_of_one_tenant_leaves_the_others_out(postrow_conn):
    for tenant in ("a", "b"):
        postrow.enqueue(postrow_conn, "orders", tenant, tenant=tenant)
    assert [message.payload for message in enqueued(postrow_conn, "orders", tenant="b")] == ["b"]
    assert [message.payload for message in enqueued(postrow_conn, "orders")] == ["a", "b"]


def test_enqueued_shows_claimed_messages_and_no_finished_ones(postrow_conn, app, postrow_dsn):
    seen = []

    @app.queue("orders").consumer()
    def handle(message):
        with psycopg.connect(postrow_dsn) as conn:
            seen.extend(enqueued(conn, "orders"))

    app.send("orders", 1)
    drain(app)
    assert [(message.claimed, message.attempt) for message in seen] == [(True, 1)]
    assert enqueued(postrow_conn, "orders") == []


async def test_enqueued_on_an_async_connection_is_awaited(postrow_dsn):
    async with await psycopg.AsyncConnection.connect(postrow_dsn) as conn:
        await postrow.enqueue(conn, "orders", 1)
        assert [message.payload for message in await enqueued(conn, "orders")] == [1]


async def test_enqueued_on_a_connection_of_asyncpg(postrow_dsn):
    conn = await asyncpg.connect(postrow_dsn)
    try:
        async with conn.transaction():
            await postrow.enqueue(conn, "orders", {"number": 1}, delay=5)
            (message,) = await enqueued(conn, "orders")
            assert (message.payload, message.delay) == ({"number": 1}, timedelta(seconds=5))
    finally:
        await conn.close()


def test_enqueued_in_a_session_of_sqlalchemy(postrow_dsn):
    engine = sqlalchemy.create_engine(postrow_dsn.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session, session.begin():
        postrow.enqueue(session, "orders", {"number": 1}, delay=5)
        (message,) = enqueued(session, "orders")
        assert (message.payload, message.delay) == ({"number": 1}, timedelta(seconds=5))
    engine.dispose()


def test_enqueued_does_not_depend_on_the_settings_of_the_connection(postrow_conn):
    class Broken(TimestamptzLoader):
        def load(self, data):
            return "no datetime"

    postrow_conn.adapters.register_loader("timestamptz", Broken)
    postrow_conn.execute("set local timezone = 'Asia/Kathmandu'; set local datestyle = 'German'; set search_path = ''")
    postrow.enqueue(postrow_conn, "orders", 1, delay=1)
    (message,) = enqueued(postrow_conn, "orders")
    assert message.delay == timedelta(seconds=1)
    assert message.enqueued_at.tzinfo is UTC
    assert abs(message.enqueued_at - datetime.now(UTC)) < timedelta(minutes=1)
