"""What taps cost and what they give: commits with and without, latency at a low rate, and workers that only wait.

CPU time is read from /proc: of the server's processes, and of the workers'. Linux only.
"""

import asyncio
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psycopg
from bed import database, percentile, program, wait_until, worker

import postrow

TICK = os.sysconf("SC_CLK_TCK")
ONE = "begin;\nselect id from postrow.enqueue('q', '{\"n\": 1}');\ncommit;\n"
OF_MANY = "\\set n random(1, {tenants})\n" + ONE.replace("}');", "}', tenant => 't' || :n);")


def pgbench(server):
    found = shutil.which("pgbench", path=f"{server.bin_dir}:{os.environ['PATH']}") or next(
        (str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"))), None
    )
    if found is None:
        raise SystemExit("pgbench is missing: apt-get install postgresql-contrib")
    return found


def commits(program_, dsn, script, *, clients, seconds, tap):
    """Commits a second of so many pgbench clients that run a script."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        done = subprocess.run(
            [program_, "-n", "-c", str(clients), "-j", "2", "-T", str(seconds), "-f", file.name, dsn],
            env={**os.environ, "PGOPTIONS": f"-c postrow.tap={tap}"},
            capture_output=True,
            text=True,
            check=True,
        )
    return float(re.search(r"tps = ([\d.]+)", done.stdout)[1])


@contextlib.contextmanager
def listening(dsn):
    """A session that hears taps, as a worker's listener does; gives the list of what it has heard."""
    heard = []
    stopping = threading.Event()

    def listen():
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("listen postrow")
            while not stopping.is_set():
                heard.extend(conn.notifies(timeout=0.2))

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield heard
    finally:
        stopping.set()
        thread.join()


def taps(server, clients=16, seconds=4, rounds=5, tenants=1000):
    """Commits of one message each, with taps over without, alternating; one session listens."""
    program_ = pgbench(server)
    figures = {}
    for label, script in (("one tenant", ONE), (f"{tenants:,} tenants", OF_MANY.replace("{tenants}", str(tenants)))):
        ratios, on_rates, sent = [], [], []
        with database(server) as dsn, psycopg.connect(dsn, autocommit=True) as conn, listening(dsn) as heard:
            for turn in range(rounds):
                rates = {}
                for tap in ("on", "off") if turn % 2 else ("off", "on"):
                    conn.execute("truncate postrow.message")
                    before = len(heard)
                    rates[tap] = commits(program_, dsn, script, clients=clients, seconds=seconds, tap=tap)
                    if tap == "on":
                        sent.append((len(heard) - before) / seconds)
                ratios.append(rates["on"] / rates["off"])
                on_rates.append(rates["on"])
        figures |= {
            f"taps, {label}: {clients} clients, messages/s": statistics.median(on_rates),
            f"taps, {label}: with / without": statistics.median(ratios),
            f"taps, {label}: NOTIFYs/s": statistics.median(sent),
        }
    return figures


def rare(server, rate=2, seconds=60):
    """Milliseconds from the commit to the handler's first line, at two messages a second."""
    committed, started = {}, {}
    with database(server) as dsn, psycopg.connect(dsn) as conn, worker(dsn, "stamped") as process:

        def read():
            for line in process.stdout:
                n, at = line.strip("[]\n").split(",")
                started[int(n)] = float(at)

        threading.Thread(target=read, daemon=True).start()
        postrow.enqueue(conn, "stamped", {"n": -1})
        conn.commit()
        wait_until(conn, "select count(*) from postrow.message", 0)
        time.sleep(2)
        for n in range(rate * seconds):
            postrow.enqueue(conn, "stamped", {"n": n})
            conn.commit()
            committed[n] = time.time()
            time.sleep(1 / rate)
        time.sleep(1)
    waits = [(started[n] - committed[n]) * 1000 for n in committed]
    return {
        f"latency at {rate}/s, p50 ms": percentile(waits, 0.5),
        f"latency at {rate}/s, p99 ms": percentile(waits, 0.99),
        f"latency at {rate}/s, max ms": max(waits),
    }


def ticks(pid, fields):
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    return sum(int(field) for field in text.rpartition(")")[2].split()[11 : 11 + fields])


def server_seconds(pid):
    """CPU seconds of a postmaster and all that it started, living or not."""
    total = ticks(pid, 4)
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += ticks(child, 2)
    return total / TICK


def idle(server, workers=200, settle=75, seconds=60, processes=4):
    """The share of one core that so many idle workers take: the server's processes, and the workers' own.

    They stand in a few processes, so their own share lacks what 200 interpreters would add.
    It is measured when they have been idle for more than a minute, so that they look each 5 s.
    """
    with contextlib.ExitStack() as stack, psycopg.connect(server.dsn(), autocommit=True) as admin:
        before = admin.execute("show max_connections").fetchone()[0]
        if int(before) < workers * 6 + 20:
            raise SystemExit(f"max_connections is {before}: too few for {workers} workers")
        dsn = stack.enter_context(database(server))
        data = Path(admin.execute("show data_directory").fetchone()[0])
        postmaster = int((data / "postmaster.pid").read_text(encoding="ascii").split()[0])
        started = [stack.enter_context(program("taps.py", dsn, "idle", workers // processes)) for _ in range(processes)]
        with psycopg.connect(dsn) as conn:
            listeners = "select count(*) from pg_stat_activity where application_name = 'postrow listener'"
            wait_until(conn, f"select ({listeners}) >= {workers}", expected=True)
        time.sleep(settle)
        began = time.monotonic()
        served = server_seconds(postmaster)
        own = sum(ticks(process.pid, 2) / TICK for process in started)
        time.sleep(seconds)
        took = time.monotonic() - began
        served = server_seconds(postmaster) - served
        own = sum(ticks(process.pid, 2) / TICK for process in started) - own
    return {
        f"{workers} idle workers: the server, % of a core": served / took * 100,
        f"{workers} idle workers: they themselves, % of a core": own / took * 100,
    }


async def be_idle(count):
    from postrow.worker import Worker  # noqa: PLC0415  # only the program that main() starts needs it

    app = postrow.App(os.environ["POSTROW_DSN"])

    @app.queue("idle").consumer()
    async def handle(_message):
        pass

    async def serve(n):
        await asyncio.sleep(n / 5)  # a server that gets 1,200 connections at once lets some of them wait too long
        await Worker(app, name=f"idle-{os.getpid()}-{n}").serve()

    await asyncio.gather(*(serve(n) for n in range(count)))


WORKLOADS = {"taps": taps, "rare": rare, "idle": idle}
SMALL = {
    "taps": {"seconds": 1, "rounds": 1, "tenants": 10},
    "rare": {"rate": 10, "seconds": 1},
    "idle": {"workers": 4, "settle": 1, "seconds": 2, "processes": 2},
}


if __name__ == "__main__":
    # not in the main thread: so no worker takes the signals, and SIGTERM ends them all
    waiting = threading.Thread(target=lambda: asyncio.run(be_idle(int(sys.argv[2]))))
    waiting.start()
    waiting.join()
