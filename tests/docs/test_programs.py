"""The programs of the README and the docs run as printed, and their commands print what the pages say."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import types
from uuid import uuid5

import psycopg
import pytest

import postrow
from postrow.cli import main
from postrow.worker import Worker

pytestmark = pytest.mark.slow

# What differs from run to run; everything else in an output has to be as printed.
VARYING = re.compile(
    r"(?P<id>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})|(?P<time>\d\d:\d\d:\d\d)"
    r"|(?P<age>\b\d+ (?:ms|s|min)\b)|(?P<worker>laptop-\d+)|(?P<any>…)|(?P<space>\s+)"
)
PATTERNS = {"time": r"[\d: -]+", "age": r"\d+ (?:ms|s|min)", "worker": r"[\w.-]+", "any": ".*", "space": r"\s+"}
# What is there already when a test plays the page.
DONE = ("pip install", "python -m venv", ". .venv", "export POSTROW_DSN=embedded:", "make ", "postrow dev")


def pattern(line):
    """The pattern of a printed line, with a group for each id in it, and those ids."""
    out, at, ids = "", 0, []
    for match in VARYING.finditer(line):
        out += re.escape(line[at : match.start()])
        out += PATTERNS.get(match.lastgroup, r"([0-9a-f-]{36})")
        ids += [match[0]] if match.lastgroup == "id" else []
        at = match.end()
    return re.compile(out + re.escape(line[at:])), ids


class Terminal:
    """Plays the console blocks of a page in a folder, against a database of the test's own."""

    def __init__(self, folder, dsn, capsys, wait_for):
        self.wait_for = wait_for
        self.folder = folder
        self.dsn = dsn
        self.capsys = capsys
        self.ids = {}  # as printed -> as they are here
        self.environment = {**os.environ, "POSTROW_DSN": dsn, "PYTHONUNBUFFERED": "1"}

    def play(self, page):
        for block in page.blocks("python", "console"):
            if block.language == "python":
                (self.folder / (block.name or "shop.py")).write_text(block.text, encoding="utf-8")
                continue
            command, printed = None, []
            for line in [*block.text.splitlines(), "$ "]:
                if not line.startswith("$ "):
                    printed.append(line)
                    continue
                if command and not command.startswith(DONE):
                    self.run(command, printed)
                command, printed = line[2:], []

    def run(self, command, printed):
        for old, new in self.ids.items():
            command = command.replace(old, new)
        words = shlex.split(command, comments=True)
        if "^C" in printed:
            output = self.until_idle(words)
        elif words[0] == "postrow":
            main(words[1:])
            output = "".join(self.capsys.readouterr())
        else:
            command_line = [sys.executable, *words[1:]]  # whatever `python` is here
            done = subprocess.run(
                command_line, check=False, cwd=self.folder, env=self.environment, capture_output=True, text=True
            )
            output = done.stdout + done.stderr
        self.compare(command, [line for line in printed if line not in ("^C", "...")], output)

    def until_idle(self, words):
        """Run a worker until nothing is left to do, then press Ctrl-C."""
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            with psycopg.connect(self.dsn, autocommit=True) as conn:
                idle = "select not exists (select from postrow.message)"
                self.wait_for(lambda: conn.execute(idle).fetchone()[0] or process.poll() is not None, what=words)
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=20)
        finally:
            process.kill()
        assert process.returncode == 0, output
        return output

    def compare(self, command, printed, output):
        """Each printed line stands in the output, in this order."""
        lines = iter(output.splitlines())
        for line in printed:
            wanted, ids = pattern(line)
            found = next((match for match in map(wanted.fullmatch, lines) if match), None)
            assert found, f"$ {command}\nhas no line like: {line}\n{output}"
            self.ids.update(zip(ids, found.groups(), strict=True))
        if not printed:
            assert "Traceback" not in output, output


@pytest.fixture
def terminal(tmp_path, empty_database, capsys, monkeypatch, wait_for):
    monkeypatch.setenv("POSTROW_DSN", empty_database)
    return Terminal(tmp_path, empty_database, capsys, wait_for)


