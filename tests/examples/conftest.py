"""Runs an example as its docstring says: the commands there, on a database and ports of the test's own."""

import ast
import json
import os
import shlex
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import psycopg
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = {  # where the docstring is, the folder to be in, and how each server is given its port
    "fastapi_shop": ("examples/fastapi_shop/app.py", ".", ["--port"]),
    "flask_shop": ("examples/flask_shop/app.py", ".", ["--port"]),
    "django_shop": ("examples/django_shop/manage.py", "examples/django_shop", ["--noreload"]),
}


def free_port():
    with closing(socket.socket()) as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


def documented(path):
    """The commands of a docstring, as (words, comment)."""
    lines = ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8"))).splitlines()
    for line in lines:
        if line.startswith("    "):
            command, _, comment = line.partition(" # ")
            yield shlex.split(command), comment.strip()


@dataclass
class Answer:
    status: int
    text: str

    @property
    def json(self):
        return json.loads(self.text)


@dataclass
class Shop:
    """An example that runs: its web server is up, its worker is not."""

    name: str
    dsn: str
    log: Path
    wait_for: object
    processes: list = field(default_factory=list)

    def __post_init__(self):
        path, folder, port_option = EXAMPLES[self.name]
        self.folder, self.port_option = ROOT / folder, port_option
        self.commands = list(documented(path))
        self.port = free_port()

    def command(self, words):
        """What a person types, with this Python."""
        programs = {"python": [], "postrow": ["-m", "postrow"]}
        return [sys.executable, *programs.get(words[0], ["-m", words[0]]), *words[1:]]

    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("POSTROW_", "PG"))}
        return {**kept, "POSTROW_DSN": self.dsn, "PYTHONUNBUFFERED": "1"}

    def start(self, words):
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.command(words), cwd=self.folder, env=self.environment(), stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    def prepare(self):
        """The commands before the first server, then that server."""
        for words, comment in self.commands:
            if comment == "one terminal":
                port = [f"127.0.0.1:{self.port}"] if self.name == "django_shop" else []
                option = [*self.port_option, *([] if port else [str(self.port)])]
                server = self.start([*words, *port, *option])
                self.wait_for(partial(self.answers, server), what=f"the server of {self.name}")
                return
            done = subprocess.run(
                self.command(words),
                cwd=self.folder,
                env=self.environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr

    def answers(self, server):
        assert server.poll() is None, self.log.read_text()
        with closing(socket.socket()) as it:
            return it.connect_ex(("127.0.0.1", self.port)) == 0

    def start_worker(self):
        return self.start(next(words for words, comment in self.commands if comment == "another"))

    def curl(self, comment):
        """The curl command of the docstring with this comment, sent to the example."""
        words = next(words for words, said in self.commands if words[0] == "curl" and said.startswith(comment))
        options = [(name, value) for name, value in zip(words[1:-1:2], words[2:-1:2], strict=True)]
        body, headers = None, {}
        for name, value in options:
            if name == "--json":
                body, headers = value.encode(), {"Content-Type": "application/json"}
        if any(name == "-d" for name, _ in options):
            body = urlencode(dict(value.split("=") for _, value in options)).encode()
        url = f"http://127.0.0.1:{self.port}/{words[-1].partition('/')[2]}"
        request = urllib.request.Request(url, data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return Answer(answer.status, answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode())

    def rows(self, statement):
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            return conn.execute(statement).fetchall()

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(20)


@pytest.fixture(params=sorted(EXAMPLES))
def shop(request, empty_database, tmp_path, wait_for):
    it = Shop(request.param, empty_database, tmp_path / "log", wait_for)
    try:
        it.prepare()
        yield it
    finally:
        it.end()
