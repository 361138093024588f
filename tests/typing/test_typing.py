"""What mypy says to users' code: each snippet is accepted, but for the lines that name the error they expect."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SNIPPETS = Path(__file__).parent / "snippets"
CONFIG = "[mypy]\nstrict = true\nwarn_unreachable = true\npretty = false\nshow_error_codes = true\n"


def expected():
    """(file, line, error code) of each `# E: code, ...`, and the text of each `# R: type` of a reveal_type."""
    errors, types = set(), {}
    for path in sorted(SNIPPETS.glob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if found := re.search(r"# E: ([\w-]+(?:, [\w-]+)*)", line):
                errors.update((path.name, number, code) for code in found[1].split(", "))
            if found := re.search(r"# R: (.+)$", line):
                types[path.name, number] = found[1]
    return errors, types


def plain(text):
    """A type as the snippets write it, from how mypy or pyright writes it."""
    text = re.sub(r"tuple\[uuid\.UUID, bool, fallback=postrow\.models\.Enqueued\]", "Enqueued", text)
    return re.sub(r"\b(?:postrow\.models|builtins|psycopg\.connection(?:_async)?)\.", "", text)


def test_mypy_accepts_and_refuses_what_the_snippets_say(tmp_path):
    config = tmp_path / "mypy.ini"
    config.write_text(CONFIG, encoding="utf-8")
    root = Path(__file__).parents[2]
    # the project's own cache, so that only what has changed is read anew
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", config),
            *("--cache-dir", root / ".mypy_cache" / "snippets"),
            *sorted(SNIPPETS.glob("*.py")),
        ],
        cwd=root,
        env=os.environ | {"MYPYPATH": str(root / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    errors, types, rest = set(), {}, []
    for line in ended.stdout.splitlines():
        found = re.match(r".*?([\w.]+):(\d+): (error|note): (.*?)(?:  \[([\w-]+)\])?$", line)
        if found is None:
            rest.append(line)
        elif found[3] == "error":
            errors.add((found[1], int(found[2]), found[5]))
        elif revealed := re.match(r'Revealed type is "(.*)"', found[4]):
            types[found[1], int(found[2])] = plain(revealed[1])
    wanted_errors, wanted_types = expected()
    assert errors == wanted_errors, ended.stdout + ended.stderr
    assert types == wanted_types, ended.stdout
    assert wanted_errors
    assert wanted_types


@pytest.mark.slow
def test_pyright_accepts_and_refuses_what_the_snippets_say(tmp_path):
    """The same lines and types; its names of errors are others."""
    root = Path(__file__).parents[2]
    for path in SNIPPETS.glob("*.py"):  # it reads what is below its configuration
        shutil.copy(path, tmp_path)
    config = {"extraPaths": [str(root / "src")], "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--project", tmp_path, "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    errors, types = set(), {}
    for found in json.loads(ended.stdout)["generalDiagnostics"]:
        place = Path(found["file"]).name, found["range"]["start"]["line"] + 1
        if found["severity"] == "error":
            errors.add(place)
        elif revealed := re.search(r'Type of ".*" is "(.*)"', found["message"], re.DOTALL):
            types[place] = plain(revealed[1])
    wanted_errors, wanted_types = expected()
    assert errors == {(name, line) for name, line, _ in wanted_errors}, ended.stdout
    assert types == wanted_types, ended.stdout
