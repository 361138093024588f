"""How a command ends: exit codes, and errors in one line with the next step under it."""

from __future__ import annotations

import sys

import typer

from postrow.cli.screen import clean, note
from postrow.errors import PostrowError

EXIT_CODES = {
    0: "fine",
    1: "the answer is no: the schema is behind, a question was declined, a worker gave up",
    2: "usage, or input that cannot be used",
    3: "a conflict, or not found",
    4: "the database: unreachable, its schema, privileges, the embedded server",
    5: "try again: a lock or a rival transaction was in the way",
    130: "stopped by Ctrl-C",
}
EPILOG = "\b\nExit codes:\n" + "\n".join(f"{code:>5}  {meaning}" for code, meaning in EXIT_CODES.items())

INTERRUPTED = 130
BROKEN_PIPE = 141  # what a shell gives for a program that SIGPIPE ended, as `cat` in `cat FILE | head -1`
UNEXPECTED = 70  # EX_SOFTWARE of sysexits.h

UsageError = typer.BadParameter.__mro__[1]  # of the click that typer has inside it, or of click itself
ClickException = typer.BadParameter.__mro__[2]

_INDENT = " " * len("postrow: ")


def report(message: str, hint: str | None = None) -> None:
    """Say an error on stderr: one line, and its hint indented under it."""
    note(f"postrow: {clean(message)}")
    for line in (hint or "").splitlines():
        note(f"{_INDENT}{clean(line)}")


def end_of(error: BaseException) -> int:
    """Report what ended a command, and give its exit code."""
    match error:
        case PostrowError():
            report(error.message, error.hint)
            return error.exit_code
        case typer.BadParameter() | UsageError() | ClickException():  # type: ignore[misc]
            return _usage(error)
        case KeyboardInterrupt():
            return INTERRUPTED
        case BrokenPipeError():
            return BROKEN_PIPE
        case OSError():
            what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
            report(what)
            return 2
        case _:
            report(
                f"unexpected {type(error).__name__}: {error}",
                "This is a bug of Postrow. POSTROW_DEBUG=1 shows where; please report it.",
            )
            return UNEXPECTED


def _usage(error: BaseException) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # `postrow dead` alone: the help is the answer
        note(error.format_message())  # type: ignore[attr-defined]
        return 2
    message = " ".join(error.format_message().split()).replace("Value error, ", "")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    report(
        message[:1].lower() + message[1:],
        f"See: {context.command_path} --help" if context is not None else "See: postrow --help",
    )
    return int(error.exit_code)  # type: ignore[attr-defined]


def quiet_stdout() -> None:
    """After a broken pipe: what is still in the buffer goes nowhere, so that Python's own exit says nothing."""
    import os  # noqa: PLC0415

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
