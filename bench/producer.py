"""Many quiet tenants: each enqueues one message a second in a transaction of its own, spread evenly over the second.

A process of its own, with a few connections, so that it does not compete with what measures. Runs until it is
terminated, then prints of each message when it was due (epoch), by how many seconds its transaction began behind that,
and how many it took.
"""

import json
import os
import signal
import sys
import threading
import time

import psycopg

CONNECTIONS = 8  # commits wait for the disk; taps let one commit at a time through (30_tap.sql)
ENQUEUE = "select from postrow.enqueue(%s, '{\"quiet\": true}', tenant => %s)"  # one round trip, with its commit


def produce(dsn, queue, offsets, sent, stopping):
    with psycopg.connect(dsn, autocommit=True) as conn:
        second = time.monotonic()
        epoch = time.time() - second
        while True:
            for tenant, offset in offsets.items():
                due = second + offset
                if stopping.wait(max(0.0, due - time.monotonic())):
                    return
                began = time.monotonic()
                conn.execute(ENQUEUE, [queue, tenant])
                sent.append((due + epoch, max(0.0, began - due), time.monotonic() - began))
            second += 1


def main(queue, count):
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    sent = []
    threads = [
        threading.Thread(
            target=produce,
            args=(
                os.environ["POSTROW_DSN"],
                queue,
                {f"quiet-{n}": n / count for n in range(first, count, CONNECTIONS)},
                sent,
                stopping,
            ),
        )
        for first in range(CONNECTIONS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(sent))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
