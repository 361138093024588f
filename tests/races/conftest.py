"""A worker's lanes, one claim at a time, under a clock that stands still: what do their watermarks pass by?"""

from datetime import timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest

from postrow.drivers.psycopg3 import execute
from postrow.ops import claims
from postrow.worker import lanes as lanes_module
from postrow.worker.lanes import Lanes

MINUTE = timedelta(minutes=1)


class Claimant:
    """What a worker's claimer does with the lanes of queue q, one claim at a time."""

    def __init__(self, actor):
        self.actor = actor
        self.lanes = Lanes()
        self.began = {}  # by lane, where the last claim began: None, at the beginning

    def look(self):
        """Discover lanes before the next claim, as a worker does in a twentieth of its time, and before it sleeps."""
        self.lanes.look_again()
        return self

    def claim(self, limit=10):
        """The messages that one claim gives."""
        conn = self.actor.conn
        if self.lanes.wants_look:
            self.lanes.looked(execute(conn, claims.lanes("q", worker="w1")).lanes, 0.0)
        chosen, per_lane = self.lanes.choose(limit)
        if not chosen:
            return []
        self.began = {lane[:2]: lane[2] for lane in chosen}
        op = claims.claim_lanes(
            "q", chosen, per_lane=per_lane, limit=limit, lease=MINUTE, worker="w1", token=(token := uuid4())
        )
        answer = execute(conn, op)
        self.lanes.claimed(answer.edges, self.began, answer.took)
        return [
            SimpleNamespace(**row._asdict(), id=row.id, due_at=row.due_at, claim_token=token) for row in answer.messages
        ]

    def assert_from_watermark(self, tenant="default", priority=0):
        """The last claim of the lane did begin at its watermark: else a test would show nothing."""
        assert self.began[tenant, priority] is not None

    def drain(self, limit=10):
        """Claim until nothing comes: the claims."""
        batches = []
        while batch := self.claim(limit):
            batches.append(batch)
        return batches


@pytest.fixture
def from_watermarks(monkeypatch):
    """Each claim counts as slow, and no lane is claimed from its beginning just because time has passed."""
    monkeypatch.setattr(lanes_module, "SLOW", -1.0)
    monkeypatch.setattr(lanes_module, "SLOW_GROUPED", -1.0)
    monkeypatch.setattr(lanes_module, "DEEP_EVERY", 1e9)


@pytest.fixture
def producer(own_actors):
    return own_actors("producer")


@pytest.fixture
def advanced(own_actors, own_clock, producer, from_watermarks):
    """Makes claimants whose watermark in the lane of tenant `default` is at the clock's now, less the trail."""

    def make(name="worker"):
        claimant = Claimant(own_actors(name))
        for _ in range(3):
            producer.put()
            own_clock.advance(1)
            claimant.actor.settle("ack", claimant.look().claim())
        claimant.assert_from_watermark()
        return claimant

    return make
