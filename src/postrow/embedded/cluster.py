"""A data folder and what we keep beside it: the password, a lock, the log, the last port."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from postrow.embedded.account import Account
from postrow.embedded.binaries import VARIABLE, candidates, major_of, version_of
from postrow.embedded.folders import make_parents
from postrow.embedded.postmaster import wait_until
from postrow.embedded.spawn import spawn
from postrow.errors import EmbeddedServerError

USER = "postrow"
LOG_LIMIT = 10_000_000  # bytes; a longer log is put aside at the next start, and the one before it is lost


class Cluster:
    """The data folder `data`; our own folder beside it has its name and ``.postrow``.

    `account` is whom the server runs as; what we make in our folder as root is then given to it.
    """

    def __init__(self, data: Path, account: Account | None) -> None:
        self.data = data
        self.account = account
        self.state = data.with_name(f"{data.name}.postrow")
        self.log = self.state / "server.log"
        self._password = self.state / "password"
        self._remembered = self.state / "server.json"

    @property
    def exists(self) -> bool:
        """Whether there is a database in the folder."""
        return (self.data / "PG_VERSION").exists()

    def prepare(self) -> None:
        """Makes our folder, and the missing ones above it."""
        make_parents(self.data, self.account)
        try:
            self.state.mkdir(exist_ok=True, mode=0o700)
            if self.account is not None and self.state.stat().st_uid == 0:
                self.state.chmod(0o711)  # the account passes through; only root writes here
        except OSError as error:
            raise EmbeddedServerError(
                f"The folder {self.state} cannot be made: {error.strerror}.",
                hint="Postrow keeps the password and the log there, beside the data.\n"
                "Name a data folder in a place where you may write, such as embedded:/some/folder.",
            ) from error

    @contextmanager
    def lock(self, *, seconds: float = 60) -> Iterator[None]:
        """Only one process (or thread) looks at, makes or starts the server of this folder at a time."""
        with self._open("lock") as file:

            def taken() -> bool:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                return True

            if not wait_until(taken, seconds=seconds):
                raise EmbeddedServerError(
                    f"Another process has been starting the server of {self.data} for {seconds:.0f} s.",
                    hint=f"See what holds {self.state / 'lock'} (lsof), and the log {self.log}.",
                )
            yield  # closing the file gives the lock back, and so does any end of this process

    def check_major(self, bin_dir: Path) -> None:
        """Refuses programs of another major version than the one that made the folder."""
        made_by = (self.data / "PG_VERSION").read_text().strip()
        version = version_of(bin_dir)
        if major_of(version) == made_by:
            return
        fitting = next((folder for folder in candidates() if major_of(version_of(folder)) == made_by), None)
        folder = fitting or f"the bin folder of a Postgres {made_by}"
        raise EmbeddedServerError(
            f"The data in {self.data} is of Postgres {made_by}, and the programs in {bin_dir} are {version}.",
            hint=f"To go on with it: set {VARIABLE} to {folder}.\n"
            f"To move to {major_of(version)}: start it so, pg_dump, rename the folder, start anew, psql -f.\n"
            "To begin empty: rename or delete the folder.",
        )

    def initialise(self, bin_dir: Path, *, durable: bool) -> None:
        """Makes the database with ``initdb``; its superuser is ``postrow``, with a new password.

        It is made beside and then renamed, so that a folder half made is never taken for a database.

        Raises:
            EmbeddedServerError: the folder holds something else, or ``initdb`` failed.
        """
        if self.data.is_dir() and any(self.data.iterdir()):
            raise EmbeddedServerError(
                f"{self.data} is not empty, and there is no database of Postgres in it.",
                hint="Name a new or an empty folder.",
            )
        for leftover in self.state.glob("initdb-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        self._write(self._password, secrets.token_urlsafe(24))
        in_place = self.data.is_mount()  # it cannot be renamed over
        draft = self.data if in_place else Path(tempfile.mkdtemp(prefix="initdb-", dir=self.state))
        if self.account is not None:
            os.chown(draft, self.account.uid, self.account.gid)
        command: list[str | Path] = [
            bin_dir / "initdb",
            f"--pgdata={draft}",
            f"--username={USER}",
            f"--pwfile={self._password}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--no-locale",  # the same order of text on every machine
            "--no-instructions",
            *(() if durable else ("--no-sync",)),
        ]
        with self.open_log() as log:
            start = log.tell()
            process = spawn(command, account=self.account, output=log)
            try:
                code = process.wait()
            except BaseException:  # Ctrl-C, which it does not get from the terminal
                process.send_signal(signal.SIGINT)  # it removes what it made
                process.wait()
                raise
            if code != 0:
                raise EmbeddedServerError(
                    f"initdb failed for {self.data}:\n{self.log_tail(start)}",
                    hint=f"The whole log: {self.log}",
                )
        if not in_place:
            draft.rename(self.data)

    def password(self) -> str:
        """The stored password of the superuser.

        Raises:
            EmbeddedServerError: there is none, or it is another user's.
        """
        try:
            return self._password.read_text().strip()
        except FileNotFoundError:
            raise EmbeddedServerError(
                f"There is no password for the database in {self.data}: {self._password} is missing.",
                hint=f"If you moved the data, move {self.state.name} with it.\n"
                "A database that Postrow did not make is used through its own DSN (postgresql://…).",
            ) from None
        except PermissionError:
            raise EmbeddedServerError(
                f"The database in {self.data} belongs to another user.",
                hint="Name a folder of your own: embedded:/some/folder",
            ) from None

    def remember(self, *, port: int, bin_dir: Path, version: str) -> None:
        """Stores what a process that joins the server cannot read from Postgres's own files."""
        facts = {"port": port, "bin_dir": str(bin_dir), "version": version}
        self._write(self._remembered, json.dumps(facts))

    def remembered(self) -> dict[str, Any]:
        """The facts of the last start; empty when there was none."""
        try:
            facts = json.loads(self._remembered.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def open_log(self) -> IO[bytes]:
        """The log, to append to, put aside first when it has become long."""
        if self.log.exists() and self.log.stat().st_size > LOG_LIMIT:
            self.log.replace(self.log.with_suffix(".log.1"))
        file = self._open(self.log.name)
        file.seek(0, os.SEEK_END)
        return file

    def log_tail(self, start: int, *, lines: int = 20) -> str:
        """The last lines that were written to the log after the byte `start`."""
        with self.log.open("rb") as file:
            file.seek(start)
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])

    def _open(self, name: str) -> IO[bytes]:
        # Never through a link: as root we may be in a folder of a lesser user.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = os.fdopen(os.open(self.state / name, flags, 0o600), "ab")
        except PermissionError:
            raise EmbeddedServerError(
                f"{self.state} belongs to another user.",
                hint="Name a folder of your own: embedded:/some/folder",
            ) from None
        self._give(file.fileno())
        return file

    def _write(self, path: Path, text: str) -> None:
        """Replaces a file of ours at once, readable by its owner only."""
        handle, draft = tempfile.mkstemp(prefix=f"{path.name}-", dir=self.state)  # mode 0600
        with os.fdopen(handle, "w") as file:
            file.write(text)
            self._give(file.fileno())
        Path(draft).replace(path)

    def _give(self, handle: int) -> None:
        if self.account is not None:
            os.fchown(handle, self.account.uid, self.account.gid)
