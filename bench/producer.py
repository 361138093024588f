"""Many quiet tenants: each enqueues one message a second in a transaction of its own, spread evenly over the second.

A process of its own, with a few connections, so that it does not compete with what measures. Runs until it is
terminated, then prints what it sent, for how long, and by how many seconds its commits began behind their schedule.
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


def produce(dsn, queue, offsets, behind, stopping):
    with psycopg.connect(dsn, autocommit=True) as conn:
        second = time.monotonic()
        while True:
            for tenant, offset in offsets.items():
                due = second + offset
                if stopping.wait(max(0.0, due - time.monotonic())):
                    return
                behind.append((due, max(0.0, time.monotonic() - due)))
                conn.execute(ENQUEUE, [queue, tenant])
            second += 1


def main(queue, count):
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    behind = []  # of each message: when it was due, and how much later its transaction began
    threads = [
        threading.Thread(
            target=produce,
            args=(
                os.environ["POSTROW_DSN"],
                queue,
                {f"quiet-{n}": n / count for n in range(first, count, CONNECTIONS)},
                behind,
                stopping,
            ),
        )
        for first in range(CONNECTIONS)
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"sent": len(behind), "seconds": time.monotonic() - began, "behind": [b for _, b in behind]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
