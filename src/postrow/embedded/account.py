"""The system account that the server runs as: Postgres refuses to run as root."""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from postrow.errors import EmbeddedServerError


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this system that root drops to."""

    name: str
    uid: int
    gid: int


def server_account(data: Path | None = None) -> Account | None:
    """The account that the server of the folder `data` runs as; None: the present user.

    As root it is the owner of an existing data folder (Postgres insists on that), else ``postgres``,
    else ``nobody``.

    Raises:
        EmbeddedServerError: we are root, and there is no such user.
    """
    if os.geteuid() != 0:
        return None
    if data is not None and (data / "PG_VERSION").exists():
        found = data.stat()
        if found.st_uid != 0:
            return Account(_name_of(found.st_uid), found.st_uid, found.st_gid)
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedServerError(
        "Postgres refuses to run as root, and this system has no user postgres or nobody to run it as.",
        hint="Start this program as an ordinary user, or make one: useradd --system postgres",
    )


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def can_reach(path: Path, account: Account | None) -> bool:
    """Whether the account may enter every folder above `path` (None: the present user; always true).

    Mode bits only. An access list that grants more is not seen; then we copy, or refuse, needlessly.
    """
    if account is None:
        return True
    above = {
        *path.absolute().parents,
        *path.resolve().parents,
    }  # the way to a link, and the way to its target
    return all(_permits(folder, account, 0o1) for folder in above if folder.exists())


def can_run(program: Path, account: Account | None) -> bool:
    """Whether the account may reach and execute this file."""
    return can_reach(program, account) and (account is None or _permits(program, account, 0o1))


def can_read(path: Path, account: Account | None) -> bool:
    """Whether the account may reach and read this file."""
    return can_reach(path, account) and (account is None or _permits(path, account, 0o4))


def _permits(path: Path, account: Account, bit: int) -> bool:
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == account.uid:
        return bool(mode & (bit << 6))
    if found.st_gid == account.gid:
        return bool(mode & (bit << 3))
    return bool(mode & bit)
