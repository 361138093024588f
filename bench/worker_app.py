"""The app whose worker process the benchmark drains: a handler that does nothing, and one that notes when it ran."""

import json
import sys
import time

import postrow
from postrow.worker import Worker

app = postrow.App()
noop = app.queue("noop")
stamped = app.queue("stamped")


@noop.consumer(concurrency=1000)
async def do_nothing(_message):
    pass


@stamped.consumer(concurrency=100)
async def note_the_time(message):
    print(json.dumps([message.payload["n"], time.time()]), flush=True)


if __name__ == "__main__":
    Worker(app, queues=[sys.argv[1]]).run()
