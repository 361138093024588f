"""`postrow enqueue`: messages from the command line, a file, or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Annotated, Any
from uuid import UUID

import typer

from postrow import payload as payloads
from postrow.cli import arguments, database
from postrow.cli.database import Dsn
from postrow.cli.figures import plural
from postrow.cli.lines import Batch, batches
from postrow.cli.progress import Bar
from postrow.cli.screen import clean, note, say
from postrow.drivers.psycopg3 import execute
from postrow.errors import BadArgumentError, DatabaseUnreachableError, PayloadError, PostrowError
from postrow.ops import produce
from postrow.ops.produce import DedupWhile, ManyOptions, Options, Shared

BATCH = 5_000
STDIN = "-"
EXAMPLE = "'{\"user_id\": 17}'"


def register(program: typer.Typer) -> None:
    """Add the command."""
    program.command("enqueue")(enqueue)


def enqueue(
    *,
    queue: Annotated[str, typer.Argument(metavar="QUEUE")],
    payload: Annotated[
        str | None, typer.Argument(metavar="PAYLOAD", help="One JSON value; - reads JSON lines from stdin.")
    ] = None,
    dsn: Dsn = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="A file of JSON lines: a line is a message.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=1_000_000, metavar="N", help="Lines in one transaction.")] = BATCH,
    tenant: Annotated[str, typer.Option(metavar="TENANT")] = "default",
    priority: Annotated[int, typer.Option(metavar="N", min=-32768, max=32767, help="Lower is claimed first.")] = 0,
    delay: Annotated[
        timedelta | None,
        typer.Option(
            parser=arguments.duration, metavar="DURATION", help="Not before: 5s, '5 min', 1h, 2d, or seconds."
        ),
    ] = None,
    subject: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The business record that it serves, such as order:17.")
    ] = None,
    group_key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Messages with the same key are handled in order.")
    ] = None,
    max_attempts: Annotated[int | None, typer.Option(metavar="N", min=1, help="In place of the consumer's.")] = None,
    target: Annotated[str | None, typer.Option(metavar="WORKER", help="The one worker that may claim it.")] = None,
    expires_at: Annotated[
        datetime | None,
        typer.Option(parser=arguments.moment, metavar="MOMENT", help="A dead letter if not handled by then: ISO 8601."),
    ] = None,
    id_: Annotated[
        UUID | None,
        typer.Option(
            "--id",
            parser=arguments.message_id,
            metavar="UUID",
            help="Your own id: given again, it is the same message.",
        ),
    ] = None,
    dedup_key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="While its message waits, another with the key is not added.")
    ] = None,
    dedup_while: Annotated[
        DedupWhile | None, typer.Option(help="Until it is claimed, or until it is finished.")
    ] = None,
    dedup_for: Annotated[
        timedelta | None,
        typer.Option(parser=arguments.duration, metavar="DURATION", help="Or for so long, whatever becomes of it."),
    ] = None,
) -> None:
    """Put messages into a queue.

    One from the command line: prints its id. Or one for each line of a file or of stdin, with a transaction for
    each batch. The first line that cannot be used stops it: its batch is not enqueued, and the message says
    which lines are.
    """
    options: Shared = {
        "tenant": tenant,
        "priority": priority,
        "delay": delay,
        "subject": subject,
        "max_attempts": max_attempts,
        "target": target,
        "expires_at": expires_at,
    }
    if (payload is None) == (file is None):
        raise BadArgumentError(
            "a payload and --file are given" if file else "no payload is given",
            hint=f"postrow enqueue {queue} {EXAMPLE}, or --file FILE, or - for JSON lines on stdin.",
        )
    if payload is not None and payload != STDIN:
        keyed: Options = {
            **options,
            "group_key": group_key,
            "dedup_key": dedup_key,
            "dedup_for": dedup_for,
            "dedup_while": dedup_while,
        }
        _one(dsn, queue, payload, keyed, id_)
        return
    if id_ is not None:
        raise BadArgumentError("--id is given with many messages", hint="An id is of one message.")
    if dedup_key is not None or dedup_while is not None or dedup_for is not None:
        raise BadArgumentError("--dedup-key is given with many messages", hint="Such a key is of one message.")
    lines: ManyOptions = {**options, "group_key": group_key, "dedup_key": None}
    _many(dsn, queue, file if file != Path(STDIN) else None, batch, lines)


def _one(dsn: str | None, queue: str, payload: str, options: Options, id_: UUID | None) -> None:
    try:
        payloads.encode(payloads.decode(payload))  # what jsonb would refuse is refused with the place in it
    except PayloadError as error:
        error.hint = error.hint or f"Quote it for the shell, and a text for JSON: {EXAMPLE} or '\"hello\"'."
        raise
    with database.connected(dsn, command="enqueue") as conn:
        sent = execute(conn, produce.enqueue(queue, payload, options, id_=id_))
    say(str(sent.id))
    if sent.deduplicated:
        note("This message was there already: nothing was added.")


@dataclass(slots=True)
class _Done:
    """How far it went: the last line and how many messages are committed, and the batch that is on its way."""

    line: int = 0
    messages: int = 0
    transactions: int = 0
    sending: Batch | None = None


def _many(dsn: str | None, queue: str, file: Path | None, size: int, options: ManyOptions) -> None:
    done = _Done()
    total = file.stat().st_size if file is not None else None
    with _opened(file) as source, Bar(total=total, what="messages") as bar:
        try:
            with database.connected(dsn, command="enqueue") as conn:
                for batch in batches(source, size=size):
                    _send(conn, queue, batch, options, done)
                    bar.advance(done.messages, size=batch.bytes_read)
        except PostrowError as error:
            error.hint = "\n".join(filter(None, (error.hint, *_how_far(done, error, queue, file))))
            raise
        except KeyboardInterrupt as error:
            for line in _how_far(done, error, queue, file):
                note(line)
            raise
    say(
        f"{plural(done.messages, 'message')} enqueued into {clean(queue)} in {plural(done.transactions, 'transaction')}"
    )


def _send(conn: Any, queue: str, batch: Batch, options: ManyOptions, done: _Done) -> None:
    done.sending = batch
    with conn.transaction():
        for op in produce.enqueue_many(queue, (produce.Lines(text, 1) for text in batch.texts), options):
            execute(conn, op)
    done.sending = None
    done.line = batch.last
    done.messages += len(batch.texts)
    done.transactions += 1


def _how_far(done: _Done, error: BaseException, queue: str, file: Path | None) -> list[str]:
    """What is in the queue and what is not, and how to go on."""
    said = [
        f"Lines 1 to {done.line} are enqueued ({plural(done.messages, 'message')}), and nothing after them."
        if done.line
        else "Nothing is enqueued."
    ]
    if done.sending is not None and isinstance(error, DatabaseUnreachableError | KeyboardInterrupt):
        # the answer to the commit did not arrive
        batch = (
            f"Lines {done.sending.first} to {done.sending.last} are enqueued all together or not at all; "
            f"postrow peek {queue} may tell."
        )
        said = [
            f"Lines 1 to {done.line} are enqueued ({plural(done.messages, 'message')})." if done.line else "",
            batch,
        ]
    elif done.line:
        source = file or "FILE"
        said.append(
            f"When it is mended, with the same options: tail -n +{done.line + 1} {source} | postrow enqueue {queue} -"
        )
    elif isinstance(error, PayloadError) and file is not None:
        said.append(f'Each line is one message. One document of many lines: postrow enqueue {queue} "$(cat {file})"')
    return [line for line in said if line]


@contextmanager
def _opened(file: Path | None) -> Iterator[IO[bytes]]:
    if file is None:
        if sys.stdin.isatty():
            note("Write JSON, a message a line; Ctrl-D ends it.")
        yield sys.stdin.buffer
    else:
        with file.open("rb") as source:
            yield source
