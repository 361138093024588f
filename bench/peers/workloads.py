"""What is measured, the same way for every peer. Each workload gives figures by name, for one peer and one run.

Figures about the jobs themselves, `run once`, `missing` and `doubled`, come from the handlers: each notes every
job's number, and what they noted is compared with what was enqueued.
"""

import subprocess
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress

import psycopg
from programs import FailedError, program, wait_for

CHUNK = 10_000  # jobs of a bulk call


class Bench:
    """A peer in a new database."""

    def __init__(self, peer, conn, dsn):
        self.peer = peer
        self.conn = conn
        self.dsn = dsn

    def start(self, *words):
        return program(*self.peer.command, self.dsn, *words)

    def ask(self, *words):
        with self.start(*words) as running:
            answer = running.answer()
            with suppress(subprocess.TimeoutExpired):
                running.process.wait(60)  # it says goodbye to the server; else it is ended
        return answer

    def value(self, statement):
        return self.conn.execute(statement).fetchone()[0]

    def unfinished(self):
        return self.value(self.peer.unfinished)

    def expect(self, count):
        """What the producer says that it has enqueued has to be there."""
        found = self.unfinished()
        if found != count:
            raise FailedError(f"{self.peer.name}: {count} jobs were enqueued, and {found} are there")

    @contextmanager
    def workers(self, count):
        """Worker processes that have loaded everything and then begin at the same moment."""
        with ExitStack() as stack:
            running = [stack.enter_context(self.start("work")) for _ in range(count)]
            for worker in running:
                worker.answer()
            for worker in running:
                worker.tell("go")
            yield running

    def finish(self, workers, count, *, timeout, pause=0.002):
        """Wait until `count` jobs have run and none is left in the database; when that was, and the jobs' runs."""
        quiet = 5  # seconds without a new run, and nothing left: there will be no more
        stuck = 60  # seconds without a new run, and something left: it will not go on
        end = time.monotonic() + timeout
        seen, since = 0, time.monotonic()
        while True:
            ran = sum(worker.ran for worker in workers)
            now = time.monotonic()
            if ran != seen:
                seen, since = ran, now
            if (ran >= count or now - since > quiet) and self.unfinished() == 0:
                break
            asking = time.monotonic() - now  # a count of kept jobs takes a while, and is not to disturb
            if now > end or now - since > stuck or not all(worker.alive for worker in workers):
                raise FailedError(f"{self.peer.name}: {seen} of {count} jobs ran, {self.unfinished()} are left")
            time.sleep(max(pause, 3 * asking))
        ended = time.time()
        for worker in workers:
            worker.tell("report")
        return ended, [run for worker in workers for run in worker.answer()["runs"]]


@contextmanager
def bench(server, peer):
    name = f"peer_{time.monotonic_ns()}"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute("checkpoint")  # what others wrote is not written out in this one's time
        admin.execute(f"create database {name}")
        try:
            with psycopg.connect(server.dsn(name), autocommit=True) as conn:
                found = Bench(peer, conn, server.dsn(name))
                found.ask("install")
                yield found
        finally:
            admin.execute(f"drop database {name} with (force)")


def exactness(*rounds):
    """How often each job ran, of rounds that had the jobs 0 to count - 1 each."""
    times = []
    for runs, count in rounds:
        ran = Counter(n for n, _ in runs)
        times += [ran[n] for n in range(count)]
    return {
        f"run once, of {len(times):,}": sum(number == 1 for number in times),
        "missing": sum(number == 0 for number in times),
        "doubled": sum(number > 1 for number in times),
    }


def drain(server, peer, *, count=50_000, workers=(1, 2)):
    """From the first handler's first line until the database holds no unfinished job."""
    figures = {}
    rounds = []
    for processes in workers:
        with bench(server, peer) as place:
            place.ask("bulk", count, CHUNK)
            place.expect(count)
            place.conn.execute("analyze")
            with place.workers(processes) as running:
                ended, runs = place.finish(running, count, timeout=600)
        name = f"{processes} worker{'s' * (processes > 1)}, jobs/s"
        figures[name] = count / (ended - min(at for _, at in runs))
        rounds.append((runs, count))
    return figures | exactness(*rounds)


