"""Messages at a steady rate from one cheap process: a batch each tick, in one call and one commit.

Each payload says when it was due. Who falls behind sends what is overdue at once, with the times at which it was due: a
latency that is counted from there leaves nothing out. Runs until it is terminated, then prints how many were sent and,
of each second, by how much its batches began late at most.
"""

import json
import os
import signal
import sys
import threading
import time

import psycopg

TICK = 0.025  # seconds; longer than the window in which a backend taps once
MOST = 5000  # messages in one call, when it has fallen behind
FILLING = "x" * 112  # a payload has 150 bytes as JSON
LINES = "select count(*) from postrow.enqueue_lines(%s, %s, tenant => 'tenant-0')"
# without enqueue_many, which looks at each message's own options: for 1,000 tenants that took four times as long
MANY = """
with put as (
    insert into postrow.message (tenant, id, queue, payload, enqueued_at, available_at)
    select u.tenant, postrow.uuid7(), %(queue)s, u.payload::jsonb, clock_timestamp(), clock_timestamp()
    from unnest(%(tenants)s::text[], %(payloads)s::text[]) u(tenant, payload)
    returning tenant)
select count(postrow.tap(%(queue)s, t.tenant)) from (select distinct tenant from put) t
"""


def payload(due):
    return f'{{"due": {due:.3f}, "k": "{FILLING}"}}'


def call(queue, first, dues, tenants):
    """One call for messages that were due then, the first of which is number `first` of all.

    With one tenant as lines, else each with its own tenant, by an insert with the taps of an enqueue.
    """
    payloads = list(map(payload, dues))
    if tenants == 1:
        return LINES, (queue, "\n".join(payloads))
    names = [f"tenant-{n % tenants}" for n in range(first, first + len(dues))]
    return MANY, {"queue": queue, "tenants": names, "payloads": payloads}


def produce(dsn, queue, rate, tenants, stopping):
    """How many were sent, and of each second [since the epoch, by how much a batch began late at most, in seconds]."""
    late = {}
    sent = tick = 0
    with psycopg.connect(dsn, autocommit=True, application_name="bench producer") as conn:
        began = time.time()
        while not stopping.wait(max(0.0, began + tick * TICK - time.time())):
            now = time.time()
            late[int(now)] = max(late.get(int(now), 0.0), now - began - tick * TICK)
            dues = []
            while began + tick * TICK <= now and len(dues) < MOST:
                tick += 1
                dues += [began + (tick - 1) * TICK] * (int(tick * TICK * rate) - sent - len(dues))
            if dues:
                conn.execute(*call(queue, sent, dues, tenants), prepare=True)
                sent += len(dues)
    return {"sent": sent, "late": sorted(late.items())}


def main(queue, rate, tenants):
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    print(json.dumps(produce(os.environ["POSTROW_DSN"], queue, rate, tenants, stopping)))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
