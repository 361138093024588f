"""Runs `postrow demo` as a program, in a folder for temporary files of its own, so that what it leaves can be seen."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

PROC = Path("/proc")


class Demo:
    """One run: `start` or `run`; then `code`, `out`, `err`. `left` is what it has not cleaned up."""

    def __init__(self, folder):
        self.folder = folder
        self.process = None
        self.code = None
        self.out = self.err = ""

    def start(self, *words, stdout=subprocess.PIPE, program=("-m", "postrow"), **variables):
        self.process = subprocess.Popen(
            [sys.executable, *program, "demo", *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(self.folder), "PYTHONIOENCODING": "utf-8", **variables},
            text=True,
        )
        return self

    def read_until(self, word):
        """Read the story on, to the line that has this word."""
        for line in self.process.stdout:
            self.out += line
            if word in line:
                return
        pytest.fail(f"{word} never came: {self.out} {self.process.stderr.read()}")

    def end(self):
        out, self.err = self.process.communicate(timeout=100)
        self.out += out or ""
        self.code = self.process.returncode
        return self

    def run(self, *words, **options):
        return self.start(*words, **options).end()

    @property
    def processes(self):
        """The command lines of the processes that belong to this run: they have its TMPDIR."""
        found = []
        for entry in PROC.iterdir():
            try:
                if entry.name.isdigit() and f"TMPDIR={self.folder}".encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:  # it has ended meanwhile, or is not ours to look into
                continue
        return found

    @property
    def files(self):
        """What is in the folder for temporary files."""
        return list(self.folder.iterdir())


@pytest.fixture(scope="module")
def make_demo():
    made = []

    def make():
        folder = Path(tempfile.mkdtemp(prefix="postrow-test-", dir="/tmp")).resolve()
        folder.chmod(0o1777)  # as /tmp: as root, the server runs as another user
        made.append(Demo(folder))
        return made[-1]

    yield make
    for demo in made:
        if demo.process is not None and demo.process.poll() is None:
            demo.process.terminate()
            demo.end()
        if demo.process is not None:
            for pipe in (demo.process.stdout, demo.process.stderr):
                if pipe is not None:
                    pipe.close()
        shutil.rmtree(demo.folder, ignore_errors=True)


@pytest.fixture
def demo(make_demo):
    """A run that has not begun."""
    return make_demo()
