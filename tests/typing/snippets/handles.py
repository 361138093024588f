"""Every handle is one: sync ones give values, async ones awaitables; what is no transaction is refused."""

from typing import Any, reveal_type

import asyncpg  # type: ignore[import-untyped]
import psycopg
import psycopg_pool
from django.db import connection as django_connection
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import postrow


class OwnSession(Session):
    pass


def sqlalchemy(conn: Connection, session: Session, own: OwnSession, scoped: scoped_session[Session]) -> None:
    reveal_type(postrow.enqueue(conn, "q", 1))  # R: Enqueued
    reveal_type(postrow.enqueue(session, "q", 1))  # R: Enqueued
    reveal_type(postrow.enqueue(own, "q", 1))  # R: Enqueued
    reveal_type(postrow.enqueue(scoped, "q", 1))  # R: Enqueued
    reveal_type(postrow.once(session, "k"))  # R: bool
    with session.begin():
        postrow.enqueue_many(session, "q", [1], dedup_key=str)
    with sessionmaker(create_engine("postgresql://")).begin() as made:
        reveal_type(postrow.depth(made, "q"))  # R: int


async def async_sqlalchemy(conn: AsyncConnection, session: AsyncSession) -> None:
    reveal_type(await postrow.enqueue(conn, "q", 1))  # R: Enqueued
    reveal_type(await postrow.enqueue(session, "q", 1))  # R: Enqueued
    reveal_type(await postrow.enqueue_many(session, "q", [1]))  # R: list[Enqueued]
    sent: postrow.Enqueued = postrow.enqueue(session, "q", 1)  # E: assignment
    print(sent)


def django() -> None:
    reveal_type(postrow.enqueue(django_connection, "q", 1))  # R: Enqueued


def pool(pool: psycopg_pool.ConnectionPool[psycopg.Connection[Any]]) -> None:
    with pool.connection() as conn:
        reveal_type(postrow.enqueue(conn, "q", 1))  # R: Enqueued
    postrow.enqueue(pool, "q", 1)  # E: call-overload


def no_transactions(engine: Engine, async_engine: AsyncEngine) -> None:
    postrow.enqueue(engine, "q", 1)  # E: call-overload
    postrow.enqueue(async_engine, "q", 1)  # E: call-overload
    postrow.enqueue(sessionmaker(engine), "q", 1)  # E: call-overload
    postrow.enqueue(None, "q", 1)  # E: call-overload


async def async_pg(conn: asyncpg.Connection, pool: asyncpg.Pool) -> None:
    await postrow.enqueue(conn, "q", 1)
    async with pool.acquire() as acquired, acquired.transaction():
        await postrow.enqueue(acquired, "q", 1)
