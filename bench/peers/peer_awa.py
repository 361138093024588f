import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass

import awa
from adapter import Adapter, main, payload


@dataclass
class Bench:
    k: str
    n: int


class Producer:
    def __init__(self, client):
        self.client = client

    async def one(self, n):
        await self.client.insert(Bench(**payload(n)), queue="bench")

    async def many(self, numbers):
        await self.client.insert_many_copy([Bench(**payload(n)) for n in numbers], queue="bench")


class Awa(Adapter):
    package = "awa-pg"
    settings = (
        "1000 workers on the queue, 24 connections, poll_interval_ms=50, COPY for bulk: "
        "https://github.com/hardbyte/awa/blob/main/docs/configuration.md and its own benchmarks/portable"
    )
    unfinished = "select count(*) from awa.jobs where state not in ('completed', 'failed', 'cancelled')"

    async def install(self, dsn):
        async with awa.AsyncClient(dsn) as client:
            await client.migrate()

    @asynccontextmanager
    async def producer(self, dsn, clients):
        async with awa.AsyncClient(dsn, max_connections=clients) as client:
            yield Producer(client)

    async def work(self, dsn, ran):
        async with awa.AsyncClient(dsn, max_connections=24) as client:

            @client.task(Bench, queue="bench")
            async def bench(job):
                ran(job.args.n)

            await client.start([("bench", 1000)], poll_interval_ms=50)
            await asyncio.Event().wait()


if __name__ == "__main__":
    main(Awa())
