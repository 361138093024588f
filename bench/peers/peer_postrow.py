import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager

import asyncpg
import psycopg
from adapter import Adapter, main, payload

import postrow
from postrow import migrate
from postrow.worker import Worker

try:
    import uvloop
except ImportError:  # the extra `bench` has it; a smoke run does without
    uvloop = None


ENQUEUE = "select id from postrow.enqueue('bench', $1::text::jsonb)"


class Producer:
    """Singles by the SQL function, a statement that is its own transaction. Lists in a pipeline of psycopg's."""

    def __init__(self, dsn, free):
        self.dsn = dsn
        self.free = free
        self.lists = None

    async def one(self, n):
        conn = self.free.pop()
        await conn.fetchval(ENQUEUE, json.dumps(payload(n)))
        self.free.append(conn)

    async def many(self, numbers):
        if self.lists is None:
            self.lists = await psycopg.AsyncConnection.connect(self.dsn)
        await postrow.enqueue_many(self.lists, "bench", [payload(n) for n in numbers])
        await self.lists.commit()


class Postrow(Adapter):
    package = "postrow"
    settings = (
        "consumer(concurrency=1000); history on, acknowledgements fenced, as always; producers: the SQL function "
        f"postrow.enqueue over asyncpg, enqueue_many over psycopg{'; all on uvloop' if uvloop else ''}"
    )
    unfinished = "select count(*) from postrow.message"

    async def install(self, dsn):
        migrate.apply(dsn)

    @asynccontextmanager
    async def producer(self, dsn, clients):
        async with AsyncExitStack() as stack:
            free = [await asyncpg.connect(dsn) for _ in range(clients)]
            for conn in free:
                stack.push_async_callback(conn.close)
            producer = Producer(dsn, list(free))
            yield producer
            if producer.lists:
                await producer.lists.close()

    def work(self, dsn, ran):
        app = postrow.App(dsn)

        @app.queue("bench").consumer(concurrency=1000)
        async def handle(message):
            ran(message.payload["n"])

        Worker(app).run()

    def run(self, coroutine):
        return uvloop.run(coroutine) if uvloop else asyncio.run(coroutine)


if __name__ == "__main__":
    main(Postrow())
