"""Bringing a database's schema to this package's version: plan, apply, verify."""

from __future__ import annotations

import logging
import random
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postrow import sql as files
from postrow.errors import (
    BadArgumentError,
    DatabaseUnreachableError,
    LockNotAvailableError,
    PrivilegeError,
    SchemaMismatchError,
)
from postrow.sql import SCHEMA_VERSION, SqlFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psycopg

LOCK_KEYS = (1886613364, 2)  # 'prow' in ASCII; 1 is the sweep, 2 is this
LOCK_TIMEOUT = "2s"  # a DDL statement that waits stops every statement behind it: rather give up and come again
ROLES = ("postrow_producer", "postrow_worker", "postrow_admin", "postrow_reader")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a database lacks: migrations and function files, in order, and its present version (None: no schema)."""

    present: tuple[int, int] | None
    migrations: tuple[SqlFile, ...]
    functions: tuple[SqlFile, ...]

    @property
    def empty(self) -> bool:
        """Nothing is to do."""
        return not self.migrations and not self.functions

    @property
    def newer(self) -> bool:
        """The database was migrated by a newer package: this one changes nothing."""
        return self.present is not None and self.present > SCHEMA_VERSION


def version(conn: psycopg.Connection[Any]) -> tuple[int, int] | None:
    """The schema's major and minor version in this database; None where there is no schema."""
    if not _exists(conn, "pg_proc", "pro", "schema_version"):
        return None
    major, minor = str(_rows(conn, "select postrow.schema_version()")[0][0]).split(".")
    return int(major), int(minor)


def verify(present: tuple[int, int] | None, *, needed: tuple[int, int] = SCHEMA_VERSION) -> None:
    """Refuse a schema that a client cannot work with; a newer minor version is fine.

    Raises:
        SchemaMismatchError: there is none, it is older than needed, or it has another major version.
    """
    if present is None:
        raise SchemaMismatchError("this database has no Postrow schema", hint="Run: postrow migrate")
    has, needs = (".".join(map(str, pair)) for pair in (present, needed))
    if present[0] > needed[0]:
        raise SchemaMismatchError(
            f"this database has Postrow schema {has}, and this package works with {needs}",
            hint="Install a package of that major version: pip install --upgrade postrow",
        )
    if present < needed:
        raise SchemaMismatchError(
            f"this database has Postrow schema {has}, and this package needs {needs}", hint="Run: postrow migrate"
        )


def plan(conn: psycopg.Connection[Any]) -> Plan:
    """What `apply` would do now. Leaves no transaction open on an autocommit connection."""
    present = version(conn)
    if not _exists(conn, "pg_class", "rel", "migration"):
        return Plan(None, files.migrations(), files.functions())
    applied = dict(_rows(conn, "select version, checksum from postrow.migration"))
    for file in files.migrations():
        if applied.get(file.version, file.checksum) != file.checksum:
            raise SchemaMismatchError(
                f"migration {file.name} was applied here in another form than this package has",
                hint="The schema was changed by hand or by an unreleased version: compare postrow.migration.",
            )
    if present is not None and present > SCHEMA_VERSION:
        return Plan(present, (), ())
    present_functions = dict(_rows(conn, "select name, checksum from postrow.function_file"))
    changed = any(present_functions.get(file.name) != file.checksum for file in files.functions())
    return Plan(
        present,
        tuple(file for file in files.migrations() if file.version not in applied),
        # grants name functions of every file, so all are applied again when one has changed, or a role has come since
        files.functions() if changed or _has_role_without_grants(conn) else (),
    )


def apply(dsn: str, *, wait: float = 60.0, notice: Callable[[str], None] = _log.warning) -> Plan:
    """Bring the schema up to this package's version, and say what was done.

    Idempotent, and safe when many processes start at once: each step is one transaction under a lock that is asked for
    again and again, never waited for (a waiting transaction would hold up `create index concurrently`). What is done
    stays done: after an error, run it again.

    Args:
        dsn: the database; its role becomes the owner of the schema.
        wait: seconds to go on trying while another process migrates or a lock is not to be had.
        notice: gets the database's notices, such as the SQL for a role that this one may not create. Default: the log.

    Raises:
        SchemaMismatchError: the database has a newer major version, or a migration in another form.
        LockNotAvailableError: a lock was not had within `wait`.
        PrivilegeError: the role may not create the schema, or does not own it.
        DatabaseUnreachableError: no connection could be made, or it broke.
    """
    from postrow.drivers.connecting import connect  # noqa: PLC0415  # `import postrow` loads no database library

    with connect(dsn, name="postrow migrate") as conn:
        return apply_on(conn, wait=wait, notice=notice)


