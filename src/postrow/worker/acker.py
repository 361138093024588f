"""Writes outcomes in batches, each fenced by its token. Nothing is forgotten before the database has answered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from postrow.drivers.psycopg3 import execute_async
from postrow.errors import BadArgumentError, PostrowError
from postrow.errortext import clean_text
from postrow.models import Outcome as Answer
from postrow.ops import Op, claims
from postrow.worker.connections import Database, Weather
from postrow.worker.metrics import End, Meter
from postrow.worker.slots import Outcome, Slot, Slots, Verdict

log = logging.getLogger("postrow.worker")

BATCH = 500
BUSY_FIRST = 0.005  # seconds until a row that was locked is tried again, alone: a claim of its group is that short ...
BUSY_AGAIN = 0.2  # ... a handler's own transaction is not
ENDS: dict[str, End] = {"done": "done", "fail": "failed", "release": "released", "bury": "buried", "lost": "lost"}


class Acker:
    """Takes finished slots from the executor; `run` writes them until `close` and all is written.

    Args:
        retried: called with the queues of which failures were written: their messages are due again before long.
        made_room: called with queue and tenant when a message of a group, or within a limit, is out of the way.
        meter: is told what became of each message.
    """

    def __init__(
        self,
        database: Database,
        slots: Slots,
        weather: Weather,
        *,
        retried: Callable[[set[str]], None],
        made_room: Callable[[str, str], None],
        meter: Meter | None = None,
    ) -> None:
        self._database = database
        self._retried = retried
        self._made_room = made_room
        self._meter = meter
        self._slots = slots
        self._weather = weather
        self._waiting: deque[Slot] = deque()
        self._writing = 0  # in the batch under way
        self._busy: list[tuple[float, Slot]] = []
        self._some = asyncio.Event()
        self._closing = False
        self.counts: dict[str, int] = {"done": 0, "fail": 0, "release": 0, "bury": 0, "lost": 0}

    @property
    def pending(self) -> int:
        """Outcomes that are not written yet."""
        return len(self._waiting) + self._writing + len(self._busy)

    @property
    def pending_busy(self) -> int:
        """Of these, those whose rows were locked by others when they were last tried."""
        return len(self._busy)

    def put(self, slot: Slot) -> None:
        """Take a slot whose outcome is set."""
        if slot.lost:
            self._drop(slot)
            return
        if slot.settled and slot.claimed.group_key is None:
            self._settled(slot)
            return
        self._waiting.append(slot)
        self._some.set()

    def close(self) -> None:
        """Let `run` end when all is written."""
        self._closing = True
        self._some.set()

    async def run(self) -> None:
        """Write outcomes; ends after `close`. Raises when the database is away: to be called again, nothing is lost."""
        conn = await self._database.connect("acker")
        async with conn:
            while True:
                if not self._waiting:
                    self._weather.fine("acker")
                await self._wait()
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                if not batch:
                    if self._closing and not self._busy:
                        return
                    continue
                self._writing = len(batch)
                try:
                    await self._write(conn, batch)
                except BaseException:
                    # back to the front, those without an answer: the fence makes a repeat harmless
                    busy = {slot for _, slot in self._busy}
                    again = [slot for slot in reversed(batch) if slot in self._slots and slot not in busy]
                    self._waiting.extendleft(again)
                    raise
                finally:
                    self._writing = 0
                self._weather.fine("acker")

    async def _wait(self) -> None:
        now = time.monotonic()
        self._waiting.extend(slot for at, slot in self._busy if at <= now)
        self._busy = [(at, slot) for at, slot in self._busy if at > now]
        if self._waiting or (self._closing and not self._busy):
            return
        self._some.clear()
        pause = min((at for at, _ in self._busy), default=now + 5) - now
        try:
            async with asyncio.timeout(pause):
                await self._some.wait()
        except TimeoutError:
            pass  # a busy row's time has come, or it is only a look

    async def _write(self, conn: psycopg.AsyncConnection[Any], batch: list[Slot]) -> None:
        settled: list[Slot] = []
        groups: dict[Verdict, list[Slot]] = {"done": [], "fail": [], "bury": [], "release": []}
        for slot in batch:
            assert slot.outcome is not None
            (settled if slot.settled else groups[slot.outcome.verdict]).append(slot)
        for verdict, group in groups.items():
            if not group:
                continue
            try:
                answers = await execute_async(conn, _op(verdict, group), binary=True)
            except (BadArgumentError, psycopg.DataError, psycopg.IntegrityError) as error:
                await self._write_singly(conn, group, error)
                continue
            if verdict == "done" and not answers:  # all were accepted
                self._gone(group, "done")
                continue
            for slot in group:
                answer = answers.get((slot.tenant, slot.id), "accepted" if verdict == "done" else "unknown")
                self._answered(slot, answer)
                if answer == "unknown" and slot.claimed.group_key is not None:
                    settled.append(slot)
            if verdict == "fail":
                self._retried({slot.queue for slot in group})
        if settled:
            await self._free_groups(conn, settled)

    async def _free_groups(self, conn: psycopg.AsyncConnection[Any], settled: list[Slot]) -> None:
        """Of messages that were acknowledged in a transaction of their handlers' own: let their groups go on.

        That transaction may not have seen the ack of the message before, which this worker wrote at the same time.
        """
        groups = {(slot.queue, slot.tenant, slot.claimed.group_key or "") for slot in settled}
        await execute_async(conn, claims.free_groups(sorted(groups)))
        for slot in settled:
            if slot.settled:
                self._settled(slot)
            else:
                self._made_room(slot.queue, slot.tenant)

    async def _write_singly(
        self, conn: psycopg.AsyncConnection[Any], group: list[Slot], error: PostrowError | psycopg.Error
    ) -> None:
        """One outcome of a batch was refused, such as a snooze until the year 5000: the others must not suffer."""
        for slot in group:
            assert slot.outcome is not None
            if len(group) > 1:
                await self._write(conn, [slot])
                continue
            if slot.outcome.verdict != "fail":
                text = clean_text(f"the outcome could not be written: {error}", limit=800)
                slot.outcome = Outcome("fail", text, type(error).__name__)
            # alone, a failure without its own time to try again has nothing that can be refused
            answers = await execute_async(conn, _op("fail", [slot], plain=True))
            self._answered(slot, answers.get((slot.tenant, slot.id), "unknown"))

    def _answered(self, slot: Slot, answer: Answer) -> None:
        assert slot.outcome is not None
        if answer == "busy":
            pause = BUSY_AGAIN if slot.busy else BUSY_FIRST
            slot.busy = True
            self._busy.append((time.monotonic() + pause, slot))
        elif answer == "stale":
            log.warning(
                "the outcome (%s) of %s / %s %s was refused: another worker holds the message",
                slot.outcome.verdict,
                slot.queue,
                slot.tenant,
                slot.id,
                extra=self._slots.about(slot),
            )
            if self._meter is not None:
                self._meter.lost(slot)
            self._drop(slot)
        else:  # accepted; or unknown: a repeat after a lost answer, or the handler has settled it itself
            self._gone((slot,), slot.outcome.verdict)

    def _gone(self, slots: Sequence[Slot], word: str) -> None:
        self.counts[word] += len(slots)
        if self._meter is not None:
            for slot in slots:
                self._meter.ended(slot, ENDS[word])
        self._slots.discard(slots)
        for slot in slots:
            if slot.claimed.group_key is not None or slot.consumer.limited:
                self._made_room(slot.queue, slot.tenant)

    def _settled(self, slot: Slot) -> None:
        """Its handler's own transaction has acknowledged it; what the handler did after that changes nothing."""
        assert slot.outcome is not None
        if slot.outcome.verdict != "done":
            log.warning(
                "%s / %s %s is done, by its handler's transaction; what came after that is not tried again: %s %s",
                slot.queue,
                slot.tenant,
                slot.id,
                slot.outcome.verdict,
                slot.outcome.error,
                extra=self._slots.about(slot),
            )
        self._gone((slot,), "done")

    def _drop(self, slot: Slot) -> None:
        self._gone((slot,), "lost")


def _op(verdict: str, group: list[Slot], *, plain: bool = False) -> Op[dict[claims.Key, Answer]]:
    if verdict == "done":
        return claims.ack_at([slot.claimed for slot in group], [slot.token for slot in group])
    held = [claims.Held(slot.tenant, slot.id, slot.token) for slot in group]
    outcomes = [slot.outcome for slot in group if slot.outcome is not None]
    if verdict == "bury":
        return claims.bury(held, reasons=[outcome.error for outcome in outcomes], wait=False)
    if verdict == "release":
        return claims.release(held, until=[outcome.until for outcome in outcomes], wait=False)
    return claims.fail(
        held,
        errors=[outcome.error for outcome in outcomes],
        types=[outcome.type for outcome in outcomes],
        tracebacks=[outcome.traceback for outcome in outcomes],
        retry_after=[None if plain else outcome.retry_after for outcome in outcomes],
        wait=False,
    )
