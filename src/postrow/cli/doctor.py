"""`postrow doctor` and `postrow adopt`: what is wrong with a database, and what to do."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from postrow.cli import checks, database
from postrow.cli.database import Dsn
from postrow.cli.figures import plural
from postrow.cli.screen import clean, console, is_terminal, say, say_json
from postrow.models import Finding, Level

STYLES: dict[Level, str] = {"problem": "bold red", "warning": "bold yellow", "ok": "green"}
LEVEL, NAME = 9, 12  # columns
_TOGETHER = re.compile(r"(\d) (?=(?:s|min|h|d)\b)")  # a figure and its unit stay on one line
WIDEST = 120  # columns: longer lines are hard to read


def register(program: typer.Typer) -> None:
    """Add the command."""
    program.command("doctor")(doctor)


def doctor(
    *,
    dsn: Dsn = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Show what is fine, too, with its figures.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for warnings, too.")] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="For programs: a JSON array of every check; advice is null where all is well."),
    ] = False,
) -> None:
    """Say what is wrong, and what to do about it.

    It looks, and changes nothing. A problem is what does not work, or soon will not: exit code 1. A warning is to be
    looked at some day.
    """
    resolved = database.resolve(dsn)
    with (
        database.connect(resolved, command="doctor", verified=False) as conn,
        database.reaching(resolved, connected=True),
    ):
        findings = checks.examine(conn)
    if json:
        say_json([asdict(finding) for finding in findings])
    else:
        _say_page(findings, place=database.name(resolved), whole=all_)
    levels = {finding.level for finding in findings}
    if "problem" in levels or (strict and "warning" in levels):
        raise typer.Exit(1)


def _say_page(findings: Sequence[Finding], *, place: str, whole: bool) -> None:
    fine = [finding for finding in findings if finding.level == "ok"]
    say(clean(place))
    level: Level
    for level in ("problem", "warning"):
        for finding in findings:
            if finding.level == level:
                say()
                _say_finding(finding)
    say()
    if whole:
        for finding in fine:
            _say_finding(finding)
    elif fine:
        _say_finding(Finding("", "ok", ", ".join(finding.name for finding in fine)))
    say()
    counts = [(sum(finding.level == level for finding in findings), level) for level in ("problem", "warning")]
    bad = ", ".join(plural(count, word) for count, word in counts if count)
    say(f"{bad or 'nothing is wrong'}; {len(fine)} of {len(findings)} checks are fine")


def _say_finding(finding: Finding) -> None:
    """What was found, and under it what to do: on a terminal in its width, in a pipe a line each."""
    name = f"{clean(finding.name):<{NAME}}" if finding.name else ""
    indent = LEVEL + len(name)
    parts = [(clean(finding.detail), ""), *([(f"→ {clean(finding.advice)}", "cyan")] if finding.advice else [])]
    if not is_terminal():
        for at, (text, _) in enumerate(parts):
            say((" " * indent if at else f"{finding.level:<{LEVEL}}{name}") + text)
        return
    from rich.text import Text  # noqa: PLC0415  # as screen.py has it

    out = console()
    room = max(20, min(out.width, WIDEST) - indent)
    line = Text().append(f"{finding.level:<{LEVEL}}", STYLES[finding.level]).append(name, "bold")
    for text, style in parts:
        for part in textwrap.wrap(_TOGETHER.sub("\\1\u00a0", text), room, break_on_hyphens=False):
            out.print(line.append(part.replace("\u00a0", " "), style), soft_wrap=True)
            line = Text(" " * indent)
