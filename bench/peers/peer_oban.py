import asyncio
from contextlib import asynccontextmanager

import uvloop
from adapter import Adapter, main, payload
from oban import Oban, schema, worker

handled = None  # a worker is a class of the module


@worker(queue="bench")
class Bench:
    async def process(self, job):
        handled(job.args["n"])


class Producer:
    def __init__(self, oban):
        self.oban = oban

    async def one(self, n):
        await self.oban.enqueue(Bench.new(payload(n)))

    async def many(self, numbers):
        await self.oban.enqueue_many([Bench.new(payload(n)) for n in numbers])


class ObanPeer(Adapter):
    package = "oban"
    settings = (
        "uvloop (as its command line), a queue limit of 100, pool and intervals as by default: "
        "https://github.com/oban-bg/oban-py/blob/main/docs/defining_queues.md, .../docs/production.md"
    )
    unfinished = "select count(*) from oban_jobs where state not in ('completed', 'discarded', 'cancelled')"

    async def install(self, dsn):
        pool = await Oban.create_pool(dsn)
        await schema.install(pool)
        await pool.close()

    @asynccontextmanager
    async def producer(self, dsn, clients):
        pool = await Oban.create_pool(dsn, min_size=clients, max_size=clients)
        async with Oban(pool=pool) as oban:
            yield Producer(oban)
        await pool.close()

    async def work(self, dsn, ran):
        global handled  # noqa: PLW0603  # see above
        handled = ran
        pool = await Oban.create_pool(dsn)
        async with Oban(pool=pool, queues={"bench": 100}):
            await asyncio.Event().wait()

    def run(self, coroutine):
        return uvloop.run(coroutine)


if __name__ == "__main__":
    main(ObanPeer())
