"""What a DSN says to us and not to libpq: `pgbouncer=true`, as Prisma and hosting services write it."""

from __future__ import annotations

import re

NAME = "pgbouncer"
_URL = re.compile(r"postgres(?:ql)?://", re.IGNORECASE)
# a setting of the form key=value, where a value may be quoted; blanks around the equals sign are allowed
_SETTING = re.compile(r"(?:^|\s+)(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s\\]|\\.)*)")
_TRUE = frozenset({"true", "t", "yes", "on", "1"})


def read(dsn: str) -> tuple[str, bool]:
    """The DSN as libpq takes it, and whether it says that a pooler in transaction mode is in between.

    Any DSN that libpq cannot read stays one.
    """
    said: list[str] = []
    if _URL.match(dsn):
        place, mark, query = dsn.partition("?")
        left = []
        for setting in query.split("&"):
            name, _, value = setting.partition("=")
            if name == NAME:
                said.append(value)
            else:
                left.append(setting)
        stripped = place + mark + "&".join(left) if left else place
    else:

        def without(found: re.Match[str]) -> str:
            if found[1] != NAME:
                return found[0]
            said.append(found[2].strip("'"))
            return ""

        stripped = _SETTING.sub(without, dsn).strip()
    return (stripped, any(value.lower() in _TRUE for value in said)) if said else (dsn, False)


def plain(dsn: str) -> str:
    """The DSN as libpq takes it."""
    return read(dsn)[0]
