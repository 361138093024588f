import os
import signal
import subprocess
from pathlib import Path

import psycopg
import pytest
from pgbouncer import POOLED

import postrow
from postrow import errors
from postrow.cli.failure import EXIT_CODES
from postrow.cli.program import program

pytestmark = pytest.mark.slow

SECRET = "s3cret"


def test_version_is_said_in_both_ways(run):
    assert run("version").out == run("--version").out == f"postrow {postrow.__version__} (schema 1.1)\n"


def test_every_exit_code_of_an_exception_is_documented_in_the_help(run):
    help_ = run("--help").out
    for cls in vars(errors).values():
        if isinstance(cls, type) and issubclass(cls, errors.PostrowError):
            assert cls.exit_code in EXIT_CODES
    for code, meaning in EXIT_CODES.items():
        assert f"{code:>5}  {meaning}" in help_


def test_every_command_and_option_has_a_help_text(run):
    for command in program.registered_commands:
        assert run(command.name, "--help").code == 0
    for group in program.registered_groups:
        for command in group.typer_instance.registered_commands:
            found = run(group.name, command.name, "--help")
            assert found.code == 0
            assert "Usage: postrow" in found.out


@pytest.mark.parametrize(("command", "grace"), [("worker", "30s"), ("dev", "5s")])
def test_the_help_says_what_grace_a_command_gives(run, command, grace):
    help_ = " ".join(run(command, "--help").out.split())
    assert f"after SIGTERM. [default: ({grace})]" in help_


def test_a_command_without_words_shows_its_help(run):
    for words in ((), ("dead",), ("consumer",)):
        found = run(*words)
        assert found.code == 2
        assert "Usage: postrow" in found.out + found.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nosuch"], "postrow: no such command 'nosuch'."),
        (["statsu"], "Did you mean 'status'?"),
        (["status", "--nosuch"], "postrow: no such option: --nosuch"),
        (["enqueue", "q", "1", "--delay", "5x"], "'5x' is no duration"),
        (["enqueue", "q", "1", "--priority", "70000"], "--priority"),
        (["show", "0192"], "'0192' is no message id"),
        (["show"], "missing argument 'ID'"),
    ],
)
def test_bad_usage_is_one_line_and_where_to_read_on(run, words, said):
    found = run(*words)
    assert found.code == 2
    assert not found.out
    first, second = found.err.splitlines()
    assert first.startswith("postrow: ")
    assert said in first
    assert second.startswith("         See: postrow")


def test_without_a_dsn_the_error_says_how_to_give_one(run, monkeypatch):
    monkeypatch.delenv("POSTROW_DSN")
    found = run("status")
    assert found.code == 2
    assert found.err.startswith("postrow: no database is given\n         Set POSTROW_DSN")


@pytest.mark.parametrize(
    ("dsn", "code", "said"),
    [
        (f"postgresql://u:{SECRET}@127.0.0.1:1/x", 4, "cannot reach the database at 127.0.0.1:1: Connection refused"),
        (
            f"postgresql://u:{SECRET}@no-such-host.invalid/x",
            4,
            "cannot reach the database at no-such-host.invalid:5432",
        ),
        (f"host=127.0.0.1 port=1 password={SECRET}", 4, "cannot reach the database at 127.0.0.1:1"),
        (f"postgresql://u:p@{SECRET}@127.0.0.1:1/x", 2, "to have a / or an @ in it"),
        (f"postgresql://u:{SECRET}/x@127.0.0.1:1/x", 2, "to have a / or an @ in it"),
        (f"postgresql://u:{SECRET}@127.0.0.1:1/x?{SECRET}=1", 2, "the DSN cannot be read"),
        (f"postgresql://u:{SECRET}@[::1/x", 2, "the DSN cannot be read"),
        (f"password=a {SECRET}=b", 2, "the DSN cannot be read"),
        (f"mysql://u:{SECRET}@127.0.0.1/x", 2, "begins with mysql://"),
        (SECRET, 2, "the DSN cannot be read"),
    ],
)
def test_a_dsn_that_leads_nowhere_is_one_clear_line_without_the_password(run, dsn, code, said):
    for command in (["status"], ["migrate"], ["migrate", "--check"], ["enqueue", "q", "1"], ["sweep"]):
        found = run(*command, dsn=dsn)
        assert found.code == code
        assert said in found.err
        assert found.err.startswith("postrow: ")
        assert code != 4 or "\n         Check that the server runs and that the DSN is right" in found.err
        assert SECRET not in found.err


