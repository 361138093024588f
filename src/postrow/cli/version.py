"""`postrow version`."""

from __future__ import annotations

import typer

import postrow
from postrow.cli.screen import say
from postrow.sql import SCHEMA_VERSION


def register(program: typer.Typer) -> None:
    """Add the command."""
    program.command("version")(version)


def version() -> None:
    """Show the version of this package, and of its schema."""
    say(f"postrow {postrow.__version__} (schema {'.'.join(map(str, SCHEMA_VERSION))})")
