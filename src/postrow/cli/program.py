"""The program `postrow`: its commands, and how one is run from start to exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from postrow.cli import (
    adopt,
    consumer,
    dead,
    demo,
    dev,
    doctor,
    enqueue,
    migrate,
    pause,
    peek,
    schedule,
    show,
    status,
    subscription,
    sweep,
    version,
    worker,
)
from postrow.cli.failure import BROKEN_PIPE, EPILOG, INTERRUPTED, end_of, quiet_stdout

DEBUG_VARIABLE = "POSTROW_DEBUG"
TRACEBACK = "--traceback"

program = typer.Typer(
    name="postrow",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,  # plain help: the same in a terminal and in a pipe
    pretty_exceptions_enable=False,  # a traceback as Python writes it, without the values of variables
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

# In the order of the help: start, look, work by hand, decide, keep house. A module is a command: it has `register`.
for _module in (
    demo,
    dev,
    migrate,
    worker,
    status,
    doctor,
    show,
    peek,
    enqueue,
    dead,
    consumer,
    subscription,
    schedule,
    pause,
    sweep,
    adopt,
    version,
):
    _module.register(program)


def _say_version(wanted: bool) -> None:
    if wanted:
        version.version()
        raise typer.Exit


@program.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_say_version)
    ] = False,
    _traceback: Annotated[  # taken out of the words by `main`, wherever it stands
        bool, typer.Option(TRACEBACK, help=f"Show where an error comes from; also {DEBUG_VARIABLE}=1.")
    ] = False,
) -> None:
    """Postrow: a durable queue that is a table in the Postgres you already have."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command in `words` (None: the process's own), and give its exit code."""
    given = list(sys.argv[1:] if words is None else words)
    options = given[: given.index("--")] if "--" in given else given
    debug = TRACEBACK in options or os.environ.get(DEBUG_VARIABLE, "") not in {"", "0"}
    given = [word for at, word in enumerate(given) if word != TRACEBACK or at >= len(options)]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal of another encoding shows \\u2190, and no traceback
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:
        code = BROKEN_PIPE
    except BaseException as error:
        if debug and not isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        code = end_of(error)
    if code == BROKEN_PIPE:
        quiet_stdout()
    return code


def _run(words: list[str]) -> int:
    try:
        code = program(words, prog_name="postrow", standalone_mode=False)
    except SystemExit as error:  # typer and rich end so when the reader of our pipe has gone
        if isinstance(error.__context__, BrokenPipeError):
            return BROKEN_PIPE
        return error.code if isinstance(error.code, int) else 1
    except typer.Abort as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            return INTERRUPTED
        return 1
    return code if isinstance(code, int) else 0
