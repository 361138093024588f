"""The commands through PgBouncer in transaction mode, with a DSN that says so."""

import json
import re
import signal
import textwrap
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from pgbouncer import POOLED

from postrow import migrate

pytestmark = pytest.mark.skipif(POOLED, reason="it starts poolers of its own")


@pytest.fixture
def pooled(bouncer, committed):
    return f"{bouncer(committed).dsn()}?pgbouncer=true"


def test_each_command_takes_the_dsn(run, pooled, db):
    for words in (
        ("enqueue", "emails", '{"to": "ada"}'),
        ("status",),
        ("peek", "emails"),
        ("consumer", "list"),
        ("pause", "emails"),
        ("resume", "emails"),
        ("schedule", "list"),
        ("subscription", "list"),
        ("dead", "list"),
        ("sweep",),
        ("migrate", "--check"),
        ("doctor",),
    ):
        ended = run(*words, dsn=pooled)
        assert ended.code == 0, (words, ended.err)
    assert db.value("select count(*) from postrow.message") == 1


def test_a_setting_that_the_pooler_refuses_is_said_with_what_to_do(run, pooled):
    ended = run("status", dsn=f"{pooled}&options=-c%20statement_timeout%3D5s")
    assert ended.code == 4
    assert re.search(r"unsupported startup parameter(: options| in options: statement_timeout)", ended.err)
    assert "alter role" in ended.err


@pytest.mark.slow
def test_a_worker_is_told_by_the_dsn(start, pooled, db, wait_for, tmp_path):
    (tmp_path / "jobs.py").write_text(
        textwrap.dedent("""
            from postrow import App
            app = App()
            @app.queue("emails").consumer()
            def send(message): print("sent", message.payload, flush=True)
        """)
    )
    worker = start("worker", "jobs:app", "--poll-interval", "50ms", "--log-format", "json", dsn=pooled)
    for n in range(10):
        db.enqueue("emails", str(n))
    wait_for(lambda: db.value("select count(*) from postrow.history") == 10)
    worker.send_signal(signal.SIGTERM)
    _, err = worker.communicate(timeout=20)
    assert worker.returncode == 0
    said = [json.loads(line) for line in err.splitlines()]
    (warning,) = [line for line in said if line["level"] == "warning"]
    assert "no taps" in warning["message"]


def test_processes_that_migrate_at_once_through_it_all_succeed(bouncer, empty_database):
    way = f"{bouncer(empty_database).dsn()}?pgbouncer=true"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: migrate.apply(way), range(4)))
    with psycopg.connect(empty_database, autocommit=True) as conn:
        assert migrate.plan(conn).empty
        assert conn.execute("select count(*) from pg_locks where locktype = 'advisory'").fetchone() == (0,)
