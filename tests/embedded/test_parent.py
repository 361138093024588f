"""What becomes of the server when the program that started it ends, in whatever way."""

import os
import signal
import sys
from pathlib import Path

import pytest

from postrow.embedded import Server
from postrow.embedded.postmaster import is_gone

START = """
import sys
from pathlib import Path
from postrow.embedded import Server
server = Server(Path(sys.argv[1])).start()
print(server.pid, server.dsn(), flush=True)
"""
pytestmark = pytest.mark.crash
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a death signal")


@linux
@pytest.mark.parametrize("thread", [False, True], ids=["first thread", "other thread"])
def test_a_parent_killed_by_sigkill_leaves_a_clean_shutdown_and_all_rows(data, place, program, ask, wait, thread):
    code = START + "sys.stdin.read()"
    if thread:
        code = code.replace(
            ".start()",
            "\nimport threading\nother = threading.Thread(target=server.start)\nother.start()\nother.join()",
        )
    parent = program(code, data)
    pid, dsn = parent.line().split()
    ask(dsn, "create table kept as select 1 as n")
    os.kill(parent.process.pid, signal.SIGKILL)
    wait(lambda: is_gone(int(pid)))
    log = (place / "data.postrow" / "server.log").read_text()
    assert "received fast shutdown request" in log
    assert log.rstrip().endswith("database system is shut down")
    with Server(data) as server:
        assert ask(server.dsn(), "table kept") == [(1,)]
    assert "automatic recovery" not in (place / "data.postrow" / "server.log").read_text()


def test_a_parent_that_ends_without_stop_stops_it(program, wait):
    parent = program(START.replace("Path(sys.argv[1])", "") + "print(server.data, flush=True)")
    pid, _ = parent.line().split()
    data = parent.line()
    assert parent.end() == 0
    assert is_gone(int(pid))
    assert not Path(data).exists()


def test_a_forked_child_sees_the_server_and_does_not_stop_it(data, program):
    parent = program(
        START
        + """
import os
child = os.fork()
if child == 0:
    ok = server.running and server.start() is server
    server.stop()
    sys.exit(0 if ok and server.running else 1)   # runs the exit handlers of the child
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(code, server.running, flush=True)
server.stop()
print(server.running, flush=True)
""",
        data,
    )
    parent.line()
    assert parent.line() == "0 True"
    assert parent.line() == "False"
    assert parent.end() == 0
