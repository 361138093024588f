import json
import signal
import subprocess
from uuid import UUID

import pytest

ID = "0192f3a1-0000-7000-8000-000000000001"


def test_one_message_is_enqueued_with_its_options_and_its_id_is_printed(run, db):
    found = run(
        "enqueue", "emails", '{"user_id": 17}', "--tenant", "acme", "--priority", "5", "--delay", "5 min", "--subject",
        "order:17", "--max-attempts", "3", "--target", "w1", "--expires-at", "2090-01-01T00:00:00Z", "--id", ID,
    )  # fmt: skip
    assert (found.code, found.out, found.err) == (0, f"{ID}\n", "")
    assert db.rows(
        "select id::text, tenant, queue, priority, payload, subject, max_attempts, target, "
        "expires_at = '2090-01-01T00:00:00Z', available_at - enqueued_at > '299 s' from postrow.message"
    ) == [(ID, "acme", "emails", 5, {"user_id": 17}, "order:17", 3, "w1", True, True)]


def test_the_same_id_again_adds_nothing_and_says_so(run, db):
    run("enqueue", "emails", "1", "--id", ID)
    again = run("enqueue", "emails", "1", "--id", ID)
    assert (again.code, again.out) == (0, f"{ID}\n")
    assert again.err == "This message was there already: nothing was added.\n"
    other = run("enqueue", "reports", "1", "--id", ID)
    assert other.code == 3
    assert f"id {ID} is a message of queue emails, not reports" in other.err
    assert db.value("select count(*) from postrow.message") == 1


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ("hello", "not JSON"), ("{'a': 1}", "not JSON"), ('{"a": 1', "not JSON"), ("", "not JSON"), ("NaN", "not JSON"),
        (r'{"a": "\u0000"}', "payload.a: a NUL character"), (r'"\ud800"', "lone surrogate"), ("1e999999999", "jsonb"),
    ],
)  # fmt: skip
def test_a_payload_that_cannot_be_stored_is_refused(run, db, payload, said):
    found = run("enqueue", "emails", payload)
    assert found.code == 2
    assert said in found.err
    assert db.value("select count(*) from postrow.message") == 0


def test_every_digit_of_a_number_arrives(run, db):
    run("enqueue", "emails", '{"price": 1.10, "pi": 3.14159265358979323846264338327950288}')
    text = db.value("select payload::text from postrow.message")
    assert json.loads(text, parse_float=str) == {"price": "1.10", "pi": "3.14159265358979323846264338327950288"}


def test_a_bad_name_and_a_bad_option_are_refused(run):
    assert "queue 'bad name' is not a valid name" in run("enqueue", "bad name", "1").err
    assert run("enqueue", "q", "1", "--expires-at", "2090-01-01").code == 2
    assert run("enqueue", "q", "1", "--delay", "2000000 d").code == 2


