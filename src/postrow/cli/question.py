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


def typed(question: str, *, instead: str) -> str:
    """What a person types, on stdin, when asked on stderr.

    Raises:
        BadArgumentError: there is nobody to ask; `instead` says what to add to the command.
    """
    if not sys.stdin.isatty():
        raise BadArgumentError(f"{question} There is no terminal to ask on.", hint=instead)
    print(f"{question} ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()
