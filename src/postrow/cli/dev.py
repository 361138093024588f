"""`postrow dev`: a database and a worker for development, restarted when the code changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from postrow import embedded, migrate
from postrow.app import DSN_VARIABLE
from postrow.cli import database, logs
from postrow.cli.database import Dsn
from postrow.cli.failure import INTERRUPTED, report
from postrow.cli.loading import Target
from postrow.cli.migrate import described
from postrow.cli.screen import note
from postrow.cli.worker import DEV_VARIABLE, Queues, grace_option
from postrow.errors import BadArgumentError

GRACE = 5.0  # seconds
LOOK = 0.3  # seconds between looks at the child and the signals

# Becomes the command, tied to the life of this process: however that ends, the child gets SIGINT.
_TIED = Path(embedded.__file__).with_name("child.py")


def register(program: typer.Typer) -> None:
    """Add the command."""
    program.command("dev")(dev)


def dev(
    *,
    target: Target,
    dsn: Dsn = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where the private server keeps its data.", show_default="your data folder"
        ),
    ] = None,
    queues: Queues = None,
    grace: Annotated[timedelta, grace_option(GRACE)] = timedelta(seconds=GRACE),
    log_level: logs.Level = logs.LogLevel.info,
) -> None:
    """Run an app while you write it, on a private Postgres.

    Migrates the database, runs a worker, and restarts it when a .py file changes. With a DSN it is that
    database instead of a private one.
    """
    if dsn and data is not None:
        raise BadArgumentError(
            f"--data is given, and a DSN by --dsn or {DSN_VARIABLE}", hint="Give one: --data is for a private server."
        )
    private = dsn or (f"embedded:{data.resolve()}" if data is not None else "embedded:")
    resolved = database.resolve(private)
    note(f"postrow dev: database {database.name(resolved)}" + ("" if dsn else f", a private server: --dsn {private}"))
    with database.reaching(resolved):
        note(f"             {described(migrate.apply(resolved))}")
    command = [sys.executable, "-m", "postrow", "worker", target]
    command += ["--grace", f"{grace.total_seconds()}s", "--log-level", log_level.value]
    command += ["--queues", queues] if queues is not None else []
    raise typer.Exit(_Supervisor(command, resolved, grace.total_seconds()).run())


class _Supervisor:
    """Keeps one worker process, and starts it again when a file changes."""

    def __init__(self, command: list[str], dsn: str, grace: float) -> None:
        self._command = command
        self._environment = {**os.environ, DSN_VARIABLE: dsn, DEV_VARIABLE: "1"}
        self._grace = grace
        self._stop = threading.Event()
        self._signals = 0
        self._number = signal.SIGTERM
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Until SIGTERM, Ctrl-C, or, where no files are watched, the worker's own end; gives the exit code."""
        before = {number: signal.signal(number, self._signalled) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            return self._run()
        finally:
            self._end_child()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _run(self) -> int:
        changes = _changes(self._stop)
        if changes is not None:
            next(changes, None)  # it watches from here on: a change while the worker reads the code is not missed
        if not self._stop.is_set():
            self._start_child()
        for changed in changes or _never(self._stop):
            if changed:
                note(f"postrow dev: {changed} has changed: the worker starts again")
                self._end_child()
                if not self._stop.is_set():
                    self._start_child()
            elif self._child is not None and (code := self._child.poll()) is not None:
                self._child = None
                if changes is None:
                    return code
                report(f"the worker ended (exit code {code})", "It starts again when a .py file changes.")
        return INTERRUPTED if self._number == signal.SIGINT else 0

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        self._number = signal.Signals(number)
        self._signals += 1
        self._stop.set()
        if self._signals > 1 and self._child is not None:
            self._child.kill()  # as a worker does at its second signal, and sure to come through

    def _start_child(self) -> None:
        command = self._command
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", str(_TIED), str(os.getpid()), "-1", "-1", *command]
        # a session of its own: Ctrl-C reaches it through us, once
        self._child = subprocess.Popen(command, env=self._environment, start_new_session=True)

    def _end_child(self) -> None:
        child = self._child
        if child is None:
            return
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(self._grace + 15)  # what a worker takes beyond its grace, and some
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._child = None


def _changes(stop: threading.Event) -> Iterator[str] | None:
    """The name of a .py file that has changed, or an empty text now and then; None where nothing can watch."""
    try:
        from watchfiles import PythonFilter, watch  # noqa: PLC0415  # an extra
    except ModuleNotFoundError:
        note("postrow dev: files are not watched; to restart on changes: pip install 'postrow[reload]'")
        return None
    here = Path.cwd()

    def names() -> Iterator[str]:
        for changed in watch(
            here,
            watch_filter=PythonFilter(),
            stop_event=stop,
            rust_timeout=int(LOOK * 1000),
            yield_on_timeout=True,
            raise_interrupt=False,
        ):
            paths = sorted(path for _, path in changed)
            yield str(Path(paths[0]).relative_to(here)) if paths else ""

    return names()


def _never(stop: threading.Event) -> Iterator[str]:
    while not stop.wait(LOOK):
        yield ""
