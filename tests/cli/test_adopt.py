import io

import psycopg
import pytest

pytestmark = pytest.mark.slow


class Terminal(io.StringIO):
    """Somebody who answers."""

    def isatty(self):
        return True


@pytest.fixture
def copied(database):
    """A database that was copied from another one of the server, with a message in it."""
    with psycopg.connect(database) as conn:
        conn.execute("select postrow.refuse_copy()")
        conn.execute("update postrow.home set database_oid = 1, database_name = 'shop'")
        conn.execute("select postrow.enqueue('emails', '1')")
    return database


def test_it_says_what_would_be_handled_and_asks(run, copied, monkeypatch):
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    ended = run("adopt", dsn=copied)
    assert ended.code == 1
    copy, would = ended.out.splitlines()
    assert copy.endswith(" was copied from database shop of this server.")
    assert would == "A worker would handle its 1 message and 0 schedules here."
    assert ended.err == "Adopt it? [y/N] Nothing was changed.\n"
    assert run("doctor", dsn=copied).code == 1

    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    ended = run("adopt", dsn=copied)
    assert ended.code == 0
    assert ended.out.splitlines()[-1].endswith(" is adopted")
    assert run("doctor", dsn=copied).code == 0


def test_yes_asks_nothing(run, copied):
    ended = run("adopt", "--yes", dsn=copied)
    assert (ended.code, ended.err) == (0, "")
    assert len(ended.out.splitlines()) == 1


def test_without_a_terminal_it_needs_yes(process, copied):
    ended = process("adopt", dsn=copied)
    assert ended.code == 2
    assert "Add --yes to go ahead." in ended.err


def test_a_database_that_is_no_copy_is_adopted_without_a_question(run, database):
    assert run("adopt", dsn=database).out.endswith(" is adopted\n")
    assert run("adopt", dsn=database).out.endswith(" is adopted, as before\n")


def test_a_worker_refuses_a_copy_and_says_what_to_do(process, copied, tmp_path):
    (tmp_path / "jobs.py").write_text(
        "import postrow\napp = postrow.App()\n\n@app.queue('emails').consumer()\ndef send(message): print('sent')\n"
    )
    ended = process("worker", "jobs:app", dsn=copied)
    assert ended.code == 4
    assert ended.out == ""
    assert "has the messages of database shop of this server, and a worker would handle them again\n" in ended.err
    assert ended.err.endswith("run: postrow adopt\n")
