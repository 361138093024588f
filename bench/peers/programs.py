"""Adapters as processes: what they are asked, and what they say. The protocol is in adapter.py."""

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager, suppress

MARK = "@ "


class FailedError(Exception):
    """An adapter ended, or said nothing in time; the message has its last words."""


class Program:
    """One running adapter. `ran` is the last count that a worker has told."""

    def __init__(self, process, words, complaints):
        self.process = process
        self.ran = 0
        self._words = words
        self._answers = queue.Queue()
        self._complaints = complaints
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            if not line.startswith(MARK):
                continue
            answer = json.loads(line[len(MARK) :])
            if list(answer) == ["ran"]:
                self.ran = answer["ran"]
            else:
                self._answers.put(answer)
        self._answers.put(None)

    def answer(self, timeout=300):
        """The next thing that it says, counts apart."""
        try:
            found = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise FailedError(f"{self._words}: no answer in {timeout} s{self._last_words()}") from None
        if found is None:
            raise FailedError(f"{self._words}: ended{self._last_words()}")
        return found

    def tell(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    @property
    def alive(self):
        return self.process.poll() is None

    def _last_words(self):
        self._complaints.flush()
        self._complaints.seek(0)
        return "".join(f"\n    {line.rstrip()}" for line in self._complaints.readlines()[-15:])


@contextmanager
def program(command, folder, dsn, *words):
    """Start an adapter; it is ended at last, whatever it does."""
    with (
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(
            [*command, *map(str, words)],
            cwd=folder,
            env={**os.environ, "PEER_DSN": dsn or ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield Program(process, " ".join([str(command[-1]), *map(str, words)]), complaints)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with processes of its own, which may hold our pipes


def wait_for(condition, *, timeout, pause=0.002):
    """Whether it came true in time."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True
