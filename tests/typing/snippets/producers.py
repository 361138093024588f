"""Producers: the handle decides between a value and an awaitable, the queue what it takes."""

from datetime import datetime, timedelta
from typing import Any, reveal_type
from uuid import UUID

import psycopg
from pydantic import BaseModel

import postrow


class Welcome(BaseModel):
    user_id: int


app = postrow.App()
emails = app.queue("emails", Welcome)
plain = app.queue("plain")


def sync(conn: psycopg.Connection[Any], cursor: psycopg.Cursor[Any], chosen: UUID, when: datetime) -> None:
    reveal_type(postrow.enqueue(conn, "q", {"any": "thing"}))  # R: Enqueued
    reveal_type(postrow.enqueue_many(conn, "q", [1, 2]))  # R: list[Enqueued]
    reveal_type(postrow.depth(conn, "q"))  # R: int
    reveal_type(postrow.depth_pending(conn, "q", tenant="acme"))  # R: int
    reveal_type(emails.enqueue(conn, Welcome(user_id=1)))  # R: Enqueued
    reveal_type(emails.enqueue_many(conn, [Welcome(user_id=1)]))  # R: list[Enqueued]
    reveal_type(app.send(emails, Welcome(user_id=1)))  # R: Enqueued
    app.send("plain", {"any": "thing"})
    plain.enqueue(conn, object())
    with conn.transaction() as tx:
        postrow.enqueue(
            tx,
            "q",
            1,
            id=chosen,
            tenant="acme",
            priority=1,
            delay=timedelta(minutes=5),
            max_attempts=3,
            target="laptop",
            target_for=3600,
            subject="user:17",
            expires_at=when,
            headers={"trace": "x"},
        )
    postrow.enqueue(cursor, "q", 1)  # E: call-overload
    postrow.enqueue("postgresql://localhost", "q", 1)  # E: call-overload
    postrow.enqueue(conn, "q")  # E: call-overload
    postrow.enqueue(conn, "q", 1, dely=1)  # E: call-overload
    postrow.enqueue(conn, "q", 1, delay="5 min")  # E: call-overload
    postrow.enqueue(conn, "q", 1, id="0192")  # E: call-overload
    postrow.enqueue_many(conn, "q", 7)  # E: call-overload
    emails.enqueue(conn, {"user_id": 1})  # E: call-overload
    emails.enqueue_many(conn, [1])  # E: list-item
    app.send(emails, {"user_id": 1})  # E: misc


async def concurrent(conn: psycopg.AsyncConnection[Any]) -> None:
    reveal_type(await postrow.enqueue(conn, "q", 1))  # R: Enqueued
    reveal_type(await postrow.enqueue_many(conn, "q", [1]))  # R: list[Enqueued]
    reveal_type(await postrow.depth(conn, "q"))  # R: int
    reveal_type(await emails.enqueue(conn, Welcome(user_id=1)))  # R: Enqueued
    reveal_type(await app.send_async(emails, Welcome(user_id=1)))  # R: Enqueued
    async with conn.transaction() as tx:
        await emails.enqueue(tx, Welcome(user_id=1), subject="user:1")
    sent: postrow.Enqueued = postrow.enqueue(conn, "q", 1)  # E: assignment
    print(sent)
    await app.send_async(emails, 1)  # E: misc
