from contextlib import asynccontextmanager

import procrastinate
from adapter import Adapter, main, payload


def application(dsn, connections, ran=None):
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn, min_size=1, max_size=connections))

    @app.task(name="bench")
    async def bench(k, n):  # noqa: ARG001  # named as in the payload
        ran(n)

    return app, bench


class Producer:
    def __init__(self, task):
        self.task = task

    async def one(self, n):
        await self.task.defer_async(**payload(n))

    async def many(self, numbers):
        await self.task.batch_defer_async(*(payload(n) for n in numbers))


class Procrastinate(Adapter):
    package = "procrastinate"
    settings = "concurrency=100, a pool of 40: App.run_worker_async in https://procrastinate.readthedocs.io/en/stable/reference.html"
    unfinished = "select count(*) from procrastinate_jobs where status in ('todo', 'doing')"

    async def install(self, dsn):
        app, _ = application(dsn, 1)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def producer(self, dsn, clients):
        app, task = application(dsn, clients)
        async with app.open_async():
            yield Producer(task)

    async def work(self, dsn, ran):
        app, _ = application(dsn, 40, ran)
        async with app.open_async():
            await app.run_worker_async(concurrency=100)


if __name__ == "__main__":
    main(Procrastinate())
