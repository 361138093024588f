"""A Django project in a folder of the test's own: the example, with settings and modules of the tests beside it."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


@dataclass
class Ended:
    code: int
    out: str
    err: str


@dataclass
class Project:
    """`manage.py` in a folder, on a database."""

    folder: Path
    dsn: str
    processes: list = field(default_factory=list)

    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("POSTROW_", "PG", "DJANGO_"))}
        return {**kept, "POSTROW_DSN": self.dsn, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def settings(self, text):
        """More lines at the end of the settings."""
        with (self.folder / "shop/settings.py").open("a", encoding="utf-8") as file:
            file.write(text)

    def write(self, name, text):
        (self.folder / name).write_text(text, encoding="utf-8")

    def manage(self, *words):
        done = subprocess.run(
            [sys.executable, "-W", "error", "manage.py", *words],
            cwd=self.folder, env=self.environment(), capture_output=True, text=True, check=False, timeout=100,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout, done.stderr)

    def managed(self, *words):
        """`manage`, which has to succeed; what it printed."""
        done = self.manage(*words)
        assert done.code == 0, done.out + done.err
        return done.out

    def start(self, *words):
        log = (self.folder / "log").open("ab")
        with log:
            process = subprocess.Popen(
                [sys.executable, "-W", "error", "manage.py", *words],
                cwd=self.folder, env=self.environment(), stdout=log, stderr=log,
            )  # fmt: skip
        self.processes.append(process)
        return process

    @property
    def log(self):
        return (self.folder / "log").read_text(encoding="utf-8")

    def rows(self, statement, params=None):
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            cursor = conn.execute(statement, params)
            return cursor.fetchall() if cursor.description else []


def make(folder, dsn):
    shutil.copytree(ROOT / "examples/django_shop", folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(HERE / "suite.py", folder / "shop/tests.py")
    return Project(folder, dsn)


@pytest.fixture
def project(tmp_path, empty_database):
    """A project on an empty database."""
    it = make(tmp_path / "project", empty_database)
    yield it
    for process in it.processes:
        if process.poll() is None:
            process.kill()
        process.wait(20)
