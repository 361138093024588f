"""No queue: the two statements that pgmq's `read` and `delete` run, in a loop of 500, on a table like pgmq's.

It says what the server and the client can do at all: no handlers, no leases that are renewed, no history, no retries.
"""

import asyncio
import json
from contextlib import asynccontextmanager

import asyncpg
from adapter import Adapter, main, payload

try:
    import uvloop
except ImportError:
    uvloop = None

TABLES = """
create table q_bench (
    msg_id bigint primary key generated always as identity, read_ct int not null default 0,
    enqueued_at timestamptz not null default now(), vt timestamptz not null, message jsonb, headers jsonb
);
create index q_bench_vt on q_bench (vt)
"""
SEND = "insert into q_bench (vt, message) select clock_timestamp(), unnest($1::text[])::jsonb"
READ = """
with first as (
    select msg_id from q_bench where vt <= clock_timestamp() order by msg_id limit 500 for update skip locked
)
update q_bench m set vt = clock_timestamp() + interval '30 s', read_ct = read_ct + 1
from first where m.msg_id = first.msg_id
returning m.msg_id, m.read_ct, m.enqueued_at, m.vt, m.message, m.headers
"""
DELETE = "delete from q_bench where msg_id = any ($1::bigint[]) returning msg_id"


class Producer:
    def __init__(self, conn):
        self.conn = conn

    async def one(self, n):
        await self.many([n])

    async def many(self, numbers):
        await self.conn.fetch(SEND, [json.dumps(payload(n)) for n in numbers])


class BareLoop(Adapter):
    package = "asyncpg"
    settings = "asyncpg and uvloop; the statements of pgmq's read(…, 30, 500) and delete(…), each a transaction"
    unfinished = "select count(*) from q_bench"

    async def install(self, dsn):
        conn = await asyncpg.connect(dsn)
        await conn.execute(TABLES)
        await conn.close()

    @asynccontextmanager
    async def producer(self, dsn, clients):
        assert clients == 1  # it has no enqueue of its own
        conn = await asyncpg.connect(dsn)
        yield Producer(conn)
        await conn.close()

    async def work(self, dsn, ran):
        conn = await asyncpg.connect(dsn)
        while True:
            rows = await conn.fetch(READ)
            for row in rows:
                ran(json.loads(row["message"])["n"])
            await conn.fetch(DELETE, [row["msg_id"] for row in rows])

    def run(self, coroutine):
        return uvloop.run(coroutine) if uvloop else asyncio.run(coroutine)


if __name__ == "__main__":
    main(BareLoop())
