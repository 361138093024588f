"""Every exception of Postrow, and the one table from SQLSTATE to class.

The database raises five-letter codes of the class ``PW``; `BY_SQLSTATE` maps them, and those of
Postgres that our functions let through, to the classes below. Each class carries its exit code, so
that the same error is the same class in Python and the same number on the command line.
"""

from __future__ import annotations

from typing import ClassVar


class PostrowError(Exception):
    """Anything that Postrow raises of its own.

    `sqlstate` is the code that stands for the class: the database raises it, or would (None where there is no such
    code). Where an error comes from the database, `__cause__` is the driver's own error. `exit_code` is what the
    command line exits with.
    """

    sqlstate: ClassVar[str | None] = None
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class NotInTransactionError(PostrowError):
    """The handle is in autocommit mode: the message would not be part of a transaction."""

    sqlstate = "PW001"
    exit_code = 2


class AbortedTransactionError(NotInTransactionError):
    """The handle's transaction has failed already; nothing can be added to it before a rollback."""

    sqlstate = "25P02"


class UnsupportedHandleError(PostrowError):
    """The first argument is not a connection that a driver of ours knows."""

    exit_code = 2


class BadNameError(PostrowError):
    """A name (queue, tenant, topic, target, handler) outside the grammar or longer than 200 characters."""

    sqlstate = "PW002"
    exit_code = 2


class BadArgumentError(PostrowError):
    """A value outside its range, or options that exclude each other; an address that a worker cannot have."""

    sqlstate = "PW003"
    exit_code = 2


class ConsumerConflictError(PostrowError):
    """Another handler is registered for this queue; the message names it."""

    sqlstate = "PW005"
    exit_code = 3


class IdTakenError(PostrowError):
    """The caller's id belongs to a message of another queue; the message names that queue."""

    sqlstate = "PW006"
    exit_code = 3


class HopsExceededError(PostrowError):
    """Handlers published from handlers more often than the limit of hops allows."""

    sqlstate = "PW007"
    exit_code = 3


class SchemaMismatchError(PostrowError):
    """The database's schema is missing, older than this client needs, or of another major version."""

    sqlstate = "PW008"
    exit_code = 4


class NotFoundError(PostrowError):
    """There is no such message or dead letter, or it has been decided already."""

    sqlstate = "PW009"
    exit_code = 3


class CopiedDatabaseError(PostrowError):
    """The database was copied from another one, whose messages it has; the message names that one."""

    sqlstate = "PW010"
    exit_code = 4


class PayloadError(PostrowError):
    """A payload that JSON, or Postgres's jsonb, cannot carry; the message names the path in it."""

    sqlstate = "22P02"
    exit_code = 2


class PayloadUnicodeError(PayloadError):
    r"""A payload with a NUL character or a lone surrogate, which jsonb cannot store."""

    sqlstate = "22P05"


class PayloadTypeError(PostrowError):
    """A stored payload that does not fit the type of its queue; the handler is not called."""


class SerializationError(PostrowError):
    """A rival transaction committed meanwhile: run the whole transaction again."""

    sqlstate = "40001"
    exit_code = 5


class LockNotAvailableError(PostrowError):
    """A lock was not had within the time allowed for it: try again later."""

    sqlstate = "55P03"
    exit_code = 5


class PrivilegeError(PostrowError):
    """The database role may not do this; the message names the role of ours that may."""

    sqlstate = "42501"
    exit_code = 4


class DatabaseUnreachableError(PostrowError):
    """No connection to the database could be made."""

    exit_code = 4


class EmbeddedServerError(PostrowError):
    """The private Postgres could not be found, started or stopped."""

    exit_code = 4


class LeaseLostError(PostrowError):
    """The claim on this message is not ours any more: another worker may be handling it."""


class WorkerError(PostrowError):
    """The worker cannot start, or stopped because one of its parts kept failing."""


BY_SQLSTATE: dict[str, type[PostrowError]] = {
    cls.sqlstate: cls
    for cls in (
        NotInTransactionError,
        AbortedTransactionError,
        BadNameError,
        BadArgumentError,
        ConsumerConflictError,
        IdTakenError,
        HopsExceededError,
        SchemaMismatchError,
        NotFoundError,
        CopiedDatabaseError,
        PayloadError,
        PayloadUnicodeError,
        SerializationError,
        LockNotAvailableError,
        PrivilegeError,
    )
    if cls.sqlstate is not None
}

_NO_SCHEMA = frozenset({"3F000", "42883", "42P01", "42704"})  # no such schema, function, table, type
_OUT_OF_RANGE = frozenset({"22003", "22007", "22008", "22023"})  # numbers, timestamps, settings: refused by Postgres
_TOO_LARGE = frozenset({"54000"})  # jsonb's own limit: 256 MB in one string, array or object
_HINTS = {  # of errors that Postgres raises by itself, without a next step
    "25P02": "Roll it back (or to a savepoint), then run it again.",
    "40001": "Roll the transaction back and run all of it again.",
    "42501": "Grant the role that may: postrow_producer enqueues, postrow_worker claims, postrow_reader looks, "
    "postrow_admin decides.",
    "54000": "Store the content elsewhere and enqueue a reference to it.",
    "XX000": "The payload is too large for jsonb: store the content elsewhere and enqueue a reference to it.",
}


def from_sqlstate(code: str | None, message: str, hint: str | None = None) -> PostrowError | None:
    """The exception of ours for an error that a statement of ours got; None for one that is not ours to translate.

    Args:
        code: the five letters; None for an error that the database did not raise.
        message: the database's primary message. It names our schema whatever language it is in.
        hint: the database's hint, which ours carry the next step in.
    """
    if code is None:
        return None
    if code in _NO_SCHEMA:
        if "postrow" not in message:
            return None
        return SchemaMismatchError(f"the schema does not fit this package: {message}", hint="Run: postrow migrate")
    cls = BY_SQLSTATE.get(code)
    if code in _OUT_OF_RANGE:
        cls = BadArgumentError
    elif code in _TOO_LARGE or (code == "XX000" and "memory alloc request" in message):  # of a gigabyte, while parsing
        cls = PayloadError
    return None if cls is None else cls(message, hint=_HINTS.get(code, hint))
