from contextlib import asynccontextmanager

import psycopg_pool
from adapter import Adapter, main, payload

import postrow
from postrow import migrate
from postrow.worker import Worker


class Producer:
    def __init__(self, pool):
        self.pool = pool

    async def one(self, n):
        async with self.pool.connection() as conn:
            await postrow.enqueue(conn, "bench", payload(n))

    async def many(self, numbers):
        async with self.pool.connection() as conn:
            await postrow.enqueue_many(conn, "bench", [payload(n) for n in numbers])


class Postrow(Adapter):
    package = "postrow"
    settings = "consumer(concurrency=1000); history on, acknowledgements fenced, as always"
    unfinished = "select count(*) from postrow.message"

    async def install(self, dsn):
        migrate.apply(dsn)

    @asynccontextmanager
    async def producer(self, dsn, clients):
        async with psycopg_pool.AsyncConnectionPool(dsn, min_size=clients, max_size=clients) as pool:
            yield Producer(pool)

    def work(self, dsn, ran):
        app = postrow.App(dsn)

        @app.queue("bench").consumer(concurrency=1000)
        async def handle(message):
            ran(message.payload["n"])

        Worker(app).run()


if __name__ == "__main__":
    main(Postrow())
