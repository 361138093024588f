"""Worker processes: real ones, `postrow worker`, that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import make_conninfo

from postrow.app import DSN_VARIABLE
from postrow.cli.demo import signals
from postrow.cli.demo.shop import PARENT_VARIABLE
from postrow.errors import WorkerError

TARGET = "postrow.cli.demo.shop:app"
STOP_SECONDS = 8.0  # after SIGTERM; the handlers of the shop take a second and a half at most


@dataclass(slots=True)
class Worker:
    """One worker process."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    state: str = "runs"  # or: killed, stopped

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid


class Workers:
    """The worker processes of the demo; they write their logs into `folder`."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._dsn = dsn
        self._folder = folder
        self.all: list[Worker] = []

    def start(self) -> Worker:
        """Start one more."""
        name = f"worker-{len(self.all) + 1}"
        log = self._folder / f"{name}.log"
        words = [sys.executable, "-m", "postrow", "worker", TARGET, "--name", name, "--grace", "5s"]
        with log.open("wb") as output, signals.deferred():
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,  # never written to: it ends when this process does, and the worker with it
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    DSN_VARIABLE: make_conninfo(self._dsn, application_name=name),
                    PARENT_VARIABLE: "1",
                },
                start_new_session=True,  # Ctrl-C is for the demo, which then ends its workers
            )
            worker = Worker(name, process, log)
            self.all.append(worker)
        return worker

    def named(self, name: str) -> Worker:
        """The worker of this name."""
        return next(worker for worker in self.all if worker.name == name)

    def kill(self, worker: Worker) -> None:
        """End it as kill -9 does."""
        worker.state = "killed"
        worker.process.kill()
        worker.process.wait()

    def check(self) -> None:
        """Fail when a worker has ended that nobody ended.

        Raises:
            WorkerError: with the end of its log.
        """
        for worker in self.all:
            if worker.state == "runs" and worker.process.poll() is not None:
                tail = "\n".join(worker.log.read_text(errors="replace").splitlines()[-8:])
                code = worker.process.returncode
                raise WorkerError(f"{worker.name} ended by itself with exit code {code}", hint=f"Its log:\n{tail}")

    def stop(self) -> None:
        """Ask all to stop, wait, and kill those that do not."""
        running = [worker for worker in self.all if worker.state == "runs"]
        for worker in running:
            worker.process.send_signal(signal.SIGTERM)
        for worker in running:
            try:
                worker.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.state = "stopped"

    def end(self) -> None:
        """Kill what still runs: nobody will look at what it did."""
        for worker in self.all:
            if worker.process.poll() is None:
                worker.process.kill()
            worker.process.wait()
            if worker.process.stdin is not None:
                worker.process.stdin.close()
