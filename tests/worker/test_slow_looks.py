"""A worker whose claims and discoveries are all slow, as under a long transaction, still finds everything."""

import asyncio
import threading
import time
from datetime import timedelta

import psycopg
import pytest

from postrow.worker import claimer
from postrow.worker import lanes as module

pytestmark = pytest.mark.slow  # each waits for real time to pass


@pytest.fixture
def everything_slow(monkeypatch):
    """All claims and discoveries count as slow; looks from the beginning are 2 s apart, and not 10."""
    monkeypatch.setattr(module, "SLOW", -1.0)
    monkeypatch.setattr(module, "SLOW_LOOK", -1.0)
    monkeypatch.setattr(module, "DEEP_EVERY", 2.0)
    monkeypatch.setattr(module, "CLAIMED_IN", 0.2)


@pytest.fixture
def busy(everything_slow, db, start, wait_for, seen):
    """A worker that claims from a watermark, and discovers beside its claims."""
    begun = start()
    for n in range(5):
        db.put(payload=f"first {n}")
        wait_for(lambda n=n: f"first {n}" in seen)
    return begun


def test_what_was_committed_late_without_a_tap_is_found_by_the_next_discovery(db, busy, wait_for, seen):
    with psycopg.connect(db.dsn) as late:
        late.execute("set local postrow.tap = 'off'")
        late.execute("select postrow.enqueue('q', '\"late\"')")
        time.sleep(0.5)  # longer than the trail of a watermark
        for n in range(5):
            db.put(payload=n)
            wait_for(lambda n=n: n in seen)
    wait_for(lambda: "late" in seen)


def test_a_new_tenant_is_found_at_its_tap(db, busy, wait_for, seen):
    waits = []
    for n in range(5):
        began = time.monotonic()
        db.put(payload=n, tenant=f"new-{n}")
        wait_for(lambda n=n: n in seen)
        waits.append(seen[n] - began)
    assert sorted(waits)[2] < 0.5


def test_a_scheduled_message_and_another_priority_are_found_in_time(db, busy, wait_for, seen):
    db.put(payload="later", delay=timedelta(seconds=1), priority=7)
    db.put(payload="low", priority=9)
    wait_for(lambda: {"later", "low"} <= set(seen))


def test_a_worker_stops_while_a_discovery_runs_beside(everything_slow, db, monkeypatch, start, wait_for, seen):
    begun = threading.Event()
    discover = claimer.Claimer._discover

    async def forever(self, conn, feed, marks=None):
        if marks is not None:
            return await discover(self, conn, feed, marks)
        begun.set()
        return await asyncio.Event().wait()

    monkeypatch.setattr(claimer.Claimer, "_discover", forever)
    worker = start()
    db.put(payload="first")  # there is none while no lane is known
    wait_for(begun.is_set, what="a discovery beside the claims")
    db.put(payload="beside")
    wait_for(lambda: "beside" in seen)
    worker.stop()
    assert not db.backends("look back")
