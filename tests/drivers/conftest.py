"""The drivers under one suite: each says how a test connects; what it then awaits is the same for all."""

import inspect
from contextlib import asynccontextmanager

import psycopg
import pytest


async def done(value):
    """The value of a call: sync drivers give it, async ones an awaitable of it."""
    return await value if inspect.isawaitable(value) else value


@asynccontextmanager
async def entered(context):
    """`with` or `async with`, whichever the context knows."""
    if hasattr(context, "__aenter__"):
        async with context as value:
            yield value
    else:
        with context as value:
            yield value


class Driver:
    """A driver, and what tests need of it beside ours: a connection, its statements, its transaction block."""

    def __init__(self, connection_class):
        self.connection_class = connection_class

    async def connect(self, dsn, **options):
        return await done(self.connection_class.connect(dsn, **options))

    async def rows(self, conn, statement, params=None):
        cursor = await done(conn.execute(statement, params))
        return await done(cursor.fetchall())


@pytest.fixture(params=[psycopg.Connection, psycopg.AsyncConnection], ids=["sync", "async"])
def driver(request):
    return Driver(request.param)


@pytest.fixture
async def connect(driver, committed):
    """Makes connections on the shared database."""
    made = []

    async def make(**options):
        made.append(await driver.connect(committed, **options))
        return made[-1]

    yield make
    for conn in made:
        await done(conn.close())


@pytest.fixture
async def tx(connect):
    """A connection as the driver makes it: not in autocommit mode."""
    return await connect()


@pytest.fixture
def stored(committed):
    """The payloads that are in a queue, as another session sees them."""
    with psycopg.connect(committed, autocommit=True) as monitor:

        def payloads(queue="q"):
            found = monitor.execute("select payload from postrow.message where queue = %s order by payload", [queue])
            return [row[0] for row in found]

        yield payloads


@pytest.fixture(name="done")
def _done():
    return done


@pytest.fixture(name="entered")
def _entered():
    return entered
