"""A worker as a program of its own, for tests that send it signals: shop.py DSN HANDLER [option=value ...].

What its handlers do is in the table `ran` (payload, attempt, event): they have connections of their own.
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


def held_up(app, options):
    """What a handler waits in: until the test lets go of its advisory lock, or so many seconds."""
    seconds, lock = float(options.pop("seconds", 0)), options.pop("until", None)

    def wait():
        if lock is None:
            time.sleep(seconds)
            return
        with psycopg.connect(app.dsn, autocommit=True) as conn:
            conn.execute("select pg_advisory_xact_lock_shared(%s)", [int(lock)])

    return wait, seconds, lock


class Said(Worker):
    """A worker that says at once when it was told to stop, also while a handler blocks its event loop."""

    def stop(self):
        super().stop()
        print("told to stop", flush=True)


def main(dsn, handler, **options):
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    app = App(dsn)
    wait_sync, seconds, lock = held_up(app, options)
    consumer = {
        "concurrency": int(options.pop("slots", 10)),
        "lease": float(options.pop("lease", 30)),
        "retry": Constant(base=0.1, cap=0.1),
    }
    queue = app.queue("q")

    if handler == "async":

        @queue.consumer(name="handler", **consumer)
        async def wait(message):
            await asyncio.to_thread(note, app, message, "start")
            try:
                await (asyncio.sleep(seconds) if lock is None else asyncio.to_thread(wait_sync))
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

    elif handler == "to_thread":

        @queue.consumer(name="handler", **consumer)
        async def wait_in_thread(message):
            note(app, message, "start")
            await asyncio.to_thread(wait_sync)

    elif handler == "nothing":

        @queue.consumer(name="handler", **consumer)
        async def do_nothing(_message):
            pass

    elif handler == "blocking":

        @queue.consumer(name="handler", **consumer)
        async def blocking(message):
            note(app, message, "start")
            wait_sync()  # what must not be done

    else:

        @queue.consumer(name="handler", **consumer)
        def sync(message):
            note(app, message, "start")
            wait_sync()
            note(app, message, "end")

    options = {name: json.loads(value) for name, value in options.items()}
    sys.exit(Said(app, **options).run())


if __name__ == "__main__":
    main(*sys.argv[1:3], **dict(option.split("=", 1) for option in sys.argv[3:]))
