"""The database's clock, moved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from postrow import sql as files
from postrow.drivers.connecting import connect
from postrow.durations import Duration, duration, moment
from postrow.errors import BadArgumentError, SchemaMismatchError
from postrow.testing.databases import is_for_tests

FILE = "10_clock"

# The offset is a sequence's value, in microseconds: every session sees it at once, also one in the middle of a
# transaction. There a snapshot may hide a table's row, and a replaced function is noticed at the next lock only.
MOVED = (
    "create sequence if not exists postrow.testing_clock minvalue -9223372036854775807 start 0",
    "grant select on postrow.testing_clock to public",  # callers of postrow.clock() itself
    "select setval('postrow.testing_clock', 0)",
    """
    create or replace function postrow.clock() returns timestamptz language sql volatile parallel safe as
    $$ select pg_catalog.clock_timestamp() + last_value * interval '1 microsecond' from postrow.testing_clock $$
    """,
)


class Clock:
    """`postrow.clock()` of one database, moved for every session; it goes on running. `clock` makes one."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn
        self._offset = timedelta()

    def __repr__(self) -> str:
        return f"Clock(moved by {self._offset})"

    @property
    def now(self) -> datetime:
        """What the database takes for the present moment, in UTC."""
        return self._read("select (extract(epoch from postrow.clock()) * 1000000)::bigint")

    def advance(self, by: Duration) -> None:
        """Move it ahead, by seconds or a timedelta.

        Raises:
            BadArgumentError: less than 0: `set` goes back.
        """
        ahead = duration("by", by)
        if ahead < timedelta(0):
            raise BadArgumentError(f"by is {ahead}", hint="Give 0 or more; clock.set(moment) goes back.")
        self._move(self._offset + ahead)

    def set(self, to: datetime) -> None:
        """Make it this moment now; a datetime with a time zone, before or after the present one."""
        checked = moment("to", to)
        if checked is None or not datetime(1970, 1, 2, tzinfo=UTC) < checked < datetime(2999, 1, 1, tzinfo=UTC):
            raise BadArgumentError(f"to is {to}", hint="Give a moment from 1970 to 2998.")
        real = self._read("select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
        self._move(checked - real)

    def _read(self, statement: str) -> datetime:
        with psycopg.RawCursor(self._conn, row_factory=tuple_row) as cursor:
            row = cursor.execute(statement).fetchone()
        assert row is not None
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=row[0])

    def _move(self, offset: timedelta) -> None:
        self._conn.execute("select setval('postrow.testing_clock', %s)", [offset // timedelta(microseconds=1)])
        self._offset = offset


@contextmanager
def clock(dsn: str, *, any_database: bool = False) -> Iterator[Clock]:
    """The clock of a test's database, to be moved inside the block; at its end it is the real one again.

    It decides what is due, expired, or to be tried again. Python's clock, and `now()` in SQL of your own, do not move.

    Args:
        dsn: the database, with a role that owns the schema. One that `postrow.testing` made; others are refused.
        any_database: take any database, such as one that your framework made for tests.

    Raises:
        BadArgumentError: the database was not made by `postrow.testing`, and `any_database` is not set.
    """
    with connect(dsn, name="postrow clock") as conn:
        known = is_for_tests(conn)
        if known is None:
            raise SchemaMismatchError("this database has no Postrow schema", hint="Run: postrow migrate")
        if not (known or any_database):
            raise BadArgumentError(
                f"database {conn.info.dbname} was not made by postrow.testing; a moved clock would harm a real one",
                hint="Use the fixture postrow_dsn, or clock(dsn, any_database=True) if it is for tests.",
            )
        for statement in MOVED:
            conn.execute(statement)
        try:
            yield Clock(conn)
        finally:
            original = next(file for file in files.functions() if file.name == FILE)
            conn.execute(original.statements[0])
            # the sequence stays: dropping it would wait for whoever has read it
            conn.execute("select setval('postrow.testing_clock', 0)")