def apply_on(
    conn: psycopg.Connection[Any], *, wait: float = 60.0, notice: Callable[[str], None] = _log.warning
) -> Plan:
    """`apply`, on a connection that is there already, such as another framework's; it is left as it was.

    Args:
        conn: a psycopg connection in autocommit mode, outside of a transaction, so that each step commits by itself.
        wait: as for `apply`.
        notice: as for `apply`.

    Raises:
        BadArgumentError: the connection has a transaction open, or would open one by itself.
        PostrowError: as for `apply`.
    """
    import psycopg  # noqa: PLC0415  # as above

    if not conn.autocommit or conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        raise BadArgumentError(
            "the connection is in a transaction, and each step of a migration is one of its own",
            hint="Pass a connection in autocommit mode, or use migrate.statements() inside of your transaction.",
        )
    deadline = time.monotonic() + wait
    isolation = conn.isolation_level

    def tell(diag: psycopg.errors.Diagnostic) -> None:
        notice(diag.message_primary or "")

    # a snapshot of the whole transaction would be older than the lock that it waits for
    conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    conn.add_notice_handler(tell)
    try:
        with _settled(conn):
            todo = plan(conn)
        if todo.present is not None and todo.present[0] > SCHEMA_VERSION[0]:
            verify(todo.present)
        while _retry(conn, _step, deadline):
            pass
        while _retry(conn, _partition, deadline):
            pass
    except psycopg.errors.InsufficientPrivilege as error:
        raise _not_allowed(conn, error) from error
    except psycopg.OperationalError as error:
        raise DatabaseUnreachableError(
            f"the migration was interrupted: {' '.join(str(error).split())}",
            hint="Run postrow migrate again; what is done stays done.",
        ) from error
    finally:
        conn.remove_notice_handler(tell)
        if not conn.closed:
            conn.isolation_level = isolation
    return todo


def _not_allowed(conn: psycopg.Connection[Any], error: psycopg.Error) -> PrivilegeError:
    owner = _rows(conn, "select nspowner::regrole::text from pg_namespace where nspname = 'postrow'")
    role, database = _rows(conn, "select quote_ident(current_user), quote_ident(current_database())")[0]
    hint = f"Let a role that may run: grant create on database {database} to {role};"
    if owner:
        hint = f"The schema belongs to {owner[0][0]}: run postrow migrate as that role."
    return PrivilegeError(f"role {role} may not migrate: {error.diag.message_primary}", hint=hint)


def sql(from_: int = 0, to: int | None = None) -> str:
    """The script that `apply` would run, for a DBA.

    Args:
        from_: the number of the last migration that the database has; 0 for none.
        to: the number of the last migration to print; None for all of them. The functions are of the last one, and
            printed with that only.

    Raises:
        BadArgumentError: this package has no migration of that number.
    """
    parts = ["begin;", *(f"{statement};" for statement in _SETTINGS)]
    for file in _files(from_, to):
        parts += [f"-- {file.name}", *(f"{statement};" for statement in _with_record(file))]
    parts.append("commit;")
    parts.append("select * from postrow.sweep('history');  -- a day a call: repeat while it says more")
    return "\n\n".join(parts) + "\n"


def statements(from_: int = 0, to: int | None = None) -> list[str]:
    """What `sql` prints, one statement an item, for a migration tool that has a transaction open, such as Alembic.

    Run all of them, in order, in one transaction; without parameters, so that a `%` or a `:` in them is text. The
    settings that they make last until the last of them, which puts back what was there before. The history's
    partitions are left to the workers.

    Args:
        from_: as for `sql`.
        to: as for `sql`. Give it in a revision that is kept, so that a newer package does not put more into it.

    Raises:
        BadArgumentError: this package has no migration of that number.
    """
    middle = [statement for file in _files(from_, to) for statement in _with_record(file)]
    return [*_BORROW, *middle, *_GIVE_BACK]


_SETTINGS = ("set local search_path = ''", "set local statement_timeout = 0")
# the same for a transaction that goes on, where `set local` would last
_BORROW = tuple(
    f"select set_config('postrow.was_{name}', current_setting('{name}'), true), set_config('{name}', '{value}', true)"
    for name, value in (("search_path", ""), ("statement_timeout", "0"))
)
_GIVE_BACK = tuple(
    f"select set_config('{name}', current_setting('postrow.was_{name}'), true)"
    for name in ("search_path", "statement_timeout")
)


