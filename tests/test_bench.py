"""The workloads of health run, with small numbers: they find what they look for, and lose nothing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
RUN = Path(__file__).parents[1] / "bench" / "run.py"


def figures(*workloads):
    done = subprocess.run(
        [sys.executable, RUN, "--smoke", *workloads], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^\| (\w+): (.*?) \| ([\d,.]+) \|.*\| (.*?) \|$", done.stdout, re.MULTILINE)
    return {f"{workload}: {what}": (figure, target) for workload, what, figure, target in rows}


def test_workers_of_the_benchmark_handle_each_message_once():
    found = figures("fleet")
    for what in ("messages lost", "messages finished twice", "handlers' runs beyond one a message"):
        assert found[f"fleet: {what}"] == ("0.00", "at most 0: met")


@pytest.mark.parametrize("workloads", [["held", "held_tenants", "held_readers"], ["deep", "overload", "spike", "soak"]])
def test_workloads_of_health_have_figures_with_targets(workloads):
    found = figures(*workloads)
    for workload in workloads:
        targets = [target for what, (_, target) in found.items() if what.startswith(f"{workload}: ") and target]
        assert targets
        assert all(re.fullmatch(r"at (least|most) [\d.]+: (met|\*\*missed\*\*)", target) for target in targets)
