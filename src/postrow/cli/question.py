"""A question before something that many rows feel."""

from __future__ import annotations

import sys

from postrow.errors import BadArgumentError


def agreed(question: str) -> bool:
    """Ask on stderr; yes is y or yes.

    Raises:
        BadArgumentError: there is nobody to ask.
    """
    if not sys.stdin.isatty():
        raise BadArgumentError(f"{question} There is no terminal to ask on.", hint="Add --yes to go ahead.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
