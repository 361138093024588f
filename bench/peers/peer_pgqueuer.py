import json
from contextlib import asynccontextmanager

import asyncpg
import uvloop
from adapter import Adapter, main, payload
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries


class Producer:
    def __init__(self, queries):
        self.queries = queries

    async def one(self, n):
        await self.queries.enqueue("bench", json.dumps(payload(n)).encode())

    async def many(self, numbers):
        jobs = [json.dumps(payload(n)).encode() for n in numbers]
        await self.queries.enqueue(["bench"] * len(jobs), jobs, [0] * len(jobs))


class Pgqueuer(Adapter):
    package = "pgqueuer"
    settings = (
        "asyncpg (a pool for producers, one connection for the worker), uvloop, pgq autovac, batch_size=500 for short "
        "jobs, durability as by default: https://github.com/janbjorge/pgqueuer/blob/main/docs/guides/performance-tuning.md"
    )
    unfinished = "select count(*) from pgqueuer"

    async def install(self, dsn):
        queries = Queries(AsyncpgDriver(await asyncpg.connect(dsn)))
        await queries.install()
        await queries.optimize_autovacuum()

    @asynccontextmanager
    async def producer(self, dsn, clients):
        async with asyncpg.create_pool(dsn, min_size=clients, max_size=clients) as pool:
            yield Producer(Queries(AsyncpgPoolDriver(pool)))

    async def work(self, dsn, ran):
        pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(dsn)))

        @pgq.entrypoint("bench")
        async def bench(job):
            ran(json.loads(job.payload)["n"])

        await pgq.run(batch_size=500)

    def run(self, coroutine):
        return uvloop.run(coroutine)


if __name__ == "__main__":
    main(Pgqueuer())
