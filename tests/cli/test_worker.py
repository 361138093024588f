import importlib
import json
import signal
import socket
import sys

import pytest

pytestmark = pytest.mark.slow

JOBS = """
import postrow
app = postrow.App()

@app.queue("emails").consumer()
async def send_welcome(message):
    pass

@app.queue("photo.processing").consumer()
def process(message):
    pass
"""


@pytest.fixture
def jobs(tmp_path):
    """A package shop with jobs.py, in the folder where commands run."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    file = tmp_path / "shop" / "jobs.py"
    file.write_text(JOBS)
    return file


@pytest.fixture
def here(jobs, tmp_path, monkeypatch):
    """That folder as this process's own, with nothing of it imported before or left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    importlib.invalidate_caches()
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def test_a_worker_says_what_it_listens_on_works_and_ends_at_sigterm(jobs, start, db, committed, wait_for):
    db.enqueue("emails")
    worker = start("worker", "shop.jobs:app", "--name", "w1")
    line = worker.stderr.readline()
    assert " info    worker w1 listens on: emails, photo.processing; database 127.0.0.1:" in line
    assert "password" not in line
    wait_for(lambda: db.rows("select outcome, claimed_by from postrow.history") == [("done", "w1")])
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    assert worker.stdout.read() == ""


def test_a_worker_takes_the_dsn_from_the_command_line_and_only_the_queues_named(jobs, start, db, committed, wait_for):
    photo = db.enqueue("photo.processing")
    db.enqueue("emails")
    worker = start(
        "worker", "shop.jobs:app", "--dsn", committed, "--queues", "photo.processing", "--log-format", "json",
        "--transport", "poll", "--poll-interval", "100ms", "--concurrency", "1", "--no-sweep", "--health", "0",
        dsn=None,
    )  # fmt: skip
    assert "listens on: photo.processing; " in json.loads(worker.stderr.readline())["message"]
    wait_for(lambda: db.rows("select id from postrow.history") == [(photo,)])
    worker.send_signal(signal.SIGINT)
    assert worker.wait(30) == 0
    assert db.value("select count(*) from postrow.message where queue = 'emails'") == 1


@pytest.mark.parametrize("queues", ["photo", "photo.processing,,emails", " emails", "", ",", "*"])
def test_a_bad_list_of_queues_does_not_start(here, run, queues):
    found = run("worker", "shop.jobs:app", "--queues", queues)
    assert found.code == 2
    assert found.err.startswith("postrow: --queues ")
    assert "This app consumes: emails, photo.processing." in found.err


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("shop.jobs", "'shop.jobs' is not MODULE:APP"),
        ("shop/jobs.py:app", "is a file, and a module is needed\n         Write shop.jobs:app"),
        ("nosuch:app", "there is no module nosuch\n"),
        ("shop.nosuch:app", "there is no module shop.nosuch\n"),
        ("nosuch.jobs:app", "there is no module nosuch.jobs (nor nosuch)"),
        ("shop.jobs:ap", "module shop.jobs has no ap\n         Write shop.jobs:app"),
        ("shop.jobs:postrow", "is a module, not a postrow.App"),
        ("shop.jobs:postrow.App", "is a type, not a postrow.App"),
        ("shop.empty:app", "the app shop.empty:app has no handlers"),
        ("shop.needs:app", "module shop.needs cannot be imported: ModuleNotFoundError: No module named 'nosuchlib'"),
        ("shop.wrong:app", "module shop.wrong cannot be imported: SyntaxError: "),
        ("shop.broken:app", "module shop.broken cannot be imported: ZeroDivisionError: division by zero at "),
    ],
)
def test_a_target_that_cannot_be_loaded_is_a_clear_error(here, run, target, said):
    for name, code in {
        "empty": "import postrow; app = postrow.App()",
        "needs": "import nosuchlib",
        "wrong": "x = = 1",
        "broken": "def f():\n    return 1 / 0\nf()",
    }.items():
        (here / "shop" / f"{name}.py").write_text(code)
    found = run("worker", target)
    assert found.code == 2
    assert said in found.err
    assert "Traceback" not in found.err


def test_a_module_that_fails_names_the_line(jobs, process):
    jobs.write_text("import postrow\n\nraise ValueError('no \\x1b[31mkey')\n")
    found = process("worker", "shop.jobs:app")
    assert f"{jobs}:3" in found.err
    assert r"ValueError: no \x1b[31mkey" in found.err


def test_without_a_database_the_error_says_how_to_give_one(jobs, process):
    found = process("worker", "shop.jobs:app", dsn=None)
    assert found.code == 2
    assert "postrow: no database is given" in found.err
    assert "POSTROW_DSN" in found.err


def test_an_app_that_names_another_database_refuses_the_dsn(jobs, process, committed):
    jobs.write_text(JOBS.replace("App()", "App('postgresql://own:s3cret@127.0.0.1:1/own')"))
    found = process("worker", "shop.jobs:app", "--dsn", committed)
    assert found.code == 2
    assert "names a database itself (127.0.0.1:1/own), and --dsn is another one" in found.err
    assert "s3cret" not in found.err


def test_a_schema_that_is_missing_says_what_to_run(jobs, process, empty_database):
    found = process("worker", "shop.jobs:app", dsn=empty_database)
    assert found.code == 4
    assert found.err.endswith("         Run: postrow migrate\n")


def test_another_handler_for_the_queue_is_a_conflict(jobs, process, db):
    db.rows("select postrow.register_consumer('emails', 'somebody_else')")
    found = process("worker", "shop.jobs:app")
    assert found.code == 3
    assert "queue emails is consumed by handler somebody_else, not send_welcome" in found.err
    assert "postrow consumer replace emails send_welcome" in found.err


def test_a_health_port_that_is_taken_is_said(jobs, process):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = process("worker", "shop.jobs:app", "--health", str(port))
    assert found.code == 2
    assert f"postrow: cannot serve health pages on 127.0.0.1:{port}: Address already in use" in found.err
