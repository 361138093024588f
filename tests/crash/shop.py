"""A worker as a program of its own, for tests that kill it: shop.py DSN '{"handler": ..., options}'.

Its handlers write what they do to the table `ran`, on connections of their own: a row at the start of each run, and the
time of its end. Payloads are {"order": n}, and may say what is to happen.
"""

import json
import logging
import os
import random
import signal
import sys
import threading
import time

import psycopg

import postrow
from postrow import App, Constant
from postrow.worker import Worker

_local = threading.local()


def write(app, statement, params):
    """On this thread's connection; one attempt, so that an outage is a failure of the handler."""
    conn = getattr(_local, "conn", None)
    if conn is None or conn.closed:
        conn = _local.conn = psycopg.connect(app.dsn, autocommit=True, application_name="the handler")
    try:
        conn.execute(statement, params)
    except psycopg.Error:
        conn.close()
        raise


def handle(app, worker, message):
    payload = message.payload
    write(
        app,
        "insert into ran (message, tenant, attempt, worker, token) values (%s, %s, %s, %s, %s)",
        [message.id, message.tenant, message.attempt, worker, message.claim_token],
    )
    if payload.get("effect"):
        with message.transaction() as tx:
            tx.execute("insert into effect (message, worker) values (%s, %s)", [message.id, worker])
            postrow.enqueue(tx, "receipts", {"for": str(message.id)})
            time.sleep(random.uniform(0, 0.02))
        time.sleep(random.uniform(0, 0.02))
        return
    if payload.get("kills"):
        os.kill(os.getpid(), signal.SIGKILL)
    if payload.get("held"):  # until the test lets go of the lock of this attempt
        write(app, "select pg_advisory_xact_lock_shared(%s)", [message.attempt])
    time.sleep(payload.get("seconds", random.uniform(0, 0.02)))
    if payload.get("fails_until", 0) >= message.attempt:
        raise ValueError("not yet")
    write(
        app,
        "update ran set ended = clock_timestamp() where token = %s and message = %s",
        [message.claim_token, message.id],
    )
    late = payload.get("late")
    if late is not None and message.attempt == 1:
        raise {
            "fail": ValueError("late"),
            "retry": postrow.Retry("late", after=0),
            "snooze": postrow.Snooze(0),
            "bury": postrow.Bury("late"),
        }[late]


def main(dsn, options):
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    name = options.pop("name", f"w{os.getpid()}")
    app = App(dsn)
    consumer = {
        "concurrency": options.pop("slots", 10),
        "lease": options.pop("lease", 1.0),
        "max_attempts": options.pop("max_attempts", 100),
        "retry": Constant(base=options.pop("retry", 0.2), cap=3600),
        "max_in_flight": options.pop("max_in_flight", None),
    }
    for queue in options.pop("queues", ["orders"]):

        @app.queue(queue).consumer(name="handler", **consumer)
        def handler(message):
            handle(app, name, message)

    sys.exit(Worker(app, name=name, **options).run())


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
