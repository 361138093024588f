"""What the drivers refuse, in the same words; and what the database refused, as an exception of ours."""

from __future__ import annotations

from functools import cache
from typing import Any, NoReturn

from postrow.errors import (
    AbortedTransactionError,
    NotInTransactionError,
    SerializationError,
    UnsupportedHandleError,
    from_sqlstate,
)

_PREPARED = frozenset({"26000", "42P05"})  # there is no such prepared statement, or there is one already
_POOLER = (
    "Statements are prepared on a connection that a pooler in transaction mode shares out. Prepare none: connect with "
    "prepare_threshold=None (psycopg) or statement_cache_size=0 (asyncpg); see docs/howto/poolers.md."
)
SEND = "or use app.send(...), which opens its own."


def in_autocommit(handle: str, way_out: str) -> NotInTransactionError:
    """The refusal of a handle whose statements commit by themselves; `way_out` tells how a transaction is opened."""
    return NotInTransactionError(
        f"{handle} is in autocommit mode, so the message would not be part of your transaction.",
        hint=f"{way_out} {SEND}",
    )


def aborted(handle: str) -> AbortedTransactionError:
    """The refusal of a handle whose transaction the database, or its library, has given up."""
    return AbortedTransactionError(
        f"{handle} has failed already, and nothing can be added to it.",
        hint="Roll it back (or to a savepoint), then run it again.",
    )


def no_handle(library: str, handle: object, instead: str) -> UnsupportedHandleError:
    """The refusal of a library's object that is no connection; `instead` tells what to pass."""
    return UnsupportedHandleError(f"{library}'s {type(handle).__name__} is not a connection", hint=f"Pass {instead}.")


def translate(error: Exception, driver_error: Any = None) -> NoReturn:
    """Raise our exception for an error of the database, or the error itself.

    Args:
        error: what the handle's library raised.
        driver_error: the error of the driver below it, if that is another: it has the code.
    """
    told = error if driver_error is None else driver_error
    code = getattr(told, "sqlstate", None) or getattr(told, "pgcode", None)
    diag: Any = getattr(told, "diag", None)  # psycopg's and psycopg2's; asyncpg has `message` and `hint`
    if diag is None:
        message, hint = getattr(told, "message", None), getattr(told, "hint", None)
    else:
        message, hint = diag.message_primary, diag.message_hint
    ours = from_sqlstate(code, message or str(told), hint)
    if ours is None:
        if code in _PREPARED:
            error.add_note(_POOLER)
        raise error
    if isinstance(ours, SerializationError):
        raise _both(ours, error) from (error.__cause__ or error)
    raise ours from error


def _both(ours: SerializationError, error: Exception) -> SerializationError:
    """An exception that is ours and the library's: the loop that runs the caller's transaction again may await either.

    It has all that the library's has (its `diag`, `orig`, ...), by its attributes: constructors differ too much.
    """
    library: Any = type(error)
    cls = _class_of_both(library)
    both = cls.__new__(cls, *error.args)
    both.__dict__.update(error.__dict__)
    both.message, both.hint = ours.message, ours.hint
    both.args = (ours.message,)
    return both


@cache  # a handful of classes of each library
def _class_of_both(library: type[Exception]) -> type[SerializationError]:
    return type(
        SerializationError.__name__, (SerializationError, library), {"__module__": SerializationError.__module__}
    )
