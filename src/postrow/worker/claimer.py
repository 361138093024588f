"""Claims messages for all of a worker's consumers, as many as have a free slot, and sleeps when there are none."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg

from postrow.drivers.psycopg3 import execute_async
from postrow.models import Lane
from postrow.ops import claims, fleet, taps
from postrow.queues import MOST_OF_A_BATCH, Consumer
from postrow.worker.acker import Acker
from postrow.worker.connections import DATABASE_ERRORS, Database, Weather
from postrow.worker.executor import Executor
from postrow.worker.feed import Feed
from postrow.worker.lanes import TAP_WINDOW
from postrow.worker.metrics import Meter
from postrow.worker.slots import Slot, runs

log = logging.getLogger("postrow.worker")

BATCH = MOST_OF_A_BATCH  # messages in one claim
MAX_BYTES = 32_000_000  # of payload text in one claim
KEEN = 0.002  # seconds until the next look, for a tap's window after one that found work and left slots free
HELD_UP = 0.02  # seconds until the next look, when the acker is behind, or groups are
# seconds between looks whether the handler is still the queue's consumer: while there is something to claim, and else
ASK_EVERY = 5.0
ASK_IDLE_EVERY = 60.0
ONCE_MORE = 2.0  # seconds until a claim that was never answered, and has nothing to give back yet, is asked for again
IDLE_AFTER = 60.0  # seconds without work, after which the poll interval is five times as long
# times the messages that the worker handles at once, and 2,000: outcomes that wait to be written before it claims no
# more, and messages that wait for others of their groups before it claims one by one
UNWRITTEN = 4
# a claim of so many messages takes turns where more workers than a few claim: each steps over what others lock
MANY, FEW = 50, 2
LOOKS_BACK = 4  # discoveries from the beginnings at one time, each on a connection of its own


class Claimer:
    """One loop on one connection, for all consumers in turn."""

    def __init__(
        self,
        database: Database,
        consumers: list[Consumer],
        executor: Executor,
        acker: Acker,
        weather: Weather,
        *,
        worker: str,
        concurrency: int,
        poll_interval: float,
        refused: Callable[[Slot], None],
        fleet: Callable[[], int] = lambda: 1,
        meter: Meter | None = None,
    ) -> None:
        self._database = database
        self._feeds = [Feed(consumer, poll_interval) for consumer in consumers]
        self._executor = executor
        self._acker = acker
        self._weather = weather
        self._worker = worker
        self._concurrency = concurrency
        self._at_once = sum(min(one.concurrency, concurrency) * (one.batch or 1) for one in consumers)
        self._poll_interval = poll_interval
        self._refused = refused
        self._fleet = fleet
        self._meter = meter
        self._wake = asyncio.Event()
        self._unanswered: dict[UUID, str] = {}  # tokens of claims whose answer never came, with their queue
        self._once_more: dict[UUID, str] = {}  # of these, those that had nothing to give back then, and may have now
        self._looks_back: set[asyncio.Task[None]] = set()  # discoveries beside the claims
        self._stopping = False
        self._short = False  # of slots: a consumer had none free, or its claim filled them
        self._worked_at = time.monotonic()

    def stop(self) -> None:
        """Claim no more; `run` ends after the call that is under way."""
        self._stopping = True
        self._wake.set()

    def tapped(self, queue: str, tenant: str) -> None:
        """A tap: look now, and again when messages whose taps were kept back may be there, of any tenant."""
        for feed in self._feeds:
            if queue not in (feed.consumer.queue.name, "*"):
                continue
            feed.second_look.heard()
            if tenant == "*" or feed.consumer.tenant in ("*", tenant):
                if "*" in (queue, tenant):
                    feed.lanes.look_again()  # resumed, or another consumer, perhaps with other limits
                    feed.lanes.made_room()
                else:
                    feed.lanes.tapped(tenant)
                    feed.tapped_at = feed.tapped_at or time.monotonic()
                if feed.consumer.max_in_flight is not None:
                    feed.lanes.made_room()  # it may be for that
            self._wake.set()

    def listening(self) -> None:
        """Taps can be heard (again); what came before needs a look, also what relied on a tap that was missed."""
        for feed in self._feeds:
            feed.second_look.heard()
        self.look_everywhere()

    def look_everywhere(self) -> None:
        """Discover the lanes of every queue, now."""
        for feed in self._feeds:
            feed.lanes.look_again()
        self._wake.set()

    def look_at(self, queues: set[str]) -> None:
        """Discover the lanes of these queues, now."""
        for feed in self._feeds:
            if feed.consumer.queue.name in queues:
                feed.lanes.look_again()
        self._wake.set()

    def made_room(self, queue: str, tenant: str) -> None:
        """An outcome was written that lets another message be claimed: the next of a group, or within a limit."""
        for feed in self._feeds:
            if queue == feed.consumer.queue.name and feed.consumer.tenant in ("*", tenant):
                if feed.consumer.limited:
                    feed.lanes.made_room(tenant if feed.consumer.max_in_flight is None else None)
                else:
                    feed.lanes.tapped(tenant)
                self._wake.set()

    def slot_freed(self) -> None:
        """A handler has ended: of interest only where the last round had too few slots."""
        if self._short:
            self._wake.set()

    async def run(self) -> None:
        """Claim until stopped. Raises when the database is away: to be called again."""
        async with await self._database.connect("claimer") as conn:
            for feed in self._feeds:
                feed.lanes.forget()
            await self._give_back(conn, self._unanswered)
            try:
                while not self._stopping:
                    self._wake.clear()
                    await self._give_back(conn, self._once_more)
                    found, full = await self._round(conn)
                    self._weather.fine("claimer")
                    if found:
                        self._worked_at = time.monotonic()
                    await self._pause(full=full)
            finally:
                for look in self._looks_back:
                    look.cancel()
                await asyncio.gather(*self._looks_back, return_exceptions=True)

    @property
    def replaced(self) -> set[Consumer]:
        """Consumers of which this worker takes nothing more, as another handler has the queue. From any thread."""
        return {feed.consumer for feed in list(self._feeds) if feed.replaced_by is not None}

    @property
    def claiming(self) -> bool:
        """Whether a claim is not answered yet."""
        return bool(self._unanswered)

    async def give_back(self) -> None:
        """After a stop in the middle of a claim: give back what it took."""
        if self._unanswered:
            async with await self._database.connect("claimer") as conn:
                await self._give_back(conn, self._unanswered)

    async def _give_back(self, conn: psycopg.AsyncConnection[Any], lost: dict[UUID, str]) -> None:
        for token, queue in list(lost.items()):
            given_back = await execute_async(conn, claims.release_claim(token, queue))
            del lost[token]
            if given_back:
                log.info("gave back %s messages of %s, whose claim was never answered", given_back, queue)
            elif lost is self._unanswered:  # the server may be at it still, if only the connection to it was lost
                asyncio.get_running_loop().call_later(ONCE_MORE, self._ask_once_more, token, queue)

    def _ask_once_more(self, token: UUID, queue: str) -> None:
        self._once_more[token] = queue
        self._wake.set()

    def _free(self, feed: Feed) -> int:
        """How many messages may be claimed: of a handler of many, so many for each call that is free."""
        own = feed.consumer.concurrency - self._executor.running.get(feed.consumer, 0)
        return min(own, self._concurrency - self._executor.total) * (feed.consumer.batch or 1)

    def _held_up(self) -> bool:
        return self._acker.pending > self._most_held

    @property
    def _most_held(self) -> int:
        return max(2000, UNWRITTEN * self._at_once)

    async def _round(self, conn: psycopg.AsyncConnection[Any]) -> tuple[bool, bool]:
        """One claim for each consumer with free slots. Whether anything was found, and whether any left something."""
        found = full = self._short = False
        self._feeds.append(self._feeds.pop(0))  # each is first in its turn
        for feed in list(self._feeds):
            if self._stopping or self._held_up():
                self._short = True
                break
            # with so many that wait for others of their groups only the first of a group, which can start
            most = 1 if self._executor.waiting > self._most_held else BATCH
            limit = min(self._free(feed), most)
            count = await self._claim(conn, feed, limit) if limit > 0 else 0
            found = found or count > 0
            full = full or count >= limit > 0 or (count > 0 and feed.lanes.more)
            self._short = self._short or count >= limit
        return found, full

    async def _consumes(self, conn: psycopg.AsyncConnection[Any], feed: Feed) -> bool:
        """Whether the handler is the queue's consumer still; asked for now and then."""
        every = ASK_EVERY if feed.lanes.ready or feed.replaced_by is not None else ASK_IDLE_EVERY
        if time.monotonic() - feed.asked_at > every:
            feed.registered(await execute_async(conn, fleet.consumers(feed.consumer.queue.name)))
        return feed.replaced_by is None

    async def _claim(self, conn: psycopg.AsyncConnection[Any], feed: Feed, limit: int) -> int:
        consumer, lanes = feed.consumer, feed.lanes
        name = consumer.queue.name
        if not await self._consumes(conn, feed):
            return 0
        turn = limit >= MANY and self._fleet() > FEW
        if turn and feed.turn_in > 0:
            return 0
        tapped_at, feed.tapped_at = feed.tapped_at, None
        # what was tapped goes first, but not twice: it is there, and the look is for what may be
        feed.put_off = tapped_at is not None and lanes.ready and not feed.put_off
        if not feed.put_off and await self._look(conn, feed) and not await self._consumes(conn, feed):
            return 0
        chosen, per_lane = lanes.choose(limit, feed.others)
        if not chosen:
            return 0
        token = uuid4()
        sent = time.monotonic()
        self._unanswered[token] = name
        op = claims.claim_lanes(
            name,
            chosen,
            per_lane=per_lane,
            limit=limit,
            lease=consumer.lease,
            worker=self._worker,
            token=token,
            max_bytes=MAX_BYTES,
            turn=turn,
        )
        answer = await execute_async(conn, op, binary=True)
        del self._unanswered[token]
        feed.turned(away=not answer.turn, fleet=self._fleet())
        if not answer.turn:
            feed.tapped_at = feed.tapped_at or tapped_at
            return 0
        lanes.claimed(
            answer.edges,
            {(t, p): after for t, p, after in chosen},
            answer.took,
            grouped=any(claimed.group_key is not None for claimed in answer.messages),
        )
        slots = [Slot(claimed, token, consumer, sent) for claimed in answer.messages]
        for slot in slots:
            if slot.claimed.target is not None:
                self._hand_over(slot)
        started = slots if self._stopping else runs(slots)
        self._tell(consumer, len(slots), [] if self._stopping else started, sent=sent, tapped_at=tapped_at)
        if self._stopping:
            for slot in started:
                self._refused(slot)
        else:
            self._executor.start(started)
        return len(answer.messages)

    async def _look(self, conn: psycopg.AsyncConnection[Any], feed: Feed) -> bool:
        """Discover lanes, where that is due, between claims and beside them. Whether it was between."""
        lanes = feed.lanes
        lanes.fleet = feed.second_look.fleet = self._fleet()
        asked_at = time.monotonic()
        if feed.second_look.due_at <= asked_at:
            # before the look: what is open no more by then, the look sees
            kept_back = await execute_async(conn, taps.kept_back(feed.consumer.queue.name))
            feed.second_look.looks(kept_back=kept_back, asked_at=asked_at)
            lanes.look_again(whole=False)
        if lanes.wants_look_back and self._may_look_back:
            look = asyncio.create_task(self._look_back(feed))
            self._looks_back.add(look)
            look.add_done_callback(self._looked_back)
        if not lanes.wants_look:
            return False
        marks, whole = lanes.marks, lanes.wants_whole_look
        seen, took, on_the_way = await self._discover(conn, feed, marks=marks, others=whole)
        lanes.looked(seen, took, on_the_way=on_the_way, deep=not marks, whole=whole)
        feed.second_look.took(took, on_the_way=on_the_way)
        return True

    async def _look_back(self, feed: Feed) -> None:
        """Discover lanes from their beginnings on a connection of its own, as it takes long: claims go on meanwhile."""
        lanes = feed.lanes
        back = lanes.look_back()
        rests = 0.0
        try:
            async with await self._database.connect("look back") as conn:
                for after, to in back.stretches():
                    await asyncio.sleep(rests)
                    seen, took, _ = await self._discover(conn, feed, after=after, to=to)
                    lanes.saw_back(seen, took)
                    rests = back.read(len(seen), took)
                    self._wake.set()
            lanes.looked_back(back)
        except DATABASE_ERRORS:
            pass  # the next is between claims, and says what is wrong
        finally:
            if lanes.looking_back:
                lanes.look_back_failed()

    @property
    def _may_look_back(self) -> bool:
        return len(self._looks_back) < LOOKS_BACK

    def _looked_back(self, look: asyncio.Task[None]) -> None:
        self._looks_back.discard(look)
        self._wake.set()  # another may begin

    async def _discover(
        self, conn: psycopg.AsyncConnection[Any], feed: Feed, **part: Any
    ) -> tuple[list[Lane], float, float]:
        """The lanes of a queue that are the consumer's; `part`: as of claims.lanes.

        And how many seconds that took the server, and how many more the way there and back, and the event loop.
        """
        sent = time.monotonic()
        op = claims.lanes(feed.consumer.queue.name, worker=self._worker, **part)
        answer = await execute_async(conn, op, binary=True)
        elapsed = time.monotonic() - sent
        took = min(max(0.0, answer.took), elapsed)  # the server's clock may have been set meanwhile
        consumer = feed.consumer
        own = [
            lane for lane in answer.lanes if consumer.tenant in ("*", lane.tenant) and lane.tenant not in feed.others
        ]
        return own, took, elapsed - took

    def _tell(
        self, consumer: Consumer, messages: int, started: list[Slot], *, sent: float, tapped_at: float | None
    ) -> None:
        if self._meter is None:
            return
        now = time.monotonic()
        self._meter.claimed(consumer, messages, started, now - sent)
        if tapped_at is not None and messages:
            self._meter.heard(consumer, now - tapped_at)

    def _hand_over(self, slot: Slot) -> None:
        """A message targeted at this worker comes with the claim of any consumer of its queue: give it to its own."""
        all_ = [feed.consumer for feed in self._feeds]
        by_tenant = {consumer.tenant: consumer for consumer in all_ if consumer.queue is slot.consumer.queue}
        own = by_tenant.get(slot.tenant) or by_tenant.get("*") or slot.consumer
        if own is not slot.consumer:
            slot.consumer = own
            slot.renewed = float("-inf")  # it has the lease of the other consumer: renew it with its own

    async def _pause(self, *, full: bool) -> None:
        """Go on at once while slots are filled, soon after a find, else when woken, when due, or in time."""
        if full and any(self._free(feed) > 0 for feed in self._feeds) and not self._held_up():
            return  # before the handlers have a turn: they have it while the database claims
        now = time.monotonic()
        discover = True
        # what is due where no slot is free waits for one, which wakes
        asked = [feed for feed in self._feeds if self._free(feed) > 0 and feed.replaced_by is None]
        turn_in = min((feed.turn_in for feed in asked), default=0.0)
        if self._held_up():
            pause, discover = HELD_UP, False
        elif all(self._free(feed) <= 0 for feed in self._feeds):
            pause = self._poll_interval  # a slot that is freed wakes
        elif turn_in > 0:
            pause, discover = turn_in, False  # it is all that any of them waits for
        elif now - self._worked_at < TAP_WINDOW:
            pause = KEEN
        else:
            idle = now - self._worked_at > IDLE_AFTER
            pause = self._poll_interval * (5 if idle else 1)
            may = self._may_look_back  # else the end of one wakes
            pause = min([pause, *(feed.due_in(may_look_back=may) for feed in asked)])
            held = min((feed.held_for for feed in asked), default=math.inf)
            if held <= pause:  # its lanes are known
                pause, discover = held, False
            second = min((feed.second_look_in for feed in asked), default=math.inf)
            if second < pause:  # of one queue, and not of all
                pause, discover = second, False
        try:
            async with asyncio.timeout(pause):
                await self._wake.wait()
        except TimeoutError:
            if discover and pause > KEEN:
                self.look_everywhere()
