"""What can be seen of a running server from outside: its pid file, and the process table."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc/self/stat").exists()


@dataclass(frozen=True, slots=True)
class PidFile:
    """``postmaster.pid``: who runs on a data folder; `status` is ``starting``, ``ready``, ``stopping``."""

    pid: int
    port: int
    status: str

    @property
    def accepts(self) -> bool:
        """Whether it takes connections, as ``pg_ctl`` decides it."""
        return self.status in {"ready", "standby"}


def read_pid_file(data: Path) -> PidFile | None:
    """The pid file of this folder; None when there is none, or it is being written."""
    try:
        lines = (data / "postmaster.pid").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    try:
        pid = int(lines[0])
        # Lines 4 and 8. A server writes them one by one as it starts.
        port = int(lines[3]) if len(lines) > 3 else 0
        status = lines[7].strip() if len(lines) > 7 else "starting"
    except (ValueError, IndexError):
        return None
    return PidFile(abs(pid), port, status)


def is_postmaster(pid: int, data: Path) -> bool:
    """Whether this process is alive and is a Postgres of this folder, not a stranger who got its number."""
    try:
        if PROC:
            # A server's working directory is its data folder. A zombie has none.
            return (Path("/proc") / str(pid) / "cwd").samefile(data)
        return str(data) in _ps("-o", "command=", "-p", str(pid))
    except FileNotFoundError:
        return False
    except PermissionError:
        # Another user's process: Postgres never shares a data folder between users, so it is not ours.
        return False


def live_postmaster(data: Path) -> PidFile | None:
    """The pid file of this folder, if the server that wrote it is alive."""
    found = read_pid_file(data)
    return found if found and is_postmaster(found.pid, data) else None


def children_of(pid: int) -> list[int]:
    """The processes whose parent is `pid`."""
    if not PROC:
        pairs = (line.split() for line in _ps("-ax", "-o", "pid=,ppid=").splitlines())
        return [int(child) for child, parent in pairs if int(parent) == pid]
    numbers = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [number for number in numbers if (found := _stat(number)) and int(found[1]) == pid]


def is_gone(pid: int) -> bool:
    """Whether this process has ended; one that only waits to be reaped has."""
    if PROC:
        found = _stat(pid)
        return found is None or found[0] in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's, so it is alive
        return False
    return False


def wait_until(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Polls every 10 ms until the condition is true; False when it is not within the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _stat(pid: int) -> list[str] | None:
    """State, parent and the rest of ``/proc/PID/stat``; None when there is no such process."""
    try:
        line = (Path("/proc") / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return line.rpartition(")")[2].split()  # the program's name, in brackets, may hold anything


def _ps(*arguments: str) -> str:
    """What `ps` says, lines of any length: it cuts them to ``COLUMNS`` otherwise."""
    return subprocess.run(["ps", "-ww", *arguments], capture_output=True, text=True, check=False).stdout  # noqa: S607 - no fixed place
