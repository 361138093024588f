"""What a DSN says to us and not to libpq: `pgbouncer=true`, as Prisma and hosting services write it."""

from __future__ import annotations

import re

from postrow.errors import BadArgumentError

NAME = "pgbouncer"
_URL = re.compile(r"postgres(?:ql)?://", re.IGNORECASE)
# a setting of the form key=value, where a value may be quoted; blanks around the equals sign are allowed
_SETTING = re.compile(r"(?:^|\s+)(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s\\]|\\.)*)")
_WORDS = {
    **dict.fromkeys(("true", "t", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "off", "0"), False),
}


def read(dsn: str) -> tuple[str, bool]:
    """The DSN as libpq takes it, and whether it says that a pooler in transaction mode is in between.

    Any DSN that libpq cannot read stays one.

    Raises:
        BadArgumentError: `pgbouncer` is neither true nor false.
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
    words = [_truth(value) for value in said]
    return (stripped, any(words)) if said else (dsn, False)


def plain(dsn: str) -> str:
    """The DSN as libpq takes it.

    Raises:
        BadArgumentError: as for `read`.
    """
    return read(dsn)[0]


def _truth(value: str) -> bool:
    found = _WORDS.get(value.lower())
    if found is None:
        raise BadArgumentError(
            f"pgbouncer={value} in the DSN is neither true nor false",
            hint="Write pgbouncer=true if a pooler in transaction mode is in between, else leave it out.",
        )
    return found
