"""`postrow pause`, `resume` and `purge`: what an operator does to a queue."""

from __future__ import annotations

from typing import Annotated

import typer

from postrow.cli import database
from postrow.cli.database import Dsn
from postrow.cli.figures import plural
from postrow.cli.question import typed
from postrow.cli.screen import clean, note, say
from postrow.drivers.psycopg3 import execute
from postrow.errors import BadArgumentError, NotFoundError
from postrow.ops import pauses

PURGED_AT_ONCE = 10_000  # messages that one transaction deletes

Tenant = Annotated[str | None, typer.Option("--tenant", metavar="TENANT", help="Of this tenant only.")]


def register(program: typer.Typer) -> None:
    """Add the commands."""
    program.command("pause")(pause)
    program.command("resume")(resume)
    program.command("purge")(purge)


def pause(
    queue: Annotated[str | None, typer.Argument(metavar="QUEUE", help="All queues of a tenant, if left out.")] = None,
    dsn: Dsn = None,
    tenant: Tenant = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="For who looks later.")] = None,
) -> None:
    """Pause a queue, a tenant, or a tenant's queue.

    Nothing of it is claimed until it is resumed. Messages are enqueued as before, and handlers that run go on to
    their end.
    """
    _check(queue, tenant)
    with database.connected(dsn, command="pause") as conn:
        new = execute(conn, pauses.pause(queue, tenant=tenant, reason=reason))
    say(f"{_what(queue, tenant)} is paused" + ("" if new else ", as before"))


def resume(
    queue: Annotated[str | None, typer.Argument(metavar="QUEUE")] = None, dsn: Dsn = None, tenant: Tenant = None
) -> None:
    """End a pause, named as it was made."""
    _check(queue, tenant)
    with database.connected(dsn, command="resume") as conn:
        there_was = execute(conn, pauses.resume(queue, tenant=tenant))
        others = [] if there_was else execute(conn, pauses.pauses())
    if not there_was:
        known = "; ".join(_what(row.queue, row.tenant) for row in others)
        raise NotFoundError(
            f"{_what(queue, tenant)} is not paused", hint=f"Paused: {known}." if known else "Nothing is paused."
        )
    say(f"{_what(queue, tenant)} is resumed")


def purge(
    *,
    queue: Annotated[str, typer.Argument(metavar="QUEUE")],
    dsn: Dsn = None,
    tenant: Tenant = None,
    count: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Delete if there are so many, without a question.")
    ] = None,
) -> None:
    """Delete the messages of a queue that nobody holds, ready and scheduled ones.

    They are gone: not in the history, and no dead letters. The number of them has to be typed to confirm.
    """
    with database.connected(dsn, command="purge") as conn:
        found = execute(conn, pauses.purgeable(queue, tenant=tenant))
        if found == 0 and count in {None, 0}:
            note(f"{_what(queue, tenant)} has nothing that nobody holds.")
            return
        _confirm(queue, tenant, found, count)
        done = 0
        while done < found:  # no more than was confirmed: others may go on enqueuing
            some = execute(conn, pauses.purge(queue, tenant=tenant, limit=min(PURGED_AT_ONCE, found - done)))
            if some == 0:
                break
            done += some
    say(f"{plural(done, 'message')} of {_what(queue, tenant)} deleted")


def _confirm(queue: str, tenant: str | None, found: int, count: int | None) -> None:
    if count is None:
        question = f"This deletes {plural(found, 'message')} of {_what(queue, tenant)}. Type the number:"
        answer = typed(question, instead=f"Add --count {found} to go ahead.")
        digits = answer.replace(",", "")  # as it is printed
        count = int(digits) if digits.isdecimal() else -1
    if count != found:
        raise BadArgumentError(
            f"{_what(queue, tenant)} has {plural(found, 'message')}: nothing is deleted",
            hint=f"To delete them: --count {found}",
        )


def _check(queue: str | None, tenant: str | None) -> None:
    if queue is None and tenant is None:
        raise BadArgumentError("neither a queue nor a tenant is given", hint="Give QUEUE, --tenant TENANT, or both.")


def _what(queue: str | None, tenant: str | None) -> str:
    named = "" if queue in {None, "*"} else f"queue {clean(queue or '')}"
    owner = "" if tenant in {None, "*"} else f"tenant {clean(tenant or '')}"
    return f"{named} of {owner}" if named and owner else named or owner or "nothing"