@pytest.mark.parametrize("words", [["q"], ["q", "1", "--file", "f"], ["q", "--file", "f", "--id", ID]])
def test_a_payload_comes_from_one_place(run, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_text("1\n")
    assert run("enqueue", *words).code == 2


def test_a_file_of_json_lines_is_a_message_a_line_in_order(run, db, tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_bytes('\ufeff{"n": 1}\r\n\n   \n{"n": 2}\n"grüße"'.encode())
    found = run("enqueue", "emails", "--file", str(file), "--tenant", "acme", "--priority", "3")
    assert (found.code, found.err) == (0, "")
    assert found.out == "3 messages enqueued into emails in 1 transaction\n"
    assert db.rows("select payload, tenant, priority from postrow.message order by id") == [
        ({"n": 1}, "acme", 3), ({"n": 2}, "acme", 3), ("grüße", "acme", 3)
    ]  # fmt: skip


def test_lines_on_stdin_are_a_transaction_a_batch(process, db):
    found = process("enqueue", "emails", "-", "--batch", "100", given="".join(f"{n}\n" for n in range(250)))
    assert (found.code, found.err) == (0, "")
    assert found.out == "250 messages enqueued into emails in 3 transactions\n"
    assert db.rows("select payload::int from postrow.message order by id") == [(n,) for n in range(250)]
    assert db.rows("select count(*) from postrow.message group by xmin::text order by 1") == [(50,), (100,), (100,)]


def test_nothing_on_stdin_is_no_message(process, db):
    assert process("enqueue", "emails", "-", given="").out == "0 messages enqueued into emails in 0 transactions\n"


def test_the_first_bad_line_stops_it_and_says_what_is_enqueued(run, db, tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_text("".join(f"{n}\n" for n in range(1, 26)) + "{oops\n" + "99\n" * 10)
    found = run("enqueue", "emails", "--file", str(file), "--batch", "10")
    assert found.code == 2
    first, *hint = found.err.splitlines()
    assert first.startswith("postrow: line 26 cannot be a payload: not JSON")
    assert first.endswith("It is: {oops")
    assert hint == [
        "         Lines 1 to 20 are enqueued (20 messages), and nothing after them.",
        f"         When it is mended, with the same options: tail -n +21 {file} | postrow enqueue emails -",
    ]
    assert db.rows("select payload::int from postrow.message order by id") == [(n,) for n in range(1, 21)]


def test_what_the_hint_says_goes_on_where_it_stopped(run, process, db, tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_text("1\n\n2\n3\n{oops\n5\n")
    run("enqueue", "emails", "--file", str(file), "--batch", "2")
    file.write_text("1\n\n2\n3\n4\n5\n")
    tail = subprocess.run(["tail", "-n", "+4", str(file)], capture_output=True, text=True, check=True)
    assert process("enqueue", "emails", "-", given=tail.stdout).code == 0
    assert db.rows("select payload::int from postrow.message order by id") == [(n,) for n in range(1, 6)]


def test_a_document_of_many_lines_is_explained(run, tmp_path):
    file = tmp_path / "order.json"
    file.write_text('{\n  "n": 1\n}\n')
    found = run("enqueue", "emails", "--file", str(file))
    assert found.code == 2
    assert "line 1 cannot be a payload" in found.err
    assert "Nothing is enqueued." in found.err
    assert f'postrow enqueue emails "$(cat {file})"' in found.err


@pytest.mark.parametrize("line", [b"\xff\xfe", b'"\\u0000"', b"NaN", b"1 2"])
def test_a_line_that_cannot_be_stored_is_a_bad_line(run, db, tmp_path, line):
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"1\n" + line + b"\n")
    found = run("enqueue", "emails", "--file", str(file))
    assert found.code == 2
    assert found.err.startswith("postrow: line 2 cannot be a payload: ")
    assert db.value("select count(*) from postrow.message") == 0


def test_a_file_that_is_not_there_is_one_line(run, tmp_path):
    found = run("enqueue", "emails", "--file", str(tmp_path / "nosuch"))
    assert (found.code, found.err) == (2, f"postrow: {tmp_path}/nosuch: No such file or directory\n")


@pytest.mark.session("the session that it ends is one of others, too")
def test_a_lost_connection_says_which_lines_are_in_doubt(start, db, feed, wait_for):
    loading = start("enqueue", "emails", "-", "--batch", "2", stdin=subprocess.PIPE)
    feed(loading, "1\n2\n")
    wait_for(lambda: db.value("select count(*) from postrow.message") == 2, what="the first batch")
    feed(loading, "3\n")  # it reads on: it has heard of its commit
    db.rows("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'postrow enqueue'")
    _, err = loading.communicate("4\n", timeout=20)
    assert loading.returncode == 4
    assert "lost the connection to the database" in err
    assert "Lines 1 to 2 are enqueued (2 messages)." in err
    assert "Lines 3 to 4 are enqueued all together or not at all" in err
    assert db.value("select count(*) from postrow.message") == 2


def test_ctrl_c_says_how_far_it_came(start, db, feed, wait_for):
    loading = start("enqueue", "emails", "-", "--batch", "2", stdin=subprocess.PIPE)
    feed(loading, "1\n2\n")
    wait_for(lambda: db.value("select count(*) from postrow.message") == 2, what="the first batch")
    feed(loading, "3\n")  # it reads on: it has heard of its commit
    loading.send_signal(signal.SIGINT)
    assert loading.wait(20) == 130
    err = loading.stderr.read()
    assert "Lines 1 to 2 are enqueued (2 messages), and nothing after them." in err
    assert "Traceback" not in err


def test_no_progress_bar_goes_into_a_pipe(process, db):
    found = process("enqueue", "emails", "-", "--batch", "10", given="1\n" * 100)
    assert found.err == ""


def test_the_message_names_the_command_that_enqueued_it(run, db):
    assert UUID(run("enqueue", "emails", "1").out.strip())
    assert db.value("select enqueued_by from postrow.message").endswith("@postrow enqueue")


def test_any_text_is_enqueued_and_shown_whatever_encoding_the_environment_asks_for(run, db, monkeypatch):
    monkeypatch.setenv("PGCLIENTENCODING", "latin1")
    assert run("enqueue", "emails", '"→"').code == 0
    assert db.value("select payload from postrow.message") == "→"
    assert "→" in run("peek", "emails").out
