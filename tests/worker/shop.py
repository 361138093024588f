"""A worker as a program of its own, for tests that send it signals: shop.py DSN HANDLER [option=value ...].

What its handlers do is in the table `ran` (payload, attempt, worker, event): they have connections of their own.
"""

import asyncio
import json
import logging
import sys
import time

import psycopg

from postrow import App, Constant
from postrow.worker import Worker


def note(app, message, event):
    with psycopg.connect(app.dsn, autocommit=True) as conn:
        conn.execute(
            "insert into ran (payload, attempt, event) values (%s, %s, %s)",
            [json.dumps(message.payload), message.attempt, event],
        )


def main(dsn, handler, **options):
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    seconds = float(options.pop("seconds", 0))
    consumer = {
        "concurrency": int(options.pop("slots", 10)),
        "lease": float(options.pop("lease", 30)),
        "retry": Constant(base=0.1, cap=0.1),
    }
    app = App(dsn)
    queue = app.queue("q")

    if handler == "async":

        @queue.consumer(name="handler", **consumer)
        async def wait(message):
            await asyncio.to_thread(note, app, message, "start")
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                note(app, message, "cancelled")
                raise
            await asyncio.to_thread(note, app, message, "end")

    elif handler == "stubborn":

        @queue.consumer(name="handler", **consumer)
        async def stubborn(message):
            await asyncio.to_thread(note, app, message, "start")
            while True:
                try:
                    await asyncio.sleep(seconds)
                    return
                except asyncio.CancelledError:
                    pass

    elif handler == "nothing":

        @queue.consumer(name="handler", **consumer)
        async def do_nothing(_message):
            pass

    elif handler == "blocking":

        @queue.consumer(name="handler", **consumer)
        async def blocking(message):
            note(app, message, "start")
            time.sleep(seconds)  # noqa: ASYNC251  # what must not be done

    else:

        @queue.consumer(name="handler", **consumer)
        def sync(message):
            note(app, message, "start")
            time.sleep(seconds)
            note(app, message, "end")

    options = {name: json.loads(value) for name, value in options.items()}
    sys.exit(Worker(app, **options).run())


if __name__ == "__main__":
    main(*sys.argv[1:3], **dict(option.split("=", 1) for option in sys.argv[3:]))
