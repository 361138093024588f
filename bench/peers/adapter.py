"""What every adapter in Python shares: the commands that the harness calls, and how the answers are said.

An adapter runs in its peer's own virtual environment, so this file needs nothing but Python. `adapter.mjs` is the same
for Node. Answers are lines of JSON on stdout that begin with `@ `; anything else on stdout is the peer's own talk.

    about                           version, settings, and the SQL that counts unfinished jobs
    install                         the peer's schema and one queue, in a new database
    enqueue CLIENTS SECONDS COUNT   one job a commit from as many clients at once; a bound of 0 is none
    bulk COUNT CHUNK                the peer's bulk call, each chunk committed on its own
    pace RATE SECONDS               one job a commit at a fixed rate, with the moment of each commit; begins at `go`
    work                            a worker, from `go` on; says how many have run, and at `report` which and when
"""

import asyncio
import itertools
import json
import os
import sys
import threading
import time
from importlib.metadata import version

TICK = 0.01  # seconds between two counts of a worker: what is measured is too long by this at most
FILLER = "x" * 130


def payload(n):
    """150 bytes as JSON; `n` is the job's number, by which its runs are counted."""
    return {"k": FILLER, "n": n}


def say(**answer):
    sys.stdout.write(f"@ {json.dumps(answer)}\n")
    sys.stdout.flush()


class Adapter:
    """One peer. `settings` says what is set, other than by default, and where its documentation recommends it."""

    package: str
    settings: str
    unfinished: str

    async def install(self, dsn):
        raise NotImplementedError

    def producer(self, dsn, clients):
        """A context that gives an object with `one(n)` and `many(numbers)`: each call is a transaction of its own.

        As many calls of `one` as there are clients are made at once, each over a connection of its own.
        """
        raise NotImplementedError

    def work(self, dsn, ran):
        """Work for ever; the handler's first line is `ran(n)`. Plain, or async."""
        raise NotImplementedError

    def run(self, coroutine):
        """The event loop: the peer's own command line's, if it has another than asyncio's."""
        return asyncio.run(coroutine)


async def enqueue(adapter, dsn, clients, seconds, count):
    numbers = itertools.count()

    async def client(producer):
        done = 0
        while time.perf_counter() < end:
            n = next(numbers)
            if count and n >= count:
                break
            await producer.one(n)
            done += 1
        return done

    async with adapter.producer(dsn, clients) as producer:
        await asyncio.gather(*(producer.one(-1) for _ in range(clients)))  # connected, statements prepared
        began = time.perf_counter()
        end = began + (seconds or float("inf"))
        done = sum(await asyncio.gather(*(client(producer) for _ in range(clients))))
        took = time.perf_counter() - began
    say(count=done, warm=clients, seconds=took)


async def bulk(adapter, dsn, count, chunk):
    async with adapter.producer(dsn, 1) as producer:
        rates = []
        for start in range(0, count, chunk):
            numbers = range(start, min(start + chunk, count))
            began = time.perf_counter()
            await producer.many(numbers)
            rates.append(len(numbers) / (time.perf_counter() - began))
    say(count=count, rates=rates)


async def pace(adapter, dsn, rate, seconds):
    clients = min(16, max(1, rate // 100))
    numbers = iter(range(rate * seconds))
    committed = []

    async def client(producer):
        for n in numbers:
            await asyncio.sleep(max(0, began + n / rate - time.perf_counter()))
            await producer.one(n)
            committed.append((n, time.time()))

    async with adapter.producer(dsn, clients) as producer:
        await asyncio.gather(*(producer.one(-1) for _ in range(clients)))
        say(ready=True, warm=clients)
        await asyncio.to_thread(sys.stdin.readline)
        began = time.perf_counter()
        await asyncio.gather(*(client(producer) for _ in range(clients)))
        took = time.perf_counter() - began
    say(committed=committed, seconds=took)


def work(adapter, dsn):
    runs = []

    def ran(n):
        runs.append((n, time.time()))

    def tick():
        told = 0
        while True:
            time.sleep(TICK)
            if len(runs) > told:
                told = len(runs)
                say(ran=told)

    def report():
        sys.stdin.readline()
        say(runs=runs)
        os._exit(0)  # what it has done is known, and the database is dropped

    say(ready=True)
    sys.stdin.readline()
    for part in (tick, report):
        threading.Thread(target=part, daemon=True).start()
    working = adapter.work(dsn, ran)
    if asyncio.iscoroutine(working):
        adapter.run(working)


def main(adapter):
    command, *numbers = sys.argv[1:]
    dsn = os.environ.get("PEER_DSN")
    if command == "about":
        say(version=version(adapter.package), settings=adapter.settings, unfinished=adapter.unfinished)
    elif command == "install":
        adapter.run(adapter.install(dsn))
        say(installed=True)
    elif command == "work":
        work(adapter, dsn)
    else:
        produce = {"enqueue": enqueue, "bulk": bulk, "pace": pace}[command]
        adapter.run(produce(adapter, dsn, *map(int, numbers)))
