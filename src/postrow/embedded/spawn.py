"""Start a program as the server's account, tied to the life of this process."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO

from postrow.embedded.account import Account

_Start = Callable[[], subprocess.Popen[bytes]]
_Started = Future[subprocess.Popen[bytes]]


def spawn(
    command: Sequence[str | Path],
    *,
    account: Account | None,
    output: IO[bytes],
    extra: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts `command` in a session of its own (Ctrl-C does not reach it); its output goes to `output`.

    `extra` is added to its environment.

    On Linux it gets SIGINT when this process ends, however it ends. Elsewhere, or where no Python can
    be executed (`sys.executable` or this package is out of reach), it starts without that.
    """

    def start() -> subprocess.Popen[bytes]:
        return _popen([str(word) for word in command], account, output, environment() | dict(extra or {}))

    # The death signal fires when the *thread* that forked ends, so only a thread that lasts as long as
    # the process may fork: the first one, or one kept for it.
    if threading.get_native_id() == os.getpid():
        return start()
    return _lasting_thread.run(start)


def environment() -> dict[str, str]:
    """Ours without ``PG*`` (they would configure the server), and with messages in English (we read them)."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C"}


def _popen(
    command: list[str], account: Account | None, output: IO[bytes], variables: dict[str, str]
) -> subprocess.Popen[bytes]:
    python, child = sys.executable, Path(__file__).with_name("child.py")
    if sys.platform == "linux" and python and os.access(python, os.X_OK) and os.access(child, os.R_OK):
        user = (account.uid, account.gid) if account else (-1, -1)
        wrapper = [python, "-I", "-S", str(child)]
        command = [*wrapper, str(os.getpid()), *map(str, user), *command]
        account = None
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd="/",  # the account may not be able to read ours, and then Postgres before 16 does not start
        env=variables,
        start_new_session=True,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
    )


class _LastingThread:
    """One daemon thread, made when first needed, that starts programs and never ends."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[_Start, _Started]] | None = None

    def run(self, start: _Start) -> subprocess.Popen[bytes]:
        answer: _Started = Future()
        with self._lock:
            if self._jobs is None:
                self._jobs = queue.SimpleQueue()
                threading.Thread(target=self._serve, args=(self._jobs,), name="postrow-spawn", daemon=True).start()
            self._jobs.put((start, answer))
        return answer.result()

    @staticmethod
    def _serve(jobs: queue.SimpleQueue[tuple[_Start, _Started]]) -> None:
        while True:
            start, answer = jobs.get()
            try:
                answer.set_result(start())
            except BaseException as error:  # noqa: BLE001 - it is raised in the thread that asked
                answer.set_exception(error)
            del start, answer


_lasting_thread = _LastingThread()
os.register_at_fork(after_in_child=_lasting_thread.reset)  # threads do not survive a fork
