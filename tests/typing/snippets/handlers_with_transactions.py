"""A handler's own transaction is a connection of its kind; once and ack follow the handle."""

from datetime import timedelta
from typing import Any, reveal_type

import psycopg

import postrow

app = postrow.App()
payments = app.queue("payments")


@payments.consumer()
async def charge(message: postrow.Message[Any]) -> None:
    async with message.transaction() as tx:
        reveal_type(tx)  # R: AsyncConnection[Any]
        reveal_type(await postrow.once(tx, "evt", keep=timedelta(days=1)))  # R: bool
        await payments.enqueue(tx, 1, dedup_key="k", dedup_while="alive")
        await payments.enqueue(tx, 1, dedup_key="k", dedup_while="for ever")  # E: call-overload


@payments.consumer(tenant="acme")
def charge_acme(message: postrow.Message[Any]) -> None:
    with message.transaction() as tx:
        reveal_type(tx)  # R: Connection[Any]
        reveal_type(postrow.once(tx, "evt", scope="stripe", keep=60))  # R: bool


def own(conn: psycopg.Connection[Any], message: postrow.Message[Any]) -> None:
    postrow.ack(conn, message)
    postrow.ack(conn, message.id)  # E: call-overload


async def own_async(conn: psycopg.AsyncConnection[Any], message: postrow.Message[Any]) -> None:
    await postrow.ack(conn, message)
