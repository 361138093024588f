"""What the acker tells of a batch in which the fence refuses something."""

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from postrow.drivers.psycopg3 import execute_async
from postrow.ops import claims
from postrow.worker.acker import Acker
from postrow.worker.connections import Database, Weather
from postrow.worker.slots import DONE, Outcome, Slot, Slots


@pytest.fixture
def acknowledge(db):
    """Writes an outcome, DONE, for claims that `claimed` makes on a connection, all in one batch; the counts."""

    def acknowledge(consumer, claimed, outcome=DONE):
        async def main():
            database = Database(db.dsn)
            slots = Slots()
            acker = Acker(database, slots, Weather(), retried=lambda _: None, made_room=lambda *_: None)
            async with await database.connect("test") as conn:
                rows = await claimed(conn)
            held = [Slot(row, token, consumer, 0.0) for row, token in rows]
            slots.add(held)
            for slot in held:
                slot.ended, slot.outcome = True, outcome
                acker.put(slot)
            acker.close()
            await asyncio.wait_for(acker.run(), 20)
            assert len(slots) == 0
            return acker.counts

        return asyncio.run(main())

    return acknowledge


@pytest.fixture
def consumer(app):
    @app.queue("q").consumer()
    async def handle(_message):
        pass

    (it,) = app.consumers.values()
    return it


async def claim(conn, token, limit=10):
    op = claims.claim_lanes(
        "q", [("default", 0, None)], per_lane=limit, limit=limit, lease=None, worker="w1", token=token, max_bytes=None
    )
    return [(row, token) for row in (await execute_async(conn, op)).messages]


def test_a_message_that_this_worker_claimed_again_is_lost_once_and_done_once(db, acknowledge, consumer):
    """Both outcomes wait to be written when its lease had ended meanwhile: only the second has the token."""
    ids = [db.put() for _ in range(3)]
    old, new = uuid4(), uuid4()

    async def claimed(conn):
        first = await claim(conn, old)
        await execute_async(conn, claims.release_claim(old, "q"))
        return [*first[:1], *await claim(conn, new)]

    counts = acknowledge(consumer, claimed)
    assert (counts["done"], counts["lost"]) == (3, 1)
    assert all(db.history(id_) for id_ in ids)


def test_failures_beside_a_message_that_was_claimed_twice_keep_their_time_to_try_again(db, acknowledge, consumer):
    for _ in range(2):
        db.put()
    old, new = uuid4(), uuid4()

    async def claimed(conn):
        first = await claim(conn, old)
        await execute_async(conn, claims.release_claim(old, "q"))
        return [*first[:1], *await claim(conn, new)]

    counts = acknowledge(consumer, claimed, Outcome("fail", "not yet", retry_after=timedelta(hours=1)))
    assert (counts["fail"], counts["lost"]) == (2, 1)
    assert db.value("select bool_and(available_at > postrow.clock() + interval '50 min') from postrow.message")


def test_a_batch_of_which_some_have_moved_and_some_are_anothers(db, acknowledge, consumer):
    ids = sorted(db.put() for _ in range(4))
    token = uuid4()

    async def claimed(conn):
        rows = await claim(conn, token)
        held = [claims.Held(row.tenant, row.id, token) for row, _ in rows]
        await execute_async(conn, claims.extend(held[:2], timedelta(seconds=60)))
        db.take_away(ids[3])
        return rows

    counts = acknowledge(consumer, claimed)
    assert (counts["done"], counts["lost"]) == (3, 1)
    assert [db.message(id_) is None for id_ in ids] == [True, True, True, False]
