"""What is published works: the wheel, alone in an empty environment."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from postrow import sql

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.package


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT))  # the sdist, and the wheel from that
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """The folder of programs of a new virtual environment in which only the wheel was installed."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    run(str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", f"{wheel}[embedded]")
    return folder / "bin"


def test_the_wheel_holds_every_sql_file_and_the_marker_of_types(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    expected = {f"postrow/sql/migrations/{file.name}.sql" for file in sql.migrations()}
    expected |= {f"postrow/sql/functions/{file.name}.sql" for file in sql.functions()}
    assert expected | {"postrow/py.typed"} <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "bench/", "docs/"))]


def test_the_demo_runs_from_the_wheel_alone(environment, tmp_path):
    told = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "POSTROW", "VIRTUAL"))}
    out = run(str(environment / "postrow"), "demo", "--orders", "40", "--seconds", "2", cwd=tmp_path, env=told)
    assert "lost" in out
