import array
import os
import shutil
import subprocess
import sys
import tempfile
import termios
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from postrow.cli import main


@dataclass
class Ended:
    """What a command gave."""

    code: int
    out: str
    err: str


def _environment(dsn, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POSTROW_", "PG", "COLUMNS"))}
    return {**kept, **({"POSTROW_DSN": dsn} if dsn else {}), "PYTHONUNBUFFERED": "1", **more}


@pytest.fixture
def run(committed, capsys, monkeypatch):
    """Runs a command in this process, on the shared database."""
    for name in list(os.environ):
        if name.startswith(("POSTROW_", "PG")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("POSTROW_DSN", committed)

    def run(*words, dsn=None):
        capsys.readouterr()
        code = main([*words, *(("--dsn", dsn) if dsn else ())])
        found = capsys.readouterr()
        return Ended(code, found.out, found.err)

    return run


@pytest.fixture
def start(committed, tmp_path):
    """Starts `python -m postrow ...` as a process of its own, in a folder of its own."""
    started = []

    def start(*words, dsn=committed, **more):
        more.setdefault("stdin", subprocess.DEVNULL)
        process = subprocess.Popen(
            [sys.executable, "-m", "postrow", *words],
            env=_environment(dsn, **more.pop("env", {})),
            cwd=tmp_path,
            stdout=more.pop("stdout", subprocess.PIPE),
            stderr=more.pop("stderr", subprocess.PIPE),
            text=True,
            **more,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def process(start):
    """Runs `python -m postrow ...` to its end."""

    def process(*words, given=None, **more):
        running = start(*words, **({"stdin": subprocess.PIPE} if given is not None else {}), **more)
        out, err = running.communicate(given, timeout=30)
        return Ended(running.returncode, out, err)

    return process


def state(pid):
    """What a process does: S, it sleeps."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def feed(wait_for):
    """Writes to a process's stdin, and waits until it has read all of it and waits for more: feed(process, "3\\n").

    A reader that has answered for what came before (its commit, its line of output) is past that then: rows that
    are seen say only that the database has them, not that the process has heard of it. And it sleeps: a signal that
    comes between Python's last look for one and the call that reads would be heard after the next line.
    """

    def feed(process, text):
        process.stdin.write(text)
        process.stdin.flush()
        left = array.array("i", [0])

        def taken():
            assert process.poll() is None, "the process has ended"
            ioctl(process.stdin, termios.FIONREAD, left)
            return left[0] == 0 and state(process.pid) == "S"

        wait_for(taken, what="the process to read its stdin")

    return feed


@pytest.fixture
def reachable():
    """A folder that the account of an embedded server can pass through, also when the tests run as root."""
    folder = Path(tempfile.mkdtemp(prefix="postrow-cli-", dir="/tmp"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


class Database:
    """What tests put into the database, beside the command."""

    def __init__(self, conn):
        self.conn = conn

    def rows(self, statement, *params):
        return self.conn.execute(statement, params).fetchall()

    def value(self, statement, *params):
        return self.rows(statement, *params)[0][0]

    def enqueue(self, queue="emails", payload="1", **options):
        names = "".join(f", {name} => %s" for name in options)
        return self.value(f"select id from postrow.enqueue(%s, %s{names})", queue, payload, *options.values())

    def claim(self, queue="emails", *, worker="w1", lease="60 s"):
        return self.rows(
            "select tenant, id, claim_token from postrow.claim(%s, 10, worker => %s, lease => %s) where id is not null",
            queue, worker, lease,
        )  # fmt: skip

    def ack(self, claimed):
        tenants, ids, tokens = map(list, zip(*claimed, strict=True))
        self.rows("select * from postrow.ack(%s, %s, %s)", tenants, ids, tokens)

    def fail(self, claimed, error="it broke", kind="RuntimeError", traceback=None, retry_at=None):
        tenants, ids, tokens = map(list, zip(*claimed, strict=True))
        self.rows(
            "select * from postrow.fail(%s, %s, %s, %s, types => %s, tracebacks => %s::text[], "
            "retry_at => %s::timestamptz[])",
            tenants, ids, tokens, [error] * len(ids), [kind] * len(ids), [traceback] * len(ids), [retry_at] * len(ids),
        )  # fmt: skip

    def dead(self, queue="emails", *, error="it broke", kind="RuntimeError", traceback=None, **options):
        """A dead letter; gives its id."""
        id_: UUID = self.enqueue(queue, max_attempts=1, **options)
        self.fail([row for row in self.claim(queue) if row[1] == id_], error, kind, traceback)
        return id_


@pytest.fixture
def db(committed):
    with psycopg.connect(committed, autocommit=True, prepare_threshold=None) as conn:
        yield Database(conn)
