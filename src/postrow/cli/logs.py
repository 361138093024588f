"""How long-running commands log: to stderr, as text or as JSON lines."""

from __future__ import annotations

import json
import logging
import math
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from postrow.cli.screen import clean
from postrow.ops.lineage import handled

TEXT = 8000  # characters of one text in a JSON line: beyond it the middle is left out
FIELDS = 50  # in a JSON line
_USUAL = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"}  # what every record has


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
    """time (ISO 8601, UTC), level, logger, message, the record's own fields and, after an exception, traceback.

    A handler's lines have the `message_id` of its message. A line is bounded: each text, and how many fields there are.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage()),
        }
        for name, value in record.__dict__.items():
            if name not in _USUAL and name not in line and len(line) < FIELDS:
                line[name] = _plain(value)
        if (parent := handled.get()) is not None and parent.id is not None:  # not of a call with many
            line.setdefault("message_id", str(parent.id))
        if record.exc_info:
            line["traceback"] = _cut(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = _cut(self.formatStack(record.stack_info))
        return json.dumps(line)


def _plain(value: object) -> object:
    """A field's value as JSON has it; what JSON has not is a text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    try:
        return _cut(str(value))
    except Exception:  # noqa: BLE001  # somebody's own code; the line is worth more
        return f"a {type(value).__name__}"


def _cut(text: str) -> str:
    return text if len(text) <= TEXT else f"{text[: TEXT // 2]} ... {text[-TEXT // 2 :]}"
