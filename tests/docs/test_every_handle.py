"""The page of handles runs as printed, as one program."""

import os
import subprocess
import sys

import psycopg
import pytest

pytestmark = pytest.mark.slow


def test_the_python_of_the_page_of_handles_runs_as_printed(docs, tmp_path, empty_database):
    blocks = docs.page("docs/howto/every-handle.md").blocks("python")
    program = tmp_path / "page.py"
    program.write_text("\n".join(block.text for block in blocks), encoding="utf-8")
    command = [sys.executable, "-W", "error", program]
    environment = {**os.environ, "POSTROW_DSN": empty_database}
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "'no name' is not a valid name" in done.stdout
    with psycopg.connect(empty_database) as conn:
        sent = conn.execute("select (payload->>'user_id')::int from postrow.message order by 1").fetchall()
    assert [user for (user,) in sent] == [1, 1, 2, 3, 4, 5, 6, 7, 8]
