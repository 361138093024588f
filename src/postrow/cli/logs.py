"""How long-running commands log: to stderr, as text or as JSON lines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from postrow.cli.screen import clean


class LogLevel(StrEnum):
    """What is logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class LogFormat(StrEnum):
    """How a line looks."""

    text = "text"
    json = "json"


Level = Annotated[
    LogLevel, typer.Option("--log-level", help="What is logged; an app that sets up logging decides itself.")
]
Format = Annotated[LogFormat, typer.Option("--log-format", help="How: for people, or one JSON object a line.")]


def start(level: LogLevel, format_: LogFormat = LogFormat.text) -> None:
    """Log to stderr from now on, unless the app has set up logging of its own when it was imported."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if format_ is LogFormat.json else _Text())
    logging.basicConfig(level=level.upper(), handlers=[handler])


class _Text(logging.Formatter):
    """10:02:11 info    the message; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        lines = [f"{time} {record.levelname.lower():<7} {clean(record.getMessage(), block=True)}"]
        if record.exc_info:
            lines.append(clean(self.formatException(record.exc_info), block=True))
        return "\n".join(lines)


class _Json(logging.Formatter):
    """time (ISO 8601, UTC), level, logger, message and, after an exception, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)
