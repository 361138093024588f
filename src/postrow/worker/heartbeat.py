"""Renews leases and says that the worker lives, on a thread and a connection of its own: no handler can starve it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import psycopg

from postrow.drivers.psycopg3 import execute
from postrow.errors import BadArgumentError
from postrow.models import Outcome as Answer
from postrow.ops import Op, claims
from postrow.worker.connections import DATABASE_ERRORS, Backoff, Database, Weather
from postrow.worker.outcomes import lease_lost
from postrow.worker.slots import Slot, Slots

log = logging.getLogger("postrow.worker")

BEAT_EVERY = 5.0  # seconds between signs of life in postrow.worker
IDLE_BEAT_EVERY = 20.0  # the same, of a worker that holds no message: nothing of it waits to be found dead
CHUNK = 1000  # leases renewed in one call
BLOCKED = 2.0  # seconds without a turn of the event loop that are worth a warning

Request = tuple[Slot, timedelta, "Future[None]"]


class Heartbeat:
    """A thread that looks several times in each third of the shortest lease for leases that are due.

    Args:
        database: where to connect.
        slots: what is held.
        lost: called in the event loop with a slot that another worker has.
        beat: makes this worker's sign of life, every 5 s.
        farewell: what it says when it stops.
        shortest: the shortest lease of the worker's consumers.
    """

    def __init__(
        self,
        database: Database,
        slots: Slots,
        weather: Weather,
        *,
        lost: Callable[[Slot], None],
        beat: Callable[[], Op[int]],
        farewell: Op[None],
        shortest: timedelta,
    ) -> None:
        self._database = database
        self._slots = slots
        self._weather = weather
        self._lost = lost
        self._beat = beat
        self._farewell = farewell
        self._tick = min(1.0, max(0.03, shortest.total_seconds() / 15))
        self._loop = asyncio.get_running_loop()
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._next_beat = self._next_idle_beat = 0.0
        self._asked_loop: float | None = None  # when a turn was asked for that has not come yet
        self._warned_at = 0.0
        self._wishes: dict[Slot, float] = {}  # leases that handlers asked for while their rows were locked
        self.fleet = 1  # workers that live and have a queue of this one's
        self._thread = threading.Thread(target=self._run, name="postrow-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def loop_blocked_for(self) -> float:
        """Seconds for which the event loop has owed a turn; 0 when it takes them."""
        asked = self._asked_loop
        return 0.0 if asked is None else time.monotonic() - asked

    def extend(self, slot: Slot, lease: timedelta) -> Future[None]:
        """Renew one slot's lease for so long from now, at a handler's wish."""
        future: Future[None] = Future()
        self._requests.put((slot, lease, future))
        if not self._thread.is_alive():  # a handler that outlived the worker's stop
            self._refuse_requests()
        return future

    def stop(self) -> None:
        """Let it end soon, after the worker's farewell if the database is there. `alive` says when it has."""
        self._stopping.set()
        self._requests.put(None)

    def _run(self) -> None:
        backoff = Backoff(cap=5.0)
        while not self._stopping.is_set():
            try:
                with self._database.connect_sync("heartbeat") as conn:
                    self._next_beat = self._next_idle_beat = 0.0
                    self._serve(conn, backoff)
            except DATABASE_ERRORS as error:
                self._weather.failed("heartbeat", error)
                self._wait(backoff.pause())
            except Exception:
                log.exception("the heartbeat failed, and begins again")
                self._wait(backoff.pause())
        self._refuse_requests()

    def _wait(self, pause: float) -> None:
        """Without the database the event loop is watched all the same."""
        end = time.monotonic() + pause
        while (left := end - time.monotonic()) > 0 and not self._stopping.wait(min(left, self._tick)):
            self._watch_loop()

    def _serve(self, conn: psycopg.Connection[Any], backoff: Backoff) -> None:
        while not self._stopping.is_set():
            self._watch_loop()
            self._grant_wishes(conn)
            for lease, due in _by_lease(self._newest(self._slots.due())):
                for start in range(0, len(due), CHUNK):
                    self._renew(conn, due[start : start + CHUNK], lease)
            if time.monotonic() >= (self._next_beat if len(self._slots) else self._next_idle_beat):
                self._next_beat = time.monotonic() + BEAT_EVERY
                self._next_idle_beat = time.monotonic() + IDLE_BEAT_EVERY
                self.fleet = max(1, execute(conn, self._beat()))
                self._weather.fine("heartbeat")
                backoff.reset()
            self._serve_requests(conn)
        execute(conn, self._farewell)

    def _newest(self, due: Iterable[Slot]) -> list[Slot]:
        """Of each message the last claim. One before it, of which this worker has not heard that it is lost, is."""
        newest: dict[claims.Key, Slot] = {}
        for slot in due:
            key = (slot.tenant, slot.id)
            other = newest.setdefault(key, slot)
            if other is not slot:
                older, newest[key] = sorted((other, slot), key=lambda slot: slot.sent)
                self._lose(older)
        return list(newest.values())

    def _lose(self, slot: Slot) -> None:
        slot.gone = True
        self._loop.call_soon_threadsafe(self._lost, slot)

    def _renew(
        self, conn: psycopg.Connection[Any], due: Sequence[Slot], lease: timedelta
    ) -> Mapping[claims.Key, Answer]:
        sent = time.monotonic()
        held = [claims.Held(slot.tenant, slot.id, slot.token) for slot in due]
        answers = execute(conn, claims.extend(held, lease), binary=True)
        for slot in due:
            answer = answers.get((slot.tenant, slot.id))
            if answer == "accepted":
                slot.renewed = sent
            elif answer == "stale" and slot in self._slots and slot.outcome is None:
                self._lose(slot)
            elif answer == "unknown":
                slot.gone = True  # settled: by our own acker just now, or by the handler itself, which goes on
            # busy: its own transaction decides about it; the next look asks again
        return answers

    def _serve_requests(self, conn: psycopg.Connection[Any]) -> None:
        """Wait a tick, and meanwhile do what handlers ask for."""
        end = time.monotonic() + self._tick
        while (left := end - time.monotonic()) > 0:
            try:
                request = self._requests.get(timeout=left)
            except queue.Empty:
                return
            if request is None:
                return
            slot, lease, future = request
            if not future.set_running_or_notify_cancel():
                continue  # its handler was cancelled meanwhile
            try:
                granted = self._grant(conn, slot, lease)
            except BadArgumentError as error:  # a lease that the database refuses: the handler's fault
                future.set_exception(error)
                continue
            except BaseException as error:
                future.set_exception(error)
                raise
            if granted:
                future.set_result(None)
            else:
                future.set_exception(lease_lost(slot))

    def _grant(self, conn: psycopg.Connection[Any], slot: Slot, lease: timedelta) -> bool:
        """Renew one lease as its handler asked. False: the message is not ours any more."""
        now = time.monotonic()
        if now < slot.deadline:  # a shorter one would end before the next renewal
            lease = max(lease, slot.consumer.lease)
        until = now + lease.total_seconds()
        answer = self._renew(conn, [slot], lease).get((slot.tenant, slot.id))
        if answer == "accepted":
            slot.held_until = until
            self._wishes.pop(slot, None)
        elif answer == "busy":  # by the handler's own transaction, perhaps: so it does not wait for it
            self._wishes[slot] = until
        return answer in {"accepted", "busy"}

    def _grant_wishes(self, conn: psycopg.Connection[Any]) -> None:
        for slot, until in list(self._wishes.items()):
            left = until - time.monotonic()
            if left <= 0 or slot not in self._slots or not self._grant(conn, slot, timedelta(seconds=left)):
                self._wishes.pop(slot, None)

    def _refuse_requests(self) -> None:
        while True:
            try:
                request = self._requests.get_nowait()
            except queue.Empty:
                return
            if request is not None and request[2].set_running_or_notify_cancel():
                request[2].set_exception(lease_lost(request[0]))

    def _watch_loop(self) -> None:
        if self._asked_loop is None:
            self._asked_loop = time.monotonic()
            with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has stopped
                self._loop.call_soon_threadsafe(self._turned)
        blocked = self.loop_blocked_for
        if blocked > BLOCKED and time.monotonic() - self._warned_at > 10:
            self._warned_at = time.monotonic()
            log.warning(
                "the event loop has been blocked for %.1f s: a handler computes or waits without await; "
                "make it a plain def, which runs in a thread",
                blocked,
            )

    def _turned(self) -> None:
        self._asked_loop = None


def _by_lease(slots: list[Slot]) -> list[tuple[timedelta, list[Slot]]]:
    slots.sort(key=lambda slot: slot.consumer.lease)
    return [(lease, list(group)) for lease, group in itertools.groupby(slots, key=lambda slot: slot.consumer.lease)]
