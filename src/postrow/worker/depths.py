"""How many messages are in the database's queues, for the page of metrics: looked up now and then."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import psycopg

from postrow.drivers.psycopg3 import execute
from postrow.models import QueueDepth
from postrow.ops import look
from postrow.worker.connections import DATABASE_ERRORS, Database, one_line

log = logging.getLogger("postrow.worker")

EVERY = 5.0  # seconds between looks at least ...
SHARE = 20  # ... and so many times what the last one took, for each worker: together a twentieth of one session's time
PATIENCE = 1.0  # seconds that a reader waits for a new look, before it gets the old one
LIMIT = "20s"  # for one look: with very many messages, better no figures than a query without an end
TOO_OLD = 60.0  # seconds after which figures are left out; or three times the pause after them, if that is longer


def rivals(found: Sequence[QueueDepth], queues: int) -> int:
    """How many workers look, as one with so many queues guesses: others may have other queues, about as many each."""
    workers = [depth.workers for depth in found]
    return max(1, sum(workers) // queues, *workers)


class Depths:
    """Looks on a thread and a connection of their own, opened for each.

    So neither a blocked loop nor a frozen server is waited for, and nothing is held where nobody asks.
    """

    def __init__(self, database: Database, *, queues: int = 1) -> None:
        """`queues`: how many this worker handles."""
        self._database = database
        self._queues = queues
        self._lock = threading.Lock()
        self._looked = threading.Event()  # the look under way has ended
        self._looked.set()
        self._next_at = float("-inf")
        self._too_old = TOO_OLD
        self._found: list[QueueDepth] = []
        self._found_at = float("-inf")
        self._failed = False

    def now(self) -> tuple[list[QueueDepth], float] | None:
        """What the last look found, and how many seconds ago; None when there is none, or it is too old.

        Starts a new look if it is time for one, and waits for it a moment. From any thread.
        """
        with self._lock:
            if self._looked.is_set() and time.monotonic() >= self._next_at:
                self._looked.clear()
                try:
                    threading.Thread(target=self._look, name="postrow-depths", daemon=True).start()
                except RuntimeError:  # the process may have no more threads
                    self._looked.set()
        self._looked.wait(PATIENCE)
        with self._lock:
            age = time.monotonic() - self._found_at
            return (self._found, age) if age < self._too_old else None

    def _look(self) -> None:
        began = time.monotonic()
        found = None
        asked = True  # the database has worked for it
        try:
            with self._database.connect_sync("metrics") as conn, conn.transaction():
                conn.execute(f"set local statement_timeout = '{LIMIT}'")
                found = execute(conn, look.depths())
        except DATABASE_ERRORS as error:
            asked = isinstance(error, psycopg.errors.QueryCanceled)
            if not self._failed:
                log.warning("no depths for /metrics: %s", one_line(error))
        except Exception:
            log.exception("the look at depths for /metrics failed")
        finally:
            with self._lock:
                now = time.monotonic()
                self._failed = found is None
                if found is not None:
                    self._found, self._found_at = found, now
                pause = max(EVERY, SHARE * (now - began) * rivals(self._found, self._queues)) if asked else EVERY
                self._too_old = TOO_OLD if found is None else max(TOO_OLD, 3 * pause)
                self._next_at = now + pause
                self._looked.set()
