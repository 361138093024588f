import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
from absurd_sdk import AsyncAbsurd
from adapter import Adapter, main, payload


class Producer:
    def __init__(self, clients):
        self.clients = asyncio.Queue()
        for client in clients:
            self.clients.put_nowait(client)

    async def one(self, n):
        _, app = client = self.clients.get_nowait()
        await app.spawn("bench", payload(n), queue="bench")
        self.clients.put_nowait(client)

    async def many(self, numbers):
        conn, app = client = self.clients.get_nowait()
        async with conn.transaction(), conn.pipeline():
            for n in numbers:
                await app.spawn("bench", payload(n), queue="bench")
        self.clients.put_nowait(client)


class Absurd(Adapter):
    package = "absurd-sdk"
    settings = (
        "concurrency=100 (so it claims 100 at once), poll_interval=0.05; no bulk call: spawn, many in a transaction: "
        "https://github.com/earendil-works/absurd/blob/main/sdks/python/README.md"
    )
    unfinished = "select count(*) from absurd.t_bench where state not in ('completed', 'failed', 'cancelled')"

    async def install(self, dsn):
        tool = Path(sys.executable).parent / "absurdctl"  # needs psql on the path
        for command in (["init", "-d", dsn], ["create-queue", "-d", dsn, "bench"]):
            await asyncio.to_thread(subprocess.run, [tool, *command], check=True)

    @asynccontextmanager
    async def producer(self, dsn, clients):
        connections = [await psycopg.AsyncConnection.connect(dsn, autocommit=True) for _ in range(clients)]
        yield Producer([(conn, AsyncAbsurd(conn, queue_name="bench")) for conn in connections])

    async def work(self, dsn, ran):
        app = AsyncAbsurd(dsn, queue_name="bench")

        @app.register_task("bench")
        async def bench(params, _context):
            ran(params["n"])

        await app.start_worker(concurrency=100, poll_interval=0.05)


if __name__ == "__main__":
    main(Absurd())
