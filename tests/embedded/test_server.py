import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest

from postrow.embedded import Server, serve
from postrow.embedded.cluster import Cluster
from postrow.embedded.launch import free_ports
from postrow.embedded.postmaster import children_of, is_gone, live_postmaster, wait_until
from postrow.errors import BadArgumentError, EmbeddedServerError

pytestmark = pytest.mark.slow


def state_of(server: Server) -> str:
    control = subprocess.run(
        [server.bin_dir / "pg_controldata", server.data],
        capture_output=True, text=True, check=True, env={"LC_ALL": "C"},
    ).stdout  # fmt: skip
    return next(line for line in control.splitlines() if "cluster state" in line).partition(":")[2].strip()


def test_a_server_without_a_folder_leaves_nothing_behind(bin_dir, ask):
    with Server(bin_dir=bin_dir, durable=False) as server:
        data, pid = server.data, server.pid
        assert server.running
        assert (data / "PG_VERSION").read_text().strip() == server.version.split(".")[0]
        assert ask(server.dsn(), "select current_user::text, pg_postmaster_start_time() <= clock_timestamp()") == [
            ("postrow", True)
        ]
    assert not server.running
    assert server.pid is None
    assert is_gone(pid)
    assert not data.parent.exists()


def test_it_works_in_a_folder_with_spaces(place, bin_dir, ask):
    with Server(place / "a folder" / "the data's", bin_dir=bin_dir, durable=False) as server:
        assert ask(server.dsn(), "select current_setting('data_directory')") == [(str(server.data),)]


def test_rows_and_password_survive_a_stop(data, ask):
    with Server(data) as server:
        address = server.dsn().rpartition("@")[0]
        ask(server.dsn(), "create table kept as select 1 as n")
    with Server(data) as server:
        assert server.dsn().rpartition("@")[0] == address
        assert ask(server.dsn(), "table kept") == [(1,)]


def test_the_password_is_readable_by_its_owner_only(data, place):
    with Server(data, durable=False):
        assert (place / "data.postrow" / "password").stat().st_mode & 0o777 == 0o600
        assert (place / "data.postrow" / "server.log").stat().st_mode & 0o777 == 0o600


def test_start_and_stop_may_be_repeated(data):
    server = Server(data, durable=False)
    with pytest.raises(EmbeddedServerError, match="before its first start"):
        server.dsn()
    try:
        pid = server.start().pid
        assert server.start().pid == pid
    finally:
        server.stop()
        server.stop()
    assert not server.running


@pytest.mark.crash
def test_kill_loses_no_committed_row_and_start_recovers_on_the_same_port(bin_dir, ask):
    with Server(bin_dir=bin_dir) as server:
        ask(server.dsn(), "create table kept as select generate_series(1, 1000) as n")
        address, children = server.dsn(), children_of(server.pid)
        with psycopg.connect(address) as busy:
            busy.execute("insert into kept values (0)")  # never committed
            assert children
            server.kill()
            assert not server.running
            assert all(is_gone(pid) for pid in children)
            with pytest.raises(psycopg.OperationalError):
                busy.execute("select 1")
        assert state_of(server) == "in production"
        server.start()
        assert server.dsn() == address
        assert ask(address, "select count(*) from kept") == [(1000,)]


@pytest.mark.crash
def test_kill_ends_a_session_that_computes(data, ask, wait):
    with Server(data) as server:
        address = server.dsn()
        endless = "do $$ begin loop null; end loop; end $$"

        def compute() -> None:
            with pytest.raises(psycopg.OperationalError):
                ask(address, endless)

        thread = threading.Thread(target=compute)
        thread.start()
        wait(lambda: ask(address, f"select 1 from pg_stat_activity where query = '{endless}'"))
        server.kill()
        thread.join(10)
        assert not thread.is_alive()
        server.start()


@pytest.mark.parametrize(
    ("mode", "state"), [("fast", "shut down"), ("smart", "shut down"), ("immediate", "in production")]
)
def test_stop_has_postgres_own_modes(data, mode, state):
    server = Server(data, durable=False).start()
    server.stop(mode=mode)
    assert state_of(server) == state


def test_settings_reach_the_server(data, ask):
    expected = {
        "cluster_name": "it's a name",
        "max_connections": "17",
        "synchronous_commit": "on",
        "fsync": "off",
    }
    with Server(data, settings=dict(list(expected.items())[:3]), durable=False) as server:
        for name, value in expected.items():
            assert ask(server.dsn(), f"show {name}") == [(value,)]
    with Server(data) as server:
        assert ask(server.dsn(), "show fsync") == [("on",)]


