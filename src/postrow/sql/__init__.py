"""The SQL files of this package, cut into statements, with their checksums.

Migrations hold tables and types, are numbered, and never change once released: `checksums.txt` freezes them. Function
files are ordered by their two digits and applied again whenever their checksum differs from the database's.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

SCHEMA_VERSION = (1, 1)
"""Major and minor of the schema that this package holds and needs; `postrow.schema_version()` says it in SQL."""


@dataclass(frozen=True, slots=True)
class SqlFile:
    """One file: its name without the ending, its statements in order, the SHA-256 of its text in hex."""

    name: str
    statements: tuple[str, ...]
    checksum: str

    @property
    def version(self) -> int:
        """The number of a migration: the digits that its name begins with."""
        return int(self.name.split("_", 1)[0])


def _read(folder: str) -> tuple[SqlFile, ...]:
    found = []
    for path in sorted((files(__name__) / folder).iterdir(), key=lambda path: path.name):
        if not path.name.endswith(".sql"):
            continue
        text = path.read_text(encoding="utf-8")
        statements = tuple(part.strip() for part in re.split(r"(?m)^-- next$", text) if part.strip())
        found.append(SqlFile(path.name.removesuffix(".sql"), statements, hashlib.sha256(text.encode()).hexdigest()))
    return tuple(found)


@functools.cache
def migrations() -> tuple[SqlFile, ...]:
    """The migrations, in order of their numbers, which begin at 1 and have no gap."""
    return _read("migrations")


@functools.cache
def functions() -> tuple[SqlFile, ...]:
    """The function files, in the order in which they are applied."""
    return _read("functions")


def checksums() -> str:
    """The text of `checksums.txt` as it should be: each migration, and all functions as one."""
    lines = [f"{file.checksum}  {file.name}" for file in migrations()]
    together = hashlib.sha256("".join(file.checksum for file in functions()).encode()).hexdigest()
    major, minor = SCHEMA_VERSION
    return "\n".join([*lines, f"{together}  functions of {major}.{minor}", ""])