def _files(from_: int, to: int | None) -> list[SqlFile]:
    """The migrations after `from_` up to `to`, and with the last one the functions: they may need its tables."""
    last = files.migrations()[-1].version
    end = last if to is None else to
    if not 0 <= from_ <= end <= last:
        raise BadArgumentError(
            f"there are no migrations from {from_} to {end}: this package has 1 to {last}",
            hint="Give the number of the last migration that the database has (0: none), and of the last to run.",
        )
    chosen = [file for file in files.migrations() if from_ < file.version <= end]
    return [*chosen, *(files.functions() if end == last else ())]


def _with_record(file: SqlFile) -> tuple[str, ...]:
    """The statements of a file, and the one that records it."""
    return (*file.statements, _record_function(file) if file in files.functions() else _record(file))


def _exists(conn: psycopg.Connection[Any], catalog: str, prefix: str, name: str) -> bool:
    """Whether our schema has this relation or function, by a query of the catalog.

    Not by to_regclass: that looks into the session's cache, where "there is none" may have stood since before the lock.
    """
    statement = (
        f"select from pg_catalog.{catalog} c join pg_catalog.pg_namespace n on n.oid = c.{prefix}namespace "
        f"where n.nspname = 'postrow' and c.{prefix}name = '{name}'"
    )
    return bool(_rows(conn, statement))


def _has_role_without_grants(conn: psycopg.Connection[Any]) -> bool:
    """Whether a role of ours was made after the grants."""
    names = ", ".join(f"'{role}'" for role in ROLES)
    statement = f"select from pg_roles where rolname in ({names}) and not has_schema_privilege(oid, 'postrow', 'usage')"
    return bool(_rows(conn, statement))


def _step(conn: psycopg.Connection[Any]) -> bool:
    """The next migration, or all function files: one transaction. True: there may be more."""
    with _settled(conn):
        if plan(conn).empty:
            return False
    with _locked(conn):
        todo = plan(conn)  # again, under the lock: another process may have done it
        if todo.migrations:
            file = todo.migrations[0]
            _run(conn, *_with_record(file))
        elif todo.functions:
            for file in todo.functions:
                _run(conn, *_with_record(file))
    return not todo.empty


def _partition(conn: psycopg.Connection[Any]) -> bool:
    """One day's partition of the history. True: there may be more."""
    with _settled(conn):
        return any(row[2] for row in _rows(conn, "select step, done, more from postrow.sweep('history')"))


def _retry(conn: psycopg.Connection[Any], step: Any, deadline: float) -> bool:
    from psycopg import errors  # noqa: PLC0415

    while True:
        try:
            return bool(step(conn))
        except (errors.LockNotAvailable, errors.DeadlockDetected, LockNotAvailableError) as error:
            if time.monotonic() > deadline:
                raise LockNotAvailableError(
                    "the schema could not be locked in time: another migration, or a long transaction, holds it",
                    hint="See pg_stat_activity, then run postrow migrate again; what is done stays done.",
                ) from error
            time.sleep(random.uniform(0.05, 0.2))  # noqa: S311  # jitter, not a secret


@contextmanager
def _settled(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """A transaction that a database's or a role's own settings do not reach into."""
    with conn.transaction():
        _run(conn, *_SETTINGS)
        yield


@contextmanager
def _locked(conn: psycopg.Connection[Any]) -> Iterator[None]:
    with _settled(conn):
        _run(conn, f"set local lock_timeout = '{LOCK_TIMEOUT}'")
        if not _rows(conn, "select pg_try_advisory_xact_lock({}, {})".format(*LOCK_KEYS))[0][0]:
            raise LockNotAvailableError("another process migrates")
        yield


def _rows(conn: psycopg.Connection[Any], statement: str) -> list[Any]:
    from psycopg.rows import tuple_row  # noqa: PLC0415

    with conn.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(statement).fetchall()


def _run(conn: psycopg.Connection[Any], *statements: str) -> None:
    for statement in statements:
        conn.execute(statement)


def _record(file: SqlFile) -> str:
    return (
        "insert into postrow.migration (version, name, checksum) "
        f"values ({file.version}, '{file.name}', '{file.checksum}')"
    )


def _record_function(file: SqlFile) -> str:
    return (
        f"insert into postrow.function_file (name, checksum) values ('{file.name}', '{file.checksum}') "
        "on conflict (name) do update set checksum = excluded.checksum, applied_at = clock_timestamp()"
    )
