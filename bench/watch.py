"""What a run looks like from outside, a sample each second: processor time, memory, and the live table's state."""

import os
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import psycopg

TICKS = os.sysconf("SC_CLK_TCK")
FUNCTIONS = ("claim_lanes", "ack_at", "lanes", "lanes_ahead", "sweep", "take", "enqueue_lines", "enqueue_many")
LOOK = """
select (select jsonb_object_agg(a.pid, coalesce(nullif(a.application_name, ''), a.backend_type))
        from pg_stat_activity a where a.pid <> pg_backend_pid()),
    s.n_dead_tup, s.autovacuum_count, pg_relation_size(s.relid), pg_indexes_size(s.relid),
    (select jsonb_object_agg(f.funcname, jsonb_build_array(f.calls, f.total_time))
        from pg_stat_user_functions f where f.funcname = any (%s))
from pg_stat_user_tables s where s.relid = 'postrow.message'::regclass
"""


def spent(pid):
    """Seconds of processor time that a process has used; None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS


def own_memory(pid):
    """MB that a process has for itself, without what it shares with others; None when it is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return None


class Watch:
    """Samples, until the end of the context, of a database and of the processes that are named.

    Each sample is a dict: `at` (seconds since the epoch), `dead`, `vacuums`, `heap` and `indexes` (MB), `functions`
    (calls and ms), and by who it is `cpu` (seconds, ascending) and `memory` (MB; of several, of the largest).
    """

    def __init__(self, dsn, processes, every=1.0):
        self.samples = []
        self.processes = dict(processes)  # may be added to
        self._every = every
        self._cpu = {}  # seconds by process, the last that was seen: it may have gone since
        self._first = {}
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._conn = psycopg.connect(dsn, autocommit=True, application_name="bench watch")

    def run(self):
        next_at = time.monotonic()
        while not self._stopping.is_set():
            self.samples.append(self.sample())
            next_at += self._every
            self._stopping.wait(max(0.0, next_at - time.monotonic()))

    def stop(self):
        self._stopping.set()

    def sample(self):
        """What it is now; from any thread."""
        with self._lock:
            return self._sample()

    def _sample(self):
        backends, dead, vacuums, heap, indexes, functions = self._conn.execute(LOOK, [list(FUNCTIONS)]).fetchone()
        everyone = {int(pid): name for pid, name in (backends or {}).items()} | self.processes
        memory = {}
        for pid, name in everyone.items():
            if (seconds := spent(pid)) is not None:
                self._cpu[pid, name] = seconds
                memory[name] = max(memory.get(name, 0.0), own_memory(pid) or 0.0)
        cpu = {}
        for key, seconds in self._cpu.items():
            begun = self._first.setdefault(key, seconds)
            cpu[key[1]] = cpu.get(key[1], 0.0) + seconds - begun
        return {
            "at": time.time(),
            "dead": dead,
            "vacuums": vacuums,
            "heap": heap / 2**20,
            "indexes": indexes / 2**20,
            "functions": functions or {},
            "cpu": cpu,
            "memory": memory,
        }


@contextmanager
def watching(dsn, processes, every=1.0):
    """A Watch that runs; `processes` are names by process id."""
    watch = Watch(dsn, processes, every)
    thread = threading.Thread(target=watch.run, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.stop()
        thread.join()


def points(samples, start, value):
    """(seconds since `start`, value) of each sample that has one; `value` gives it, from a sample."""
    found = [(sample["at"] - start, value(sample)) for sample in samples]
    return [(at, some) for at, some in found if some is not None]


def steps(samples, start, value, per=None, span=1):
    """The growth of `value` from sample to sample, `span` apart, a second; or over the growth of `per`."""
    out = []
    for before, after in zip(samples, samples[span:], strict=False):
        base = per(after) - per(before) if per else after["at"] - before["at"]
        if base > 0:
            out.append((after["at"] - start, (value(after) - value(before)) / base))
    return out


def calls(function):
    """A function's calls, of a sample."""
    return lambda sample: sample["functions"].get(function, (0, 0.0))[0]


def spent_in(function):
    """The milliseconds that were spent in a function and those that it called, of a sample."""
    return lambda sample: sample["functions"].get(function, (0, 0.0))[1]


def work(sample):
    """Of a sample, the processor time of workers and of what the server does for them, in seconds."""
    return sum(spent for name, spent in sample["cpu"].items() if name == "worker" or name.startswith("postrow "))


def cores(samples, names):
    """Of each of these, the cores that it kept busy on average over the samples."""
    first, last = samples[0], samples[-1]
    passed = max(1e-9, last["at"] - first["at"])
    return {name: (last["cpu"].get(name, 0.0) - first["cpu"].get(name, 0.0)) / passed for name in names}
