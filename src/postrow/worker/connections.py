"""A worker's own connections, and what is done when one cannot be had."""

from __future__ import annotations

import asyncio
import logging
import random
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

import psycopg

from postrow.drivers import connecting, pooling
from postrow.drivers.psycopg3 import OwnConnection, execute_async
from postrow.dsn import read
from postrow.errors import PostrowError, WorkerError
from postrow.ops import doctor

log = logging.getLogger("postrow.worker")

# a claim in a stricter level fails under contention
ISOLATION = "set default_transaction_isolation = 'read committed'"
SESSION = "select pg_backend_pid(), current_setting('default_transaction_isolation')"

# the parts that begin something: what stands behind the DSN may have been replaced by a copy while the worker runs
BEGINNERS = frozenset({"claimer", "scheduler"})

DATABASE_ERRORS = (psycopg.Error, PostrowError, OSError)
"""What a part of the worker meets when the database is away, read-only, or refuses: it tries again, with back-off."""


def conninfo(dsn: str, part: str) -> str:
    """The DSN of a worker's connection, with a name for pg_stat_activity where it has none of its own."""
    return connecting.conninfo(dsn, application_name=f"postrow {part}")


def one_line(error: BaseException) -> str:
    """What an error says first, for a line of the log."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@dataclass(slots=True)
class Database:
    """Where a worker's parts connect to, and what is known of the way there.

    `dsn` may say `pgbouncer=true`. `pooled`: a pooler in transaction mode is in between, or may be. Then nothing is
    prepared and nothing set for the session, since the next statement may run in another, and what was set would stay
    for a stranger. Each connection finds out by itself, too, and then it is so for all.

    `shared`: sessions are known to be shared with strangers. There, LISTEN hears nothing.
    """

    dsn: str
    pooled: bool = False
    shared: bool = False
    _way: pooling.Way | None = None

    def __post_init__(self) -> None:
        self.dsn, said = read(self.dsn)
        self.pooled |= said
        self.shared |= said

    async def connect(self, part: str) -> OwnConnection:
        """An async connection in autocommit mode, for one task: each of a worker's calls is one transaction.

        Raises:
            WorkerError: a pooler is in between that the worker cannot work through; the message says why.
        """
        try:
            conn = await OwnConnection.connect(conninfo(self.dsn, part), autocommit=True, prepare_threshold=None)
        except asyncio.CancelledError as error:
            # psycopg leaves the half-open socket to the garbage collector, and the server waits a minute for us
            traceback.clear_frames(error.__traceback__)
            raise
        except psycopg.OperationalError as error:
            _check_startup(error)
            raise
        try:
            pid, isolation = _session(await (await conn.execute(SESSION)).fetchone())
            if self._must_look(conn, pid):
                self._found(await pooling.way(conn, pid))
            if self._settle(conn, isolation):
                await conn.execute(ISOLATION)
            if part in BEGINNERS:
                await execute_async(conn, doctor.refuse_copy())
        except BaseException:
            await conn.close()
            raise
        return conn

    def connect_sync(self, part: str) -> psycopg.Connection[Any]:
        """The same, for the heartbeat's thread, or another without an event loop."""
        try:
            conn = psycopg.connect(conninfo(self.dsn, part), autocommit=True, prepare_threshold=None)
        except psycopg.OperationalError as error:
            _check_startup(error)
            raise
        try:
            pid, isolation = _session(conn.execute(SESSION).fetchone())
            if self._must_look(conn, pid):
                self._found(asyncio.run(pooling.way(conn, pid)))
            if self._settle(conn, isolation):
                conn.execute(ISOLATION)
        except BaseException:
            conn.close()
            raise
        return conn

    @property
    def prepare_threshold(self) -> int | None:
        """As psycopg takes it."""
        return None if self.pooled else 5  # psycopg's own default

    def _must_look(self, conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], pid: int) -> bool:
        # a pooler makes up the id of a process; what it does with sessions is looked for once
        return not self.shared and self._way is None and conn.info.backend_pid != pid

    def _found(self, way: pooling.Way) -> None:
        if way == "statement":
            raise WorkerError(
                "the pooler before the database allows no transactions",
                hint=pooling.NEEDS_TRANSACTIONS,
            )
        self._way = way
        if way not in {"direct", "session"}:
            self.pooled = self.shared = True

    def _settle(self, conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], isolation: str) -> bool:
        """Make the connection one for this way; whether its isolation level is to be set."""
        conn.prepare_threshold = self.prepare_threshold
        if self.pooled:
            _check_isolation(isolation)
        return isolation != "read committed"


def _session(row: tuple[Any, ...] | None) -> tuple[int, str]:
    assert row is not None
    return row[0], row[1]


def _check_startup(error: psycopg.Error) -> None:
    hint = connecting.refused_setting(error)
    if hint is not None:
        raise WorkerError(f"the pooler before the database refuses the DSN: {error}".strip(), hint=hint) from error


def _check_isolation(level: str) -> None:
    if level != "read committed":
        raise WorkerError(
            f"transactions of this role are {level} by default, and through a pooler a worker cannot set its own",
            hint="Run: alter role ... set default_transaction_isolation = 'read committed'",
        )


class Backoff:
    """Growing pauses between attempts, from 0.1 s doubling to 15 s, each times a random number from 0.5 to 1."""

    def __init__(self, *, first: float = 0.1, cap: float = 15.0) -> None:
        self.first = first
        self.cap = cap
        self._tries = 0

    def reset(self) -> None:
        """An attempt has succeeded: begin at the first pause again."""
        self._tries = 0

    def pause(self) -> float:
        """Seconds to wait now."""
        pause = min(self.cap, self.first * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return pause * random.uniform(0.5, 1)  # noqa: S311  # jitter, not a secret


@dataclass(slots=True)
class Weather:
    """Which parts of the worker have the database and which do not; one log line at a change, one each half minute."""

    down: dict[str, str] = field(default_factory=dict)
    since: float = 0.0
    logged: float = 0.0
    cleared: float = 0.0  # when a part last had the database again

    def failed(self, part: str, error: BaseException) -> None:
        """A part could not reach the database."""
        now = time.monotonic()
        first = not self.down
        text = one_line(error)
        self.down[part] = text
        if first:
            self.since = now
        if first or now - self.logged >= 30:
            self.logged = now
            log.warning("database trouble in %s, trying again with back-off: %s", ", ".join(sorted(self.down)), text)

    def fine(self, part: str) -> None:
        """A part has the database."""
        if self.down.pop(part, None) is not None:
            self.cleared = time.monotonic()
            if not self.down:
                log.info("the database is back after %.1f s", self.cleared - self.since)