def enqueue(server, peer, *, clients=(1, 16), seconds=5):
    """One job a commit, for some seconds."""
    figures = {}
    for number in clients:
        with bench(server, peer) as place:
            answer = place.ask("enqueue", number, seconds, 0)
            place.expect(answer["count"] + answer["warm"])
        figures[f"{number} client{'s' * (number > 1)}, jobs/s"] = answer["count"] / answer["seconds"]
    return figures


def bulk(server, peer, *, count=50_000):
    """The peer's bulk call, 10,000 jobs a transaction: the median of these."""
    with bench(server, peer) as place:
        answer = place.ask("bulk", count, min(CHUNK, count))
        place.expect(count)
    rates = sorted(answer["rates"])
    return {"jobs/s": rates[len(rates) // 2]}


def latency(server, peer, *, rates=(100, 1000), seconds=15, settle=2):
    """Milliseconds from the producer's commit to the handler's first line; one worker with nothing else to do."""
    figures = {}
    rounds = []
    for rate in rates:
        count = rate * seconds
        with bench(server, peer) as place, place.workers(1) as running, place.start("pace", rate, seconds) as producer:
            warm = producer.answer()["warm"]
            if not wait_for(lambda running=running, warm=warm: running[0].ran >= warm, timeout=60):
                raise FailedError(f"{peer.name}: {running[0].ran} of the first {warm} jobs ran in 60 s")
            time.sleep(settle)
            producer.tell("go")
            sent = producer.answer()
            _, runs = place.finish(running, count + warm, timeout=300)
        started = {}
        for n, at in runs:
            started[n] = min(at, started.get(n, at))
        waits = sorted((started[n] - at) * 1000 for n, at in sent["committed"] if n in started)
        figures[f"{rate:,}/s, p50 ms"] = waits[len(waits) // 2]
        figures[f"{rate:,}/s, p99 ms"] = waits[int(len(waits) * 0.99)]
        figures[f"{rate:,}/s, enqueued a second"] = count / sent["seconds"]
        rounds.append((runs, count))
    return figures | exactness(*rounds)


def wal(server, peer, *, count=10_000):
    """Bytes of WAL and commits a job: enqueued one a commit by 16 clients, then drained by one worker process."""
    figures = {}
    with bench(server, peer) as place:

        def used(what, count, since):
            time.sleep(1.5)  # the processes' connections have closed, and their statistics have arrived
            now = counters(place)
            figures[f"{what}, WAL bytes/job"] = (now[0] - since[0]) / count
            figures[f"{what}, commits/job"] = (now[1] - since[1]) / count

        before = counters(place)
        answer = place.ask("enqueue", 16, 0, count)
        used("enqueue", answer["count"] + answer["warm"], before)
        before = counters(place)
        with place.workers(1) as running:
            _, runs = place.finish(running, count + answer["warm"], timeout=300, pause=0.25)
        used("work", count + answer["warm"], before)
    figures["both, WAL bytes/job"] = figures["enqueue, WAL bytes/job"] + figures["work, WAL bytes/job"]
    return figures | exactness((runs, count))


def counters(place):
    return place.conn.execute(
        "select (pg_current_wal_insert_lsn() - '0/0')::float8, xact_commit::float8 "
        "from pg_stat_database where datname = current_database()"
    ).fetchone()


WORKLOADS = {"drain": drain, "enqueue": enqueue, "bulk": bulk, "latency": latency, "wal": wal}
SMALL = {  # numbers of a smoke run
    "drain": {"count": 2000},
    "enqueue": {"seconds": 1},
    "bulk": {"count": 2000},
    "latency": {"rates": (100,), "seconds": 1, "settle": 0.5},
    "wal": {"count": 500},
}
