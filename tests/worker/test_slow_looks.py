"""A worker whose claims and discoveries are all slow, as under a long transaction, still finds everything."""

import asyncio
import itertools
import threading
import time
from datetime import timedelta

import psycopg
import pytest

from postrow.worker import claimer, look_back
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


def test_it_is_found_page_by_page_too(monkeypatch, db, everything_slow, start, wait_for, seen):
    """Pages of a tenant each: late are messages of the first, a middle and the last, and of one that is not known."""
    monkeypatch.setattr(look_back, "A_PAGE", 0.0)
    monkeypatch.setattr(look_back, "RESTS", 0.5)
    start()
    tenants = [f"t{n}" for n in range(9)]
    for turn in range(4):
        for tenant in tenants:
            db.put(payload=f"first {turn} {tenant}", tenant=tenant)
        wait_for(lambda turn=turn: {f"first {turn} {tenant}" for tenant in tenants} <= set(seen))
    with psycopg.connect(db.dsn) as late:
        late.execute("set local postrow.tap = 'off'")
        for tenant in ("t0", "t4", "t8", "unknown"):
            late.execute("select postrow.enqueue('q', to_jsonb('late ' || %s::text), tenant => %s)", [tenant, tenant])
        time.sleep(0.5)  # longer than the trail of a watermark
        for tenant in tenants:
            db.put(payload=f"next {tenant}", tenant=tenant)
        wait_for(lambda: {f"next {tenant}" for tenant in tenants} <= set(seen))
    wait_for(lambda: {"late t0", "late t4", "late t8", "late unknown"} <= set(seen))


def test_discoveries_of_known_lanes_and_of_all_take_turns(db, busy, monkeypatch, wait_for, seen, troubled):
    asked, execute = [], claimer.execute_async

    async def noted(conn, op, **options):
        if "postrow.lanes_ahead(" in op.sql:
            asked.append(op.params[-1])
        return await execute(conn, op, **options)

    monkeypatch.setattr(claimer, "execute_async", noted)
    turns = itertools.count()

    def both():
        n = next(turns)
        db.put(payload=n, tenant=f"t{n % 7}")
        wait_for(lambda: n in seen)
        return {True, False} <= set(asked)

    wait_for(both, what="discoveries of both kinds")
    assert not troubled


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
    execute = claimer.execute_async

    async def forever(conn, op, **options):
        if not conn.info.parameter_status("application_name").endswith("look back"):
            return await execute(conn, op, **options)
        begun.set()
        return await asyncio.Event().wait()

    monkeypatch.setattr(claimer, "execute_async", forever)
    worker = start()
    db.put(payload="first")  # there is none while no lane is known
    wait_for(begun.is_set, what="a discovery beside the claims")
    db.put(payload="beside")
    wait_for(lambda: "beside" in seen)
    worker.stop()
    assert not db.backends("look back")


def test_of_many_queues_only_some_are_discovered_beside_at_one_time(
    app, everything_slow, db, monkeypatch, start, wait_for
):
    """Each is on a connection of its own."""
    execute, beside, handled = claimer.execute_async, [], []
    monkeypatch.setattr(claimer, "LOOKS_BACK", 2)

    async def forever(conn, op, **options):
        if not conn.info.parameter_status("application_name").endswith("look back"):
            return await execute(conn, op, **options)
        beside.append(op.params[0])
        return await asyncio.Event().wait()

    monkeypatch.setattr(claimer, "execute_async", forever)
    names = [f"many{n}" for n in range(5)]
    for name in names:

        @app.queue(name).consumer(name=name)
        async def handle(message):
            handled.append(message.queue)

    start()
    for turn in range(1, 4):  # each is known after the first, and wants a look
        for name in names:
            db.put(name)
        wait_for(lambda turn=turn: all(handled.count(name) == turn for name in names))
    wait_for(lambda: len(beside) == 2)
    db.put(names[0])
    wait_for(lambda: handled.count(names[0]) == 4)
    assert len(beside) == 2


def test_a_far_database_is_not_taken_for_a_slow_one(db, monkeypatch, start, wait_for, seen):
    """The way there and back takes longer than a slow discovery does."""
    far, execute, looked, tooks = 0.3, claimer.execute_async, module.Lanes.looked, []

    async def after_a_while(conn, op, **options):
        if "postrow.lanes" in op.sql:
            await asyncio.sleep(far)
        return await execute(conn, op, **options)

    def noted(lanes, found, took, **options):
        tooks.append(took)
        looked(lanes, found, took, **options)

    monkeypatch.setattr(claimer, "execute_async", after_a_while)
    monkeypatch.setattr(module.Lanes, "looked", noted)
    start()
    for n in range(3):
        db.put(payload=n, tenant=f"new-{n}")
        wait_for(lambda n=n: n in seen)
    assert min(tooks) < far
