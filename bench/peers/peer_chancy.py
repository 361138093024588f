from contextlib import asynccontextmanager

from adapter import Adapter, main, payload
from chancy import Chancy, Queue, Worker, job

handled = None  # a chancy job is found by its import path, so it is a function of the module


@job(queue="bench")
async def bench(*, k, n):  # noqa: ARG001  # named as in the payload
    handled(n)


class Producer:
    def __init__(self, chancy):
        self.chancy = chancy

    async def one(self, n):
        await self.chancy.push(bench.job.with_kwargs(**payload(n)))

    async def many(self, numbers):
        jobs = [bench.job.with_kwargs(**payload(n)) for n in numbers]
        async for _ in self.chancy.push_many(jobs, batch_size=len(jobs)):
            pass


class ChancyPeer(Adapter):
    package = "chancy"
    settings = (
        "AsyncExecutor, concurrency=1000, eager_polling, polling_interval=1: "
        "the docstrings of chancy.Queue and AsyncExecutor, https://tkte.ch/chancy/"
    )
    unfinished = "select count(*) from chancy_jobs where state not in ('succeeded', 'failed', 'expired')"

    async def install(self, dsn):
        async with Chancy(dsn) as chancy:
            await chancy.migrate()
            await chancy.delete_queue("default")  # which would start processes of its own
            await chancy.declare(
                Queue(
                    "bench",
                    concurrency=1000,
                    executor=Chancy.Executor.Async,
                    eager_polling=True,
                    polling_interval=1,
                )
            )

    @asynccontextmanager
    async def producer(self, dsn, clients):
        async with Chancy(dsn, min_connection_pool_size=clients, max_connection_pool_size=clients) as chancy:
            yield Producer(chancy)

    async def work(self, dsn, ran):
        global handled  # noqa: PLW0603  # see above
        handled = ran
        async with Chancy(dsn) as chancy, Worker(chancy) as worker:
            await worker.wait_for_shutdown()


if __name__ == "__main__":
    from peer_chancy import ChancyPeer  # as jobs will find this module: not as __main__

    main(ChancyPeer())