def test_settings_of_ours_are_refused():
    with pytest.raises(BadArgumentError, match="listen_addresses, port"):
        Server(settings={"Port": "1", "listen_addresses": "*"})


def test_only_loopback_and_only_with_the_password(data, ask):
    with Server(data, durable=False) as server:
        assert ask(server.dsn(), "show listen_addresses") == [("127.0.0.1",)]
        assert ask(server.dsn(), "show unix_socket_directories") == [("",)]
        stored = ask(server.dsn(), "select left(rolpassword, 13) from pg_authid where rolname = 'postrow'")
        assert stored == [("SCRAM-SHA-256",)]
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(f"postgresql://postrow:wrong@127.0.0.1:{server.port}/postgres")


def test_a_database_name_is_quoted_in_the_dsn(data, ask):
    with Server(data, durable=False) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute('create database "a b/c?d"')
        assert ask(server.dsn("a b/c?d"), "select current_database()::text") == [("a b/c?d",)]


def test_a_port_that_was_asked_for_is_had(data, ask):
    port = next(free_ports())
    with Server(data, port=port, durable=False) as server:
        assert server.port == port
        assert ask(server.dsn(), "select inet_server_port()") == [(port,)]


def test_a_port_in_use_is_named(data):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EmbeddedServerError, match=f"cannot have port {port}"):
            Server(data, port=port, durable=False).start()


def test_a_free_port_that_is_lost_meanwhile_is_replaced(data, monkeypatch, ask):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        lost = taken.getsockname()[1]
        free = next(free_ports())
        monkeypatch.setattr("postrow.embedded.server.free_ports", lambda: iter([lost, free]))
        with Server(data, durable=False) as server:
            assert server.port == free
            assert ask(server.dsn(), "select 1") == [(1,)]


def test_a_failed_start_shows_the_log_and_leaves_no_folder(monkeypatch):
    made: list[Path] = []
    prepare = Cluster.prepare
    monkeypatch.setattr(Cluster, "prepare", lambda self: (made.append(self.data), prepare(self)))
    with pytest.raises(EmbeddedServerError, match='unrecognized configuration parameter "nonsense"'):
        Server(settings={"nonsense": "1"}, durable=False).start()
    assert made
    assert not made[0].parent.exists()


def test_it_does_not_get_the_ctrl_c_of_our_terminal(data):
    with Server(data, durable=False) as server:
        assert os.getsid(server.pid) != os.getsid(0)


def test_it_outlives_the_thread_that_started_it(data, place, ask, wait):
    server = Server(data, durable=False)
    thread = threading.Thread(target=server.start)
    thread.start()
    task = Path(f"/proc/self/task/{thread.native_id}")
    thread.join()
    try:
        wait(lambda: not task.exists())
        with psycopg.connect(server.dsn(), autocommit=True) as connection:  # a stop would end this session
            connection.execute("select pg_sleep(0.2)")
        assert "shutdown request" not in (place / "data.postrow" / "server.log").read_text()
    finally:
        server.stop()


def test_it_works_without_the_death_signal_and_without_proc(data, monkeypatch, ask):
    """As on macOS: `ps` instead of /proc, and no small program between fork and Postgres."""
    monkeypatch.setattr("postrow.embedded.postmaster.PROC", False)
    monkeypatch.setattr(sys, "executable", "")
    with Server(data) as server:
        ask(server.dsn(), "create table kept as select 1 as n")
        joined = serve(data)
        assert joined.pid == server.pid
        joined.stop()
        children = children_of(server.pid)
        assert children
        server.kill()
        assert not any(Path(f"/proc/{pid}/cwd").exists() for pid in children)
        assert not joined.running
        server.start()
        assert ask(server.dsn(), "table kept") == [(1,)]


def test_an_interrupt_while_it_starts_leaves_no_server(data, monkeypatch):
    seen = []

    def interrupted(condition, *, seconds):
        wait_until(condition, seconds=seconds)
        seen.append(live_postmaster(data).pid)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("postrow.embedded.launch.wait_until", interrupted)
    server = Server(data, durable=False)
    with pytest.raises(KeyboardInterrupt):
        server.start()
    assert is_gone(seen[0])
    with server:
        assert server.running


def test_a_folder_that_cannot_be_made_says_why(place):
    (place / "file").write_text("")
    with pytest.raises(EmbeddedServerError, match="Not a directory"):
        Server(place / "file" / "data").start()