def test_a_wrong_password_is_said_without_the_password(run, committed):
    dsn = psycopg.conninfo.make_conninfo(committed, password=SECRET)
    found = run("status", dsn=dsn)
    assert found.code == 4
    assert f"{'SASL' if POOLED else 'password'} authentication failed" in found.err  # PgBouncer's words, Postgres's
    assert SECRET not in found.err


def test_a_database_without_a_schema_says_what_to_run(run, empty_database):
    for command in (["status"], ["enqueue", "q", "1"], ["dead", "list"], ["sweep"], ["consumer", "list"]):
        found = run(*command, dsn=empty_database)
        assert found.code == 4
        assert found.err == "postrow: this database has no Postrow schema\n         Run: postrow migrate\n"


def test_a_role_without_the_privilege_is_told_which_role_has_it(run, committed, db):
    role = f"cli_{os.getpid()}"
    db.conn.execute(f"create role {role} login password 'x'")
    try:
        found = run("status", dsn=psycopg.conninfo.make_conninfo(committed, user=role, password="x"))
    finally:
        db.conn.execute(f"drop role {role}")
    assert found.code == 4
    assert "permission denied" in found.err
    assert "postrow_reader" in found.err


def test_a_traceback_is_shown_only_on_request(run, process, monkeypatch):
    dsn = "postgresql://127.0.0.1:1/x"
    assert "Traceback" not in run("status", dsn=dsn).err
    for words in (["status", "--traceback"], ["--traceback", "status"]):
        with pytest.raises(errors.DatabaseUnreachableError):
            run(*words, dsn=dsn)
    assert "\nTraceback" in (shown := process("status", dsn=dsn, env={"POSTROW_DEBUG": "1"}).err)
    assert "DatabaseUnreachableError" in shown


def test_the_word_traceback_after_two_dashes_is_a_payload(run):
    assert "--traceback" not in run("enqueue", "q", "--", "--traceback").out


def test_a_broken_pipe_is_quiet(start, db):
    db.rows("select count(*) from postrow.enqueue_many('emails', (select jsonb_agg('{\"payload\": \"%s\"}'::jsonb)"
            " from generate_series(1, 1000)))" % ("x" * 90))  # fmt: skip
    peek = start("peek", "emails", "--limit", "1000")
    head = subprocess.run(["head", "-1"], stdin=peek.stdout, capture_output=True, text=True, check=True)
    peek.stdout.close()
    assert peek.wait(20) == 141
    assert head.stdout.startswith("id ")
    assert peek.stderr.read() == ""


def test_ctrl_c_ends_with_130_and_no_traceback(start):
    watching = start("status", "--watch", "--json")
    assert watching.stdout.readline() == "[]\n"
    watching.send_signal(signal.SIGINT)
    assert watching.wait(20) == 130
    assert watching.stderr.read() == ""


def test_a_full_disk_is_one_line(start):
    with Path("/dev/full").open("w") as full:
        found = start("version", stdout=full)
        assert found.wait(20) == 2
    assert found.stderr.read().startswith("postrow: ")


def test_a_terminal_of_another_encoding_gets_escapes(process, db):
    db.enqueue()
    found = process("status", env={"PYTHONIOENCODING": "ascii"})
    assert found.code == 0
    assert r"\u2190 nobody consumes this queue" in found.out


def test_the_installed_command_is_this_program():
    from importlib.metadata import entry_points

    (entry,) = entry_points(group="console_scripts", name="postrow")
    assert entry.load() is postrow.cli.main


def test_an_embedded_dsn_works_everywhere(process, reachable):
    dsn = f"embedded:{reachable / 'data'}"
    assert process("migrate", dsn=dsn).code == 0
    assert process("enqueue", "emails", '{"n": 1}', "--dsn", dsn, dsn=None).code == 0