def test_the_program_of_the_readme_runs_as_printed(terminal, docs):
    terminal.play(docs.page("README.md"))
    with psycopg.connect(terminal.dsn) as conn:
        assert conn.execute("select outcome, payload->>'email' from postrow.history").fetchall() == [
            ("done", "ada@example.com")
        ]


def test_the_tutorial_goes_as_printed(terminal, docs):
    terminal.play(docs.page("docs/tutorial/first-queue.md"))
    assert len(terminal.ids) == 2  # the dead letter and what it was redriven as


def run_blocks(page, monkeypatch, dsn):
    """The names that the python blocks of a page make, run one after the other as one module."""
    monkeypatch.setenv("POSTROW_DSN", dsn)
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for block in page.blocks("python"):
        exec(compile(block.text, str(page), "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("name", ["docs/reference/api.md", "docs/reference/payloads.md"])
def test_the_python_of_a_reference_page_runs(name, docs, monkeypatch, empty_database):
    run_blocks(docs.page(name), monkeypatch, empty_database)


def test_the_handlers_of_the_how_to_do_what_it_says(docs, monkeypatch, database, wait_for):
    page = run_blocks(docs.page("docs/howto/write-handlers.md"), monkeypatch, database)
    app = page.app
    with psycopg.connect(database) as conn:
        conn.execute("create table booking (amount numeric)")
        conn.execute("create table credit (amount numeric)")
    welcome = page.Welcome(user_id=17, email="ada@example.com")
    signup = app.send(page.signups, welcome)
    paid = app.send(page.payments, {"amount": 5})
    events = [app.send(page.events, {"event_id": "evt_1", "amount": 7}) for _ in range(2)]
    report = app.send(page.reports, {"large": True})
    charges = {
        "done": app.send(page.charges, {"card": "open"}),
        "closed": app.send(page.charges, {"card": "closed"}),
        "busy": app.send(page.charges, {"card": "busy"}),
        "later": app.send(page.charges, {"card": "open", "not_before": "2099-01-01T00:00:00+00:00"}),
    }
    worker = Worker(app, sweep=False)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        with psycopg.connect(database, autocommit=True) as conn:
            unsettled = (
                "select count(*) from postrow.message where queue <> 'receipts' "
                "and (claim_token is not null or available_at <= now())"
            )
            wait_for(lambda: conn.execute(unsettled).fetchone()[0] == 0, what="the handlers")
            finished = "select id, outcome from postrow.history where queue <> 'charges:dead'"
            states = dict(conn.execute(finished).fetchall())
            told = conn.execute("select parent_id from postrow.history where queue = 'charges:dead'").fetchall()
            dead = conn.execute("select id, failures->-1->>'message' from postrow.dead_letter").fetchall()
            waiting = conn.execute(
                "select id, attempt, date_trunc('day', available_at - postrow.clock()) < interval '1 day', "
                "failures->-1->>'message' from postrow.message where queue <> 'receipts' order by available_at"
            ).fetchall()
            booked = {
                table: conn.execute(f"select {column} from {table}").fetchall()
                for table, column in {
                    "booking": "amount",
                    "credit": "amount",
                    "postrow.message where queue = 'receipts'": "payload",
                }.items()
            }
    finally:
        worker.stop()
        thread.join()
        app.close()
    follow_up = uuid5(signup.id, "welcome")
    assert states.keys() == {signup.id, follow_up, paid.id, report.id, charges["done"].id} | {event.id for event in events}
    assert told == [(charges["closed"].id,)]
    assert dead == [(charges["closed"].id, "the card is closed: since May")]
    assert waiting == [(charges["busy"].id, 1, True, "rate limited"), (charges["later"].id, 0, False, None)]
    assert list(booked.values()) == [[(5,)], [(7,)], [({"amount": 5},)]]


def test_a_message_of_the_how_to_has_a_typed_payload(docs, monkeypatch, database):
    page = run_blocks(docs.page("docs/howto/write-handlers.md"), monkeypatch, database)
    with pytest.raises(postrow.PayloadError):
        page.emails.codec.encode({"user_id": 17})
