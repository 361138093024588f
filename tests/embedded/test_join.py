import os
import signal
import subprocess
import threading
from pathlib import Path

import psycopg
import pytest

from postrow.embedded import Server, resolve, serve
from postrow.embedded.account import server_account
from postrow.embedded.postmaster import children_of, is_gone
from postrow.errors import EmbeddedServerError

pytestmark = pytest.mark.slow

SERVE = """
import sys
from pathlib import Path
from postrow.embedded import serve
server = serve(Path(sys.argv[1]), durable=False)
print(server.pid, server.dsn(), flush=True)
sys.stdin.read()
server.stop()
"""


def test_serve_joins_a_server_of_another_process_and_leaves_it_running(data, program, ask):
    owner = program(SERVE, data)
    pid, dsn = owner.line().split()
    joined = serve(data)
    assert (joined.pid, joined.dsn()) == (int(pid), dsn)
    assert joined.running
    with pytest.raises(EmbeddedServerError, match="started elsewhere"):
        joined.kill()
    joined.stop()
    assert ask(dsn, "select 1") == [(1,)]
    assert owner.end() == 0
    assert is_gone(int(pid))


def test_a_joined_server_knows_version_and_programs(data):
    with Server(data, durable=False) as server:
        joined = serve(data)
        assert (joined.version, joined.bin_dir, joined.port) == (server.version, server.bin_dir, server.port)


def test_a_joined_server_can_be_started_when_its_owner_is_gone(data, program, ask):
    owner = program(SERVE, data)
    _, dsn = owner.line().split()
    ask(dsn, "create table kept as select 1 as n")
    joined = serve(data)
    owner.end()
    assert not joined.running
    with joined:
        assert joined.dsn() == dsn  # on the port that it had
        assert ask(dsn, "table kept") == [(1,)]
    assert not joined.running


def test_a_plain_server_refuses_a_folder_in_use(data):
    with Server(data, durable=False) as server:
        with pytest.raises(EmbeddedServerError, match=f"process {server.pid}, port {server.port}"):
            Server(data).start()
        assert server.running


def test_programs_that_start_at_the_same_time_share_one_server(place, program):
    programs = [program(SERVE, place / "data") for _ in range(4)]
    answers = {one.line() for one in programs}
    assert len(answers) == 1
    log = (place / "data.postrow" / "server.log").read_text()
    assert log.count("database system is ready") == 1
    assert not list((place / "data.postrow").glob("initdb-*"))


@pytest.mark.crash
def test_serve_waits_for_a_server_that_is_stopping(data, program, ask, wait):
    owner = program(SERVE, data)
    pid, dsn = owner.line().split()
    # A child that cannot run keeps the server in its shutdown for as long as we like.
    checkpointer = ask(dsn, "select pid from pg_stat_activity where backend_type = 'checkpointer'")[0][0]
    os.kill(checkpointer, signal.SIGSTOP)
    os.kill(int(pid), signal.SIGINT)
    wait(lambda: "stopping" in (data / "postmaster.pid").read_text())
    second = program(SERVE, data)
    wait(lambda: _has_lock(second.process.pid))
    os.kill(checkpointer, signal.SIGCONT)
    successor, _ = second.line().split()
    assert successor != pid
    assert is_gone(int(pid))


def _has_lock(pid: int) -> bool:
    """Whether the process has the folder's lock open: nobody else has it, so it waits for the server only."""
    links = Path(f"/proc/{pid}/fd").iterdir()
    return any(link.resolve().parts[-2:] == ("data.postrow", "lock") for link in links)


def test_a_pid_file_whose_number_a_stranger_has_is_stale(data, ask):
    server = Server(data)
    with server:
        ask(server.dsn(), "create table kept as select 1 as n")
        server.kill()
        account = server_account(server.data)
        as_user = {"user": account.uid, "group": account.gid, "extra_groups": []} if account else {}
        with subprocess.Popen(["sleep", "600"], cwd="/", **as_user) as stranger:
            try:
                file = server.data / "postmaster.pid"
                lines = file.read_text().splitlines()
                file.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
                server.start()
                assert ask(server.dsn(), "table kept") == [(1,)]
            finally:
                stranger.kill()


@pytest.mark.crash
def test_orphans_of_a_dead_server_are_waited_for(data, place, ask, wait):
    with Server(data) as server:
        pid = server.pid
        with psycopg.connect(server.dsn()) as connection:
            backend = connection.info.backend_pid
            assert backend in children_of(pid)
            os.kill(backend, signal.SIGSTOP)  # alive, and unable to notice the death of the server
            os.kill(pid, signal.SIGKILL)
            wait(lambda: not server.running)
            refused = "pre-existing shared memory block"
            log = place / "data.postrow" / "server.log"
            starter = threading.Thread(target=server.start)
            starter.start()
            wait(lambda: refused in log.read_text())
            os.kill(backend, signal.SIGCONT)
            starter.join(30)
        assert ask(server.dsn(), "select 1") == [(1,)]


def test_resolve_makes_the_database_and_joins_the_second_time(place, ask):
    dsn, server = resolve(f"embedded:{place / 'some folder'}")
    with server:
        assert server.data == place / "some folder"
        assert ask(dsn, "select current_database()::text") == [("postrow",)]
        again, joined = resolve(f"embedded://{place / 'some folder'}")
        assert again == dsn
        assert joined is not server
        joined.stop()
        assert server.running
    assert not server.running


def test_resolve_without_a_folder_uses_the_default_one(place, monkeypatch):
    monkeypatch.setattr("postrow.embedded.server.default_data_dir", lambda: place / "default")
    _, server = resolve("embedded:")
    with server:
        assert server.data == place / "default"


@pytest.mark.parametrize("dsn", ["postgresql://host/db", "host=localhost dbname=x", ""])
def test_resolve_gives_other_dsns_back(dsn):
    assert resolve(dsn) == (dsn, None)
