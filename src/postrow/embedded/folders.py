"""The folders that are ours: where data goes by default, for a moment, and what lies beside it."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import platformdirs

from postrow.embedded.account import Account, can_reach, server_account
from postrow.errors import EmbeddedServerError

ROOTS_OWN = Path("/var/lib/postrow/postgres")


def default_data_dir() -> Path:
    """The folder of ``embedded:``: the user's data folder of Postrow, ``postgres`` in it.

    As root it is ``/var/lib/postrow/postgres`` when the account that the server runs as cannot reach the
    first (root's home is closed on most systems).
    """
    usual = Path(platformdirs.user_data_dir("postrow")) / "postgres"
    return usual if can_reach(usual, server_account()) else ROOTS_OWN


def temporary_folder(account: Account | None) -> Path:
    """A new folder for a server that lasts for a moment, where the account can reach it."""
    for place in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):  # noqa: S108 - mkdtemp is safe in them
        if place.is_dir() and can_reach(place / "data", account):
            folder = Path(tempfile.mkdtemp(prefix="postrow-", dir=place))
            if account is not None:
                folder.chmod(0o711)  # the account passes through; it lists and writes nothing here
            return folder
    who = f"the user {account.name}" if account else "this user"
    raise EmbeddedServerError(
        f"There is no folder for temporary files that {who} can reach.",
        hint="Set TMPDIR to one.",
    )


def make_parents(folder: Path, account: Account | None) -> None:
    """Makes the folders above `folder` that are missing; the account can pass through those.

    Raises:
        EmbeddedServerError: they cannot be made, or a folder that is not ours keeps the account out.
    """
    try:
        missing = [parent for parent in folder.parents if not parent.exists()]
        if not folder.parents[len(missing)].is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        for parent in reversed(missing):
            parent.mkdir(exist_ok=True)
            if account is not None:
                parent.chmod(0o755)  # ours, just made: whatever the umask
    except OSError as error:
        raise EmbeddedServerError(
            f"The folder {folder.parent} cannot be made: {error.strerror}.",
            hint="Name a data folder in a place where you may write, such as embedded:/some/folder.",
        ) from error
    if not can_reach(folder, account):
        assert account is not None
        raise EmbeddedServerError(
            f"The user {account.name}, which runs Postgres when you are root, cannot reach {folder}.",
            hint="Name a data folder that it can reach (such as one in /var/lib/postrow),\n"
            "or start this program as an ordinary user.",
        )
