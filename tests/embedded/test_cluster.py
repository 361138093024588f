import shutil

import pytest

from postrow.embedded import Server
from postrow.embedded.account import server_account
from postrow.embedded.cluster import Cluster
from postrow.errors import EmbeddedServerError

pytestmark = pytest.mark.slow


def test_a_folder_with_other_files_is_refused_and_untouched(place):
    data = place / "data"
    data.mkdir()
    (data / "letter.txt").write_text("dear")
    with pytest.raises(EmbeddedServerError, match="not empty"):
        Server(data).start()
    assert [path.name for path in data.iterdir()] == ["letter.txt"]


def test_an_empty_folder_is_used(place, ask):
    (place / "data").mkdir()
    with Server(place / "data", durable=False) as server:
        assert ask(server.dsn(), "select 1") == [(1,)]


def test_a_folder_is_found_through_a_link(place, ask):
    (place / "real").mkdir()
    (place / "link").symlink_to(place / "real")
    with Server(place / "link", durable=False) as server:
        assert server.data == place / "real"
        assert (place / "link").is_symlink()


def test_a_lost_password_says_where_it_should_be(data, place):
    with Server(data, durable=False):
        pass
    shutil.rmtree(place / "data.postrow")
    with pytest.raises(EmbeddedServerError, match=r"data\.postrow/password is missing"):
        Server(data).start()


def test_a_folder_can_be_moved_with_the_one_beside_it(data, place, ask):
    with Server(data) as server:
        ask(server.dsn(), "create table kept as select 1 as n")
    (data).rename(place / "moved")
    (place / "data.postrow").rename(place / "moved.postrow")
    with Server(place / "moved") as server:
        assert ask(server.dsn(), "table kept") == [(1,)]


def test_what_an_interrupted_initdb_left_is_no_database(place, ask):
    leftover = place / "data.postrow" / "initdb-abc"
    leftover.mkdir(parents=True)
    (leftover / "PG_VERSION").write_text("18\n")
    with Server(place / "data", durable=False) as server:
        assert ask(server.dsn(), "select 1") == [(1,)]
    assert not leftover.exists()


def test_a_failed_initdb_shows_what_it_said(place):
    programs = place / "bin"
    programs.mkdir()
    for name, code in (
        ("postgres", "echo 'postgres (PostgreSQL) 18.6'"),
        ("initdb", "echo no luck today; exit 3"),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{code}\n")
        (programs / name).chmod(0o755)
    with pytest.raises(EmbeddedServerError, match="no luck today"):
        Server(place / "data", bin_dir=programs).start()
    assert not (place / "data").exists()


def test_the_lock_is_for_one_at_a_time(place):
    cluster = Cluster(place / "data", server_account())
    cluster.prepare()
    refused = pytest.raises(EmbeddedServerError, match="Another process")
    with cluster.lock(), refused, cluster.lock(seconds=0):
        pass
    with cluster.lock(seconds=0):
        pass


def test_a_long_log_is_put_aside(place, monkeypatch):
    monkeypatch.setattr("postrow.embedded.cluster.LOG_LIMIT", 10)
    for _ in range(2):
        with Server(place / "data", durable=False):
            pass
    assert (place / "data.postrow" / "server.log.1").stat().st_size > 10
