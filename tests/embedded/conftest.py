import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs
import psycopg
import pytest

import postrow.embedded.server
from postrow.embedded import Server, find_binaries
from postrow.embedded.account import Account, can_run

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
NOBODY = Account("nobody", 65534, 65534)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that the server's account can reach; as root, it cannot reach pytest's tmp_path."""
    folder = Path(tempfile.mkdtemp(prefix="postrow-test-", dir="/tmp")).resolve()
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def template() -> Iterator[Path]:
    """A folder with a database that has been stopped, and the folder beside it."""
    folder = Path(tempfile.mkdtemp(prefix="postrow-test-", dir="/tmp")).resolve()
    folder.chmod(0o711)
    with Server(folder / "data", durable=False):
        pass
    for name in ("server.log", "server.json"):  # each copy has its own log, and a port of its own
        (folder / "data.postrow" / name).unlink()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def data(template, place) -> Path:
    """A database of the test's own, copied: initdb takes half a second each time."""
    subprocess.run(["cp", "-a", template / "data", template / "data.postrow", place], check=True)
    return place / "data"


@pytest.fixture(params=["found", "debian 15"])
def bin_dir(request) -> Path:
    if request.param == "found":
        return find_binaries()
    if not DEBIAN_15.is_dir():
        pytest.skip("Debian's Postgres 15 is not installed")
    return DEBIAN_15


@pytest.fixture
def wait() -> Callable[[Callable[[], object]], None]:
    def wait_for(condition: Callable[[], object], seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "not within the time"
            time.sleep(0.01)

    return wait_for


@pytest.fixture
def ask() -> Callable[..., list[tuple]]:
    """Runs statements in one transaction; the rows of the last one."""

    def rows(dsn: str, *statements: str) -> list[tuple]:
        with psycopg.connect(dsn) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    return rows


class Program:
    """A Python program of its own: it prints lines and ends when its standard input does."""

    def __init__(self, code: str, arguments: tuple[object, ...], python: str, options: dict) -> None:
        search = {str(Path(module.__file__).parents[1]) for module in (platformdirs, psycopg)}
        source = Path(postrow.embedded.server.__file__).parents[2]
        self.process = subprocess.Popen(
            [python, "-W", "error", "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(source), *search])},
            **options,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> int:
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def run(code: str, *arguments: object, python: str = sys.executable, **options) -> Program:
        started.append(Program(code, arguments, python, options))
        return started[-1]

    yield run
    for one in started:
        if one.process.returncode is None:
            one.end()
        for pipe in (one.process.stdin, one.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def as_nobody(program) -> Callable[..., Program]:
    """Runs a program as an unprivileged user: `nobody` when we are root, otherwise ourselves."""

    def run(code: str, *arguments: object) -> Program:
        if os.geteuid() != 0:
            return program(code, *arguments)
        same = Path(f"/usr/bin/python3.{sys.version_info.minor}")
        python = next(
            (found for found in (Path(sys.executable), same) if found.exists() and can_run(found, NOBODY)),
            None,
        )
        if python is None:
            pytest.skip("the user nobody can reach no Python of this version")
        return program(code, *arguments, python=str(python), user=NOBODY.uid, group=NOBODY.gid, extra_groups=[])

    return run
