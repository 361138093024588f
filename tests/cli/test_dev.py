import os
import signal
import sys
from pathlib import Path

import psycopg
import pytest

from postrow import embedded
from postrow.cli import dev as dev_module

pytestmark = pytest.mark.slow

JOBS = """
import postrow
app = postrow.App()

@app.queue("emails").consumer(name="version_{n}")
async def handle(message):
    pass
"""


@pytest.fixture
def jobs(tmp_path):
    file = tmp_path / "jobs.py"
    file.write_text(JOBS.format(n=1))
    return file


def _lines_until(process, text):
    seen = []
    for line in process.stderr:
        seen.append(line)
        if text in line:
            return "".join(seen)
    pytest.fail(f"it ended without {text!r}: {''.join(seen)}")


def _rewrite(file, text):
    """In one step, as editors do: a file that was cut short and not written yet would be a change of its own."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _workers(pid):
    return [child for child in _children(pid) if b"worker" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_dev_starts_a_server_migrates_works_and_restarts_on_a_change(jobs, start, reachable, wait_for):
    data = reachable / "data"
    dev = start("dev", "jobs:app", "--data", str(data), dsn=None)
    seen = _lines_until(dev, "queue emails -> version_1")
    assert f"a private server: --dsn embedded:{data}" in seen
    assert "the schema is now 1.1" in seen

    dsn, _server = embedded.resolve(f"embedded:{data}")  # joined
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select * from postrow.enqueue('emails', '1')")
        wait_for(lambda: conn.execute("select count(*) from postrow.history").fetchone() == (1,))
        conn.execute("select postrow.unregister_consumer('emails')")

    _rewrite(jobs, "x = = 1")
    seen = _lines_until(dev, "It starts again when a .py file changes.")
    assert "jobs.py has changed" in seen
    assert "SyntaxError" in seen
    _rewrite(jobs, JOBS.format(n=2))
    _lines_until(dev, "queue emails -> version_2")

    (worker,) = _workers(dev.pid)
    dev.send_signal(signal.SIGTERM)
    assert dev.wait(30) == 0
    assert not _alive(worker)


def test_dev_watches_before_its_worker_reads_the_code(monkeypatch):
    """Or a change that comes meanwhile would be missed."""
    steps = []

    def changes(_stop):
        steps.append("watches")
        yield ""

    monkeypatch.setattr(dev_module, "_changes", changes)
    monkeypatch.setattr(dev_module._Supervisor, "_start_child", lambda self: steps.append("worker starts"))
    assert dev_module._Supervisor([], "", 0.0).run() == 0
    assert steps == ["watches", "worker starts"]


def test_dev_works_on_a_given_database_and_ctrl_c_ends_it(jobs, start, empty_database):
    dev = start("dev", "jobs:app", dsn=empty_database)
    seen = _lines_until(dev, "queue emails -> version_1")
    assert "private" not in seen
    dev.send_signal(signal.SIGINT)
    assert dev.wait(30) == 130


def test_dev_does_not_work_on_another_database_than_it_says(jobs, start, empty_database, committed):
    jobs.write_text(jobs.read_text().replace("App()", f"App({committed!r})"))
    dev = start("dev", "jobs:app", dsn=empty_database)
    seen = _lines_until(dev, "postrow worker jobs:app")
    assert "the app jobs:app names a database itself" in seen
    assert "and postrow dev has another one" in seen
    dev.send_signal(signal.SIGINT)
    assert dev.wait(30) == 130


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
def test_a_worker_does_not_outlive_a_dev_that_is_killed(jobs, start, committed, wait_for):
    dev = start("dev", "jobs:app")
    _lines_until(dev, "queue emails -> version_1")
    (worker,) = _workers(dev.pid)
    os.kill(dev.pid, signal.SIGKILL)
    dev.wait()
    wait_for(lambda: not _alive(worker), what="the worker to end")


def test_dev_without_watchfiles_says_so_in_one_line_and_ends_with_its_worker(jobs, start, tmp_path):
    (tmp_path / "watchfiles.py").write_text("raise ModuleNotFoundError('No module named watchfiles')")
    jobs.write_text("x = = 1")
    dev = start("dev", "jobs:app")
    assert dev.wait(30) == 2
    seen = dev.stderr.read()
    assert "files are not watched; to restart on changes: pip install 'postrow[reload]'" in seen
    assert "SyntaxError" in seen


def test_data_and_a_dsn_exclude_each_other(jobs, run, tmp_path):
    found = run("dev", "jobs:app", "--data", str(tmp_path / "data"))
    assert found.code == 2
    assert "--data is given, and a DSN" in found.err
