"""What a worker remembers of a queue's lanes: which are worth a look, and from where. All of it is a hint."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from datetime import datetime

from postrow.models import Lane, LaneEdge
from postrow.worker.look_back import LookBack, spread

Key = tuple[str, int]

DEEP_EVERY = 10.0  # seconds: the longest that a lane is claimed from its watermark without a look from its beginning
CLAIMED_IN = 1.0  # seconds that such a look leaves of these for the claim of what it has found
LOOK_SHARE = 20  # times what a discovery took, for each worker, until the next: a twentieth of one session's time
WHOLE_EVERY = 1.0  # seconds between discoveries that also look for lanes without a watermark, where the others are many
SLOW_LOOK = 0.01  # seconds of a discovery beyond those of its lanes: it walked dead entries
LOOK_A_LANE = 20e-6  # seconds of a discovery for a lane, about twice what it takes
SLOW = 0.005  # seconds that a claim took over what its rows account for: it walked dead entries
SLOW_GROUPED = 0.02  # the same, where the queue has groups: sorting them out takes longer, whatever was walked
FIXED_ROWS = 25  # a claim's fixed cost, in rows
MOST_LANES = 256  # in one claim
TAP_WINDOW = 0.012  # seconds after a find in which the next message may come without a tap of its own, as a rule
AGING = 20  # of so many claims that have a choice, one begins with the last priority
LOCKED_FIRST = 0.002  # seconds until the next look at a lane of which nothing was to be had ...
LOCKED_MOST = 0.25  # ... and at most, doubling
HELD_MOST = 5.0  # seconds that a lane is left alone for want of a token: its limit may be another one by then
REMEMBERED = 10_000  # lanes; more, and all watermarks are forgotten


class _LaneState:
    __slots__ = ("after", "deep_at", "gave", "gave_at", "late", "late_known_at", "late_since", "slow", "tapped_at")

    def __init__(self) -> None:
        self.after: datetime | None = None
        self.deep_at = -math.inf
        self.gave_at = -math.inf
        self.late: datetime | None = None  # when the first message was due, where that was seen to be before `after`
        self.late_since = -math.inf  # and when the look began that saw it,
        self.late_known_at = -math.inf  # and when it said so
        self.gave = math.inf  # how many by its last claim; infinity: all that was asked for, so it has more, or unknown
        self.slow = 0  # slow claims from the beginning, one after the other; from two on the watermark is used
        self.tapped_at = -math.inf


class Lanes:
    """The lanes of one queue, for one consumer.

    A lane is claimed from its beginning, until two such claims in a row were slow: then from its watermark, with a
    claim from the beginning at least each 10 s. A watermark is assigned by each claim, never compared. A lane that gave
    something is looked at again until the window has passed in which its next tap may have been held back.

    Discoveries likewise: when one from the beginnings of all lanes was slow, the next begin at the watermarks. Those
    from the beginnings then run beside the claims, so that these need not wait, never more than 10 s apart, and claims
    need not begin at the beginning: what was committed late, behind a watermark, such a discovery has seen.
    """

    def __init__(self) -> None:
        self._states: dict[Key, _LaneState] = {}
        self._known: dict[str, list[Key]] = {}  # the same, by tenant
        self._ready: dict[Key, None] = {}
        self._best = math.inf  # seconds a row, of late
        self._next_look = -math.inf
        self._deep_slow = False  # whether the last discovery from the beginnings was
        self._deep_at = -math.inf  # when it began
        self._worked = 0.0  # seconds that it took, without rests
        self._deep_due = -math.inf  # when the next is, if a look was asked for since
        self._deep_latest = -math.inf  # and if none was
        self.looking_back = False  # whether one is under way beside the claims
        self.fleet = 1  # workers that discover the same lanes
        self._called_at = -math.inf  # when a look was asked for,
        self._whole_called_at = -math.inf  # and when for lanes that are not known, too
        self._whole_at = -math.inf  # when the last such began
        self._chosen_at = -math.inf
        self._due_at = math.inf
        self._held: dict[Key, float] = {}  # lanes that a limit holds back, until then or until room is made
        self._asked = (0, 0)  # by the last claim: of one lane, and of all
        self.more = False  # whether the last claim left something in a lane, as it gave all that was asked of it
        self._turns = 0  # claims that had a choice of priorities
        self._slow = SLOW
        self._limited = False  # whether a limit has held lanes back
        self._in_vain = 0  # discoveries that found something ready of which a claim then got nothing

    def forget(self) -> None:
        """After a reconnect, or a jump of the clock: begin anew."""
        fleet = self.fleet
        self.__init__()  # type: ignore[misc]
        self.fleet = fleet

    def tapped(self, tenant: str) -> None:
        """A message of this tenant was committed, or may be: its lanes are worth a look."""
        self._in_vain = 0
        if tenant not in self._known:
            self.look_again()
            return
        now = time.monotonic()
        for key in self._known[tenant]:
            self._states[key].tapped_at = now
            self._ready[key] = None
            self._held.pop(key, None)

    def made_room(self, tenant: str | None = None) -> None:
        """Within a limit there may be room again, of a tenant or of all."""
        self._in_vain = 0
        for key in list(self._held) if tenant is None else self._known.get(tenant, ()):
            self._held.pop(key, None)
            self._ready[key] = None

    def look_again(self, *, whole: bool = True) -> None:
        """Discover lanes before the next claim; not `whole`: those that are known may do."""
        self._called_at = time.monotonic()
        if whole:
            self._whole_called_at = self._called_at
        self._next_look = -math.inf

    @property
    def wants_look(self) -> bool:
        """Whether lanes should be discovered now."""
        now = time.monotonic()
        return now >= self._next_look or now >= self._due_at

    @property
    def wants_whole_look(self) -> bool:
        """Whether the next discovery should look between the lanes with watermarks, too, for others: each second."""
        now = time.monotonic()
        return (
            not self._deep_slow
            or self._whole_called_at >= self._whole_at
            or now >= min(self._due_at, self._whole_at + WHOLE_EVERY)
        )

    @property
    def ready(self) -> bool:
        """Whether there is a lane to claim from."""
        return bool(self._ready)

    @property
    def marks(self) -> list[tuple[str, int, datetime]]:
        """The watermarks at which the next discovery between claims begins; none: it begins at the beginnings."""
        if not self._deep_slow:
            return []
        return [(*key, state.late or state.after) for key, state in self._states.items() if state.after is not None]

    def looked(
        self, lanes: list[Lane], took: float, *, on_the_way: float = 0.0, deep: bool = True, whole: bool = True
    ) -> None:
        """What a discovery between claims found, in how many seconds of the server; `deep`: from the beginnings.

        `on_the_way`: seconds beyond these, there and back. They say nothing of the queue, but claims wait for them too:
        they are to be a twentieth of this worker's time, as the server's are of one session's for all workers.

        Not `whole`: of the lanes with watermarks; of the others it says nothing. Those from the beginnings are whole.

        It has not seen what was committed while it ran: taps of that time still hold.
        """
        now = time.monotonic()
        began = now - took - on_the_way
        whole = whole or deep
        longest = max(DEEP_EVERY - 2 * (took + on_the_way), took)
        way = min(LOOK_SHARE * on_the_way, longest)
        if self._called_at < began:
            self._next_look = now + max(self._pause(took, longest), way)
        if deep:
            self._note_late(lanes, began)
            # the next is read in pages, the last of which is later
            later = took + on_the_way + spread(took, len(self._known))
            self._looked_deep(began, took, later, slow=took > SLOW_LOOK + LOOK_A_LANE * len(lanes))
            if self.marks:  # the next is quicker
                self._next_look = min(self._next_look, now + max(self._pause(0.0, DEEP_EVERY), way))
        due = [now + lane.due_in for lane in lanes if not lane.ready]
        if whole:
            self._whole_at = began
        else:
            due.append(self._due_at)
        kept = [key for key in self._ready if self._unseen(key, began, whole=whole)]
        self._ready = dict.fromkeys((lane.tenant, lane.priority) for lane in lanes if lane.ready)
        self._ready.update(dict.fromkeys(kept))
        self._due_at = min(due, default=math.inf)

    def _unseen(self, key: Key, began: float, *, whole: bool) -> bool:
        """Whether a discovery may not have seen what is in a lane."""
        state = self._states.get(key)
        if state is None:
            return not whole
        late = state.late is not None and state.late_known_at >= began  # it began behind that, at the watermark
        return state.tapped_at >= began or late or not (whole or state.after)

    @property
    def wants_look_back(self) -> bool:
        """Whether lanes should be discovered from their beginnings now, beside the claims."""
        return time.monotonic() >= self._look_back_at

    @property
    def _look_back_at(self) -> float:
        if not self._deep_slow or self.looking_back:
            return math.inf
        return self._deep_due if self._called_at > self._deep_at else self._deep_latest

    def look_back(self) -> LookBack:
        """One begins."""
        self.looking_back = True
        return LookBack(self._known, self._worked)

    def saw_back(self, lanes: list[Lane], took: float) -> None:
        """What a page of it found, in how many seconds of the server.

        Claims have gone on: only what they cannot have seen counts.
        """
        now = time.monotonic()
        for key in self._note_late(lanes, now - took):
            self._ready[key] = None
        for lane in lanes:
            key = (lane.tenant, lane.priority)
            if (state := self._states.get(key)) is not None and state.after is not None:
                continue
            if lane.ready:
                self._ready[key] = None
            else:
                self._due_at = min(self._due_at, now + lane.due_in)

    def looked_back(self, back: LookBack) -> None:
        """All of its pages were seen."""
        self.looking_back = False
        slow = back.worked > SLOW_LOOK * back.pages + LOOK_A_LANE * back.lanes
        later = max(0.0, spread(back.worked, len(self._known)) - back.elapsed)
        self._looked_deep(back.began, back.worked, back.longest + later, slow=slow)

    def _pause(self, worked: float, longest: float) -> float:
        """Seconds until the next discovery, so that those of all workers take a twentieth of one session's time."""
        return max(0.25, min(LOOK_SHARE * worked * self.fleet, longest))

    def look_back_failed(self) -> None:
        """The discovery beside the claims came to nothing: the next is between them."""
        self.looking_back = self._deep_slow = False
        self.look_again()

    def _looked_deep(self, began: float, worked: float, later: float, *, slow: bool) -> None:
        """All lanes were seen from their beginnings, since `began`, with so many seconds of work.

        The next will show none of them more than 10 s later, with a second for the claim, if it does so no more than
        `later` longer after its beginning than this one did.
        """
        self._deep_slow = slow
        self._deep_at = began
        self._worked = worked
        now = time.monotonic()
        left = max(DEEP_EVERY - CLAIMED_IN - (now - began) - later, worked)
        self._deep_due = now + self._pause(worked, left)
        self._deep_latest = now + left

    def _note_late(self, lanes: list[Lane], began: float) -> list[Key]:
        """Of lanes that were seen from their beginnings, those whose first message is due before their watermark.

        It was committed late, or given back, or the clock was set back: the next claim that reaches the lane begins
        there.
        """
        late = []
        for lane in lanes:
            key = (lane.tenant, lane.priority)
            state = self._states.get(key)
            if state and state.after and lane.due_at and lane.due_at < state.after:
                state.late = lane.due_at
                state.late_since = began
                state.late_known_at = time.monotonic()
                late.append(key)
        return late

    @property
    def due_in(self) -> float:
        """Seconds until a lane that was seen has something due, or a look back is due; infinity where none is."""
        return min(self.message_due_in, max(0.0, self._look_back_at - time.monotonic()))

    @property
    def message_due_in(self) -> float:
        """The same, where no look back may begin."""
        return max(0.0, self._due_at - time.monotonic())

    @property
    def held_for(self) -> float:
        """Seconds until a lane that a limit holds back is worth a look; infinity where there is none."""
        return max(0.0, min(self._held.values(), default=math.inf) - time.monotonic())

    def choose(
        self, limit: int, others: frozenset[str] = frozenset()
    ) -> tuple[list[tuple[str, int, datetime | None]], int]:
        """Lanes to claim from, lower priority first, tenants in random order, without those of `others`.

        And how many one of them may give: an equal share for each lane of the first priority; or more, where some have
        a backlog and the others gave less of late: those share what these leave. Each twentieth time the priorities
        are turned round, so that none starves: a twentieth of the time is that of the last.
        """
        if self._held:
            now = time.monotonic()
            self._held = {key: until for key, until in self._held.items() if until > now}
        keys = [key for key in self._ready if key[0] not in others and key not in self._held]
        random.shuffle(keys)
        several = len({key[1] for key in keys}) > 1
        self._turns += several
        turn = -1 if several and self._turns % AGING == 0 else 1
        keys.sort(key=lambda key: key[1] * turn)
        # by chance, else a backlog would starve among very many lanes with few messages; where a limit holds lanes back
        # most of so many would have no room
        keys = keys[: min(MOST_LANES, max(8, 2 * limit)) if self._limited else MOST_LANES]
        keys.sort(key=lambda key: (key[1] * turn, self._gave(key) == math.inf))  # a backlog after the few of others
        if len(self._states) > REMEMBERED:
            self._states.clear()
            self._known.clear()
        self._asked = (self._share(limit, keys), limit)
        self.more = False
        now = self._chosen_at = time.monotonic()
        return [(*key, self._after(key, now)) for key in keys], self._asked[0]

    def _share(self, limit: int, keys: list[Key]) -> int:
        """How many each of these lanes may give, so that those with a backlog fill what the others leave."""
        equal = max(1, -(-limit // max(1, sum(key[1] == keys[0][1] for key in keys))))
        few = 0
        backlogs = Counter[int]()
        for key in keys:
            if backlogs and key[1] not in backlogs:
                break  # the first priority with a backlog takes the rest
            gave = self._gave(key)
            if gave < math.inf:
                few += max(1, int(gave))  # it is ready: something was seen of it, or heard
            else:
                backlogs[key[1]] += 1
        return max(equal, -(-(limit - few) // backlogs.total())) if backlogs else equal

    def _gave(self, key: Key) -> float:
        state = self._states.get(key)
        return state.gave if state else math.inf

    def _state(self, key: Key) -> _LaneState:
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _LaneState()
            self._known.setdefault(key[0], []).append(key)
        return state

    def _after(self, key: Key, now: float) -> datetime | None:
        state = self._state(key)
        if state.slow < 2:
            return None
        if state.late is not None:
            return state.late
        seen_at = max(state.deep_at, self._deep_at) if self._deep_slow else state.deep_at
        return state.after if self.looking_back or now - seen_at < DEEP_EVERY else None

    def claimed(
        self, edges: list[LaneEdge], asked: dict[Key, datetime | None], took: float, *, grouped: bool = False
    ) -> None:
        """What a claim gave: assign the watermarks, drop the lanes that had nothing, judge the claim's speed."""
        now = time.monotonic()
        slow = self._judge(edges, took, grouped=grouped)
        per_lane, limit = self._asked
        full = sum(edge.taken for edge in edges) >= limit
        last = max((n for n, edge in enumerate(edges) if edge.taken), default=-1)
        for n, edge in enumerate(edges):
            key = (edge.tenant, edge.priority)
            if n > last >= 0 and edge.wait is None and edge.frontier == asked.get(key):
                continue  # not reached: the lanes before it filled the claim. It is as ready as it was
            state = self._state(key)
            if asked.get(key) is None:
                state.deep_at = now
                state.slow = state.slow + 1 if slow else 0
            state.after = edge.frontier
            self._forget_late(state, asked.get(key))
            state.gave = math.inf if edge.taken >= per_lane or (full and n == last) else edge.taken
            self.more = self.more or state.gave == math.inf
            if edge.taken:
                state.gave_at = now
            elif edge.wait is not None:
                self._limited = self._limited or edge.wait > 0
                self._held[key] = now + min(edge.wait, HELD_MOST)
            elif now - state.gave_at > TAP_WINDOW and state.tapped_at < self._chosen_at and state.late is None:
                self._ready.pop(key, None)
        if any(edge.taken for edge in edges):
            self._in_vain = 0
        if not self._ready:
            # What is due next stood behind what is done now: look before sleeping. But what is ready and yet not to be
            # had is locked, as by a producer whose message it stands for: it is asked for less and less often.
            self._due_at = now + min(LOCKED_MOST, LOCKED_FIRST * 2**self._in_vain) if self._in_vain else -math.inf
            self._in_vain = min(self._in_vain + 1, 20)

    def _forget_late(self, state: _LaneState, asked: datetime | None) -> None:
        """What was late has been seen by the last claim: it began there; or the watermark lies before it now.

        Not by one that was under way when a discovery beside it found that.
        """
        if state.late is None:
            return
        reached = asked is state.late or (asked is None and self._chosen_at >= state.late_since)
        if reached or state.after is None or state.after <= state.late:
            state.late = None

    def _judge(self, edges: list[LaneEdge], took: float, *, grouped: bool) -> bool:
        """Whether a claim took longer than its rows account for."""
        if grouped:
            self._slow = SLOW_GROUPED
        rows = FIXED_ROWS + sum(edge.taken for edge in edges)
        self._best = min(self._best * 1.01, took / rows)
        return took - self._best * rows > self._slow
