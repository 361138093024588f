import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl

import pytest

from postrow.embedded import Server

pytestmark = pytest.mark.slow


def test_a_database_without_messages_says_so(run):
    found = run("status")
    assert (found.code, found.out) == (0, "")
    assert found.err.startswith("There are no queues yet")


def test_the_table_has_a_line_a_queue_and_tenant(run, db):
    for _ in range(3):
        db.enqueue("emails", tenant="acme")
    db.claim("emails")
    db.enqueue("emails", tenant="acme")
    db.enqueue("emails", tenant="acme", delay="1 hour")
    db.dead("reports")
    db.rows("select postrow.register_consumer('emails', 'send_welcome')")
    # of a known age: how long the test itself takes is no matter
    db.rows(
        "update postrow.message set available_at = postrow.clock() - interval '5 min 30 s' "
        "where claim_token is null and available_at <= postrow.clock() returning id"
    )
    found = run("status")
    assert found.code == 0
    titles, emails, reports = found.out.splitlines()
    assert re.split(r"  +", titles) == [
        "queue", "tenant", "ready", "scheduled", "claimed", "dead", "oldest ready", "consumer"
    ]  # fmt: skip
    assert re.match(
        r"emails +acme +1 +1 +3 +0  5 min +send_welcome, no worker  ← start one: postrow worker MODULE:APP$", emails
    )
    assert re.match(r"reports +default +0 +0 +0 +1  . +none  ← nobody consumes this queue$", reports)


def test_workers_are_counted(run, db):
    db.rows("select postrow.register_consumer('emails', 'send_welcome')")
    for n in (1, 2):
        db.rows("select postrow.beat(gen_random_uuid(), %s, 'h', 1, '{emails}', '0')", f"w{n}")
    assert "send_welcome, 2 workers" in run("status").out


def test_large_numbers_and_old_messages_are_rounded(run, db):
    db.rows("select count(*) from postrow.enqueue_many('reports', "
            "(select jsonb_agg('{\"payload\": 1}'::jsonb) from generate_series(1, 12300)))")  # fmt: skip
    db.conn.execute("update postrow.message set available_at = available_at - interval '3 hours'")
    assert re.search(r"reports +default  12.3 k .* 3 h ", run("status").out)


def test_json_has_whole_numbers_and_seconds(run, db):
    db.enqueue("emails", tenant="acme")
    (queue,) = json.loads(run("status", "--json").out)
    assert queue.pop("oldest_ready") > 0
    assert queue == {
        "queue": "emails", "tenant": "acme", "ready": 1, "scheduled": 0, "claimed": 0, "dead": 0,
        "handler": None, "workers": 0, "paused": False,
    }  # fmt: skip


def test_json_of_an_empty_database_is_an_empty_array(run):
    assert json.loads(run("status", "--json").out) == []


def test_watching_goes_on_and_shows_what_changes(start, db, wait_for):
    watching = start("status", "--watch", "--every", "50ms", "--json")
    assert json.loads(watching.stdout.readline()) == []
    db.enqueue()
    wait_for(lambda: json.loads(watching.stdout.readline()), what="the new message")
    watching.send_signal(signal.SIGINT)
    assert watching.wait(20) == 130


def test_watching_survives_an_outage(start, wait_for):
    with Server(durable=False) as server:
        dsn = server.dsn()
        assert start("migrate", dsn=dsn).wait(30) == 0
        watching = start("status", "--watch", "--every", "50ms", "--json", dsn=dsn)
        assert watching.stdout.readline() == "[]\n"
        server.kill()
        assert "postrow: " in watching.stderr.readline()
        server.start()
        assert watching.stdout.readline() == "[]\n"
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=20)
        assert watching.returncode == 130


class Terminal:
    """A command on a terminal of so many columns; what it writes, bytes as they come."""

    def __init__(self, words, *, dsn, columns, env):
        self.master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "postrow", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "POSTROW_DSN": dsn, "TERM": "xterm-256color", **env},
            start_new_session=True,
        )
        os.close(slave)
        self.seen = b""

    def read_until(self, text, deadline=20.0):
        end = time.monotonic() + deadline
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"waited {deadline} s for {text!r}, saw {self.seen!r}"
            self.seen += os.read(self.master, 65_536)

    def read_to_end(self):
        while True:
            try:
                part = os.read(self.master, 65_536)
            except OSError:  # Linux says EIO when the other side has closed
                break
            if not part:
                break
            self.seen += part
        self.process.wait(20)
        return self.seen.decode()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal(committed):
    opened = []

    def terminal(*words, columns=80, **env):
        opened.append(Terminal(words, dsn=committed, columns=columns, env=env))
        return opened[-1]

    yield terminal
    for each in opened:
        each.close()


def _plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_gets_colours_and_no_line_is_wider_than_it(terminal, db, columns):
    db.enqueue("a.rather.long.queue.name.for.the.monthly-reports", tenant="organisation-4711")
    shown = terminal("status", columns=columns).read_to_end()
    assert "\x1b[" in shown
    for line in _plain(shown).split("\r\n"):
        assert len(line) <= columns
    assert "nobody consumes this queue" in _plain(shown)


def test_a_pipe_and_no_color_get_no_colours(process, terminal, db):
    db.dead(error="\x1b[31mred")
    for words in (["status"], ["dead", "list"], ["peek", "emails"]):
        assert "\x1b" not in process(*words).out
    assert "\x1b[31m" not in terminal("status", NO_COLOR="1").read_to_end()


def test_escapes_in_a_payload_and_an_error_do_not_reach_the_terminal(terminal, db):
    evil = "\x1b]0;title\x07\x1b[2J\x9b31m"
    id_ = db.dead("emails", payload='{"k": "\\u001b]0;title\\u0007"}', error=evil, subject="\x1b[5mblink")
    for words in (["dead", "list"], ["dead", "show", str(id_)], ["show", str(id_)]):
        shown = terminal(*words, columns=120).read_to_end()
        assert r"\x1b]0;title\x07\x1b[2J\x9b31m" in _plain(shown)
        for sequence in ("\x1b]0", "\x1b[2J", "\x9b", "\x07", "\x1b[5m"):
            assert sequence not in shown


def test_rich_markup_in_the_database_is_plain_text(terminal, db):
    db.dead("emails", error="[bold red]alert[/bold red] [link=https://evil.example]x[/link]")
    shown = _plain(terminal("dead", "list", columns=200).read_to_end())
    assert "[bold red]alert[/bold red] [link=https://evil.example]x[/link]" in shown


def test_the_live_view_redraws_and_ctrl_c_leaves_it(terminal, db):
    watching = terminal("status", "--watch", "--every", "50ms", columns=100)
    watching.read_until(b"There are no queues yet")
    db.enqueue("emails")
    watching.read_until(b"emails")
    watching.process.send_signal(signal.SIGINT)
    shown = watching.read_to_end()
    assert watching.process.returncode == 130
    assert "Traceback" not in shown
    assert shown.rstrip().endswith("\x1b[?25h")  # the cursor is back
