"""What a handle costs: enqueue one a transaction, and many in one, over what psycopg's sync connection takes."""

import asyncio
import os
import statistics
import time
from contextlib import asynccontextmanager, contextmanager

import asyncpg
import psycopg
import sqlalchemy
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import postrow


@contextmanager
def psycopg_sync(dsn):
    with psycopg.connect(dsn) as conn:
        yield conn.transaction, lambda: conn


@contextmanager
def sqlalchemy_session(dsn, driver):
    engine = sqlalchemy.create_engine(url(dsn, driver))
    with Session(engine) as session:
        yield session.begin, lambda: session
    engine.dispose()


@contextmanager
def django(dsn):
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # nothing else runs in this loop
    if not settings.configured:
        given = conninfo_to_dict(dsn)
        words = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
        default = {"ENGINE": "django.db.backends.postgresql"} | {word: given[key] for word, key in words.items()}
        settings.configure(DATABASES={"default": default})
    from django.db import connections, transaction  # noqa: PLC0415  # after its settings

    connections["default"].close()
    connections["default"].settings_dict["NAME"] = conninfo_to_dict(dsn)["dbname"]
    yield transaction.atomic, lambda: connections["default"]
    connections["default"].close()


@asynccontextmanager
async def psycopg_async(dsn):
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        yield conn.transaction, lambda: conn


@asynccontextmanager
async def asyncpg_connection(dsn):
    conn = await asyncpg.connect(dsn)
    yield conn.transaction, lambda: conn
    await conn.close()


@asynccontextmanager
async def sqlalchemy_async_session(dsn, driver):
    engine = create_async_engine(url(dsn, driver))
    async with AsyncSession(engine) as session:
        yield session.begin, lambda: session
    await engine.dispose()


def url(dsn, driver):
    return dsn.replace("postgresql://", f"postgresql+{driver}://", 1)


HANDLES = {
    "psycopg Connection": psycopg_sync,
    "psycopg AsyncConnection": psycopg_async,
    "asyncpg Connection": asyncpg_connection,
    "SQLAlchemy Session, psycopg": lambda dsn: sqlalchemy_session(dsn, "psycopg"),
    "SQLAlchemy Session, psycopg2": lambda dsn: sqlalchemy_session(dsn, "psycopg2"),
    "SQLAlchemy AsyncSession, asyncpg": lambda dsn: sqlalchemy_async_session(dsn, "asyncpg"),
    "Django atomic": django,
}


async def measured(opened, payload, singles, many):
    """Messages a second, one a transaction and in bulk; asynchronous handles and others alike."""
    async with entered(opened) as (begin, handle):
        rates = []
        for count, call in (
            (1, lambda: postrow.enqueue(handle(), "q", payload)),
            (many, lambda: postrow.enqueue_many(handle(), "q", [payload] * many)),
        ):
            times = []
            for _ in range(singles if count == 1 else 3):
                began = time.perf_counter()
                async with entered(begin()):
                    answer = call()
                    if asyncio.iscoroutine(answer) or hasattr(answer, "__await__"):
                        await answer
                times.append(time.perf_counter() - began)
            rates.append(count / statistics.median(times))
    return rates


@asynccontextmanager
async def entered(context):
    if hasattr(context, "__aenter__"):
        async with context as value:
            yield value
    else:
        with context as value:
            yield value


def compare(dsn, payload, *, singles=300, many=10_000):
    """Figures of each handle, as ratios to the first one's in the same run."""
    results = {}
    first = None
    for name, opened in HANDLES.items():
        one, bulk = asyncio.run(measured(opened(dsn), payload, singles, many))
        first = first or (one, bulk)
        results[f"{name}: one a transaction / psycopg"] = one / first[0]
        results[f"{name}: enqueue_many of {many:,} / psycopg"] = bulk / first[1]
    return results
