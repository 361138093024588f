"""A user's project, run by a pytest of its own: the one of the how-to, and one whose handlers fail."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HOW_TO = Path(__file__).parents[2] / "docs/howto/test-your-application.md"
FENCE = re.compile(r"^```python(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)

CONFTEST = """
import pytest
import jobs
pytest_plugins = ["postrow.testing.fixtures"]

@pytest.fixture
def app(postrow_dsn, monkeypatch):
    monkeypatch.setenv("POSTROW_DSN", postrow_dsn)
    yield jobs.app
    jobs.app.close()
"""

JOBS = """
import postrow
app = postrow.App()
orders = app.queue("orders")

@orders.consumer(name="charge")
async def charge(message):
    price = {"tea": 3}[message.payload["product"]]
"""

TESTS = """
import jobs
from postrow.testing import drain

def test_one(app):
    app.send(jobs.orders, {"product": "milk"})
    drain(app)

def test_two(app):
    app.send(jobs.orders, {"product": "bread"})
    app.send(jobs.orders, {"product": "cake"})
    drain(app)

def test_three(app):
    app.send(jobs.orders, {"product": "tea"})
    assert drain(app).done == 1
"""


def run_pytest(folder, *arguments, dsn=None):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("POSTROW_", "PYTEST_"))}
    if dsn is not None:
        environment["POSTROW_TEST_DSN"] = dsn
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:asyncio",
        "-W",
        "error",
        *arguments,
        ".",
    ]
    return subprocess.run(
        command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")


def blocks():
    """The python blocks of the how-to, by the file's name; the one without a name is the unittest."""
    return {name or "test_unittest.py": text for name, text in FENCE.findall(HOW_TO.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("place", ["its own servers, on two processes", "a server that is given"])
def test_the_project_of_the_how_to_passes_its_tests(tmp_path, server, place):
    for name, text in blocks().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    if place == "a server that is given":
        done = run_pytest(tmp_path, "-p", "no:xdist", dsn=server.dsn())
    else:
        done = run_pytest(tmp_path, "-n", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


def test_a_failing_handler_fails_the_test_with_its_own_error_and_the_message(tmp_path, server):
    write(tmp_path, conftest=CONFTEST, jobs=JOBS, test_jobs=TESTS)
    done = run_pytest(tmp_path, "-p", "no:randomly", "-p", "no:xdist", dsn=server.dsn())
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 1 passed" in done.stdout
    one, two = re.split(r"^_+ test_two _+$", done.stdout, flags=re.MULTILINE)
    # from the test's line to the handler's, and nothing of ours or asyncio's between them
    places = re.findall(r"^(\S+\.py):\d+: ?(\w*)", one, re.MULTILINE)
    assert places == [("test_jobs.py", ""), ("jobs.py", "KeyError")], one
    assert re.search(r"""^> +price = {"tea": 3}\[message.payload\["product"\]\]""", one, re.MULTILINE)
    assert re.search(r"^E +KeyError: 'milk'", one, re.MULTILINE)
    assert re.search(r"E\s+postrow: message [0-9a-f-]{36} of queue orders \(tenant default\), attempt 1: failed; ", one)
    assert "payload {'product': 'milk'}" in one
    assert "ExceptionGroup: 2 messages failed" in two
    assert "KeyError: 'bread'" in two
    assert "KeyError: 'cake'" in two


def test_nothing_but_the_fixtures_needs_pytest():
    program = (
        "import sys; sys.modules['pytest'] = sys.modules['_pytest'] = None\n"
        "from postrow.testing import clock, drain, enqueued\n"
        "try:\n import postrow.testing.fixtures\nexcept ImportError:\n print('no pytest')"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("no pytest\n", "")
