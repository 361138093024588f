"""The benchmark beside other queues runs, with Postrow alone: its peers are not installed here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
RUN = Path(__file__).parents[1] / "bench" / "peers" / "run.py"


def test_the_drain_of_the_benchmark_counts_each_message_once():
    done = subprocess.run(
        [sys.executable, RUN, "drain", "--only", "postrow", "--smoke", "--workers", "2"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    row = re.search(r"^\| postrow \|(.*)\|$", done.stdout, re.MULTILINE)[1]
    assert [cell.strip() for cell in row.split("|")][1:] == ["2,000", "0", "0"]
