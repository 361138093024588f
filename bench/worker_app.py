"""The app whose worker process the benchmark drains: a handler that does nothing, and one that notes when it ran.

With `timed` as the second argument it prints at its end what each call of its claimer took; for queue `counted`, how
often its handler ran.
"""

import itertools
import json
import sys
import time

import postrow
from postrow.worker import Worker, claimer

app = postrow.App()
noop = app.queue("noop")
stamped = app.queue("stamped")
ran = itertools.count()


@noop.consumer(concurrency=1000)
async def do_nothing(_message):
    pass


# limits that are never reached: what is measured is what keeping them costs
app.queue("bounded").consumer(concurrency=1000, name="bounded", max_in_flight=10**6, tenant_max_in_flight=10**6)(
    do_nothing
)
app.queue("rated").consumer(concurrency=1000, name="rated", rate=postrow.Rate(10**6), tenant_rate=postrow.Rate(10**6))(
    do_nothing
)


@stamped.consumer(concurrency=100)
async def note_the_time(message):
    print(json.dumps([message.payload["n"], time.time()]), flush=True)


@app.queue("counted").consumer(concurrency=1000)
async def count(_message):
    next(ran)


def timed(execute, calls):
    """The claimer's way to the database, with a clock: of each call when it began, what it was, and its seconds."""

    async def run(conn, op, **options):
        kind = next((kind for kind in ("claim_lanes", "lanes") if f"postrow.{kind}(" in op.sql), "other")
        at, began = time.time(), time.perf_counter()
        answer = await execute(conn, op, **options)
        calls.append((at, kind, time.perf_counter() - began))
        return answer

    return run


if __name__ == "__main__":
    calls = []
    if sys.argv[2:] == ["timed"]:
        claimer.execute_async = timed(claimer.execute_async, calls)
    Worker(app, queues=[sys.argv[1]]).run()
    if calls:
        print(json.dumps(calls))
    if sys.argv[1] == "counted":
        print(next(ran))
