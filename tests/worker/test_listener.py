"""What the listener hears, and when."""

import asyncio
import select

import psycopg
import pytest
from pgbouncer import POOLED

from postrow.worker import listener as listener_module
from postrow.worker.connections import Database, Weather
from postrow.worker.listener import Listener

pytestmark = pytest.mark.skipif(POOLED, reason="LISTEN hears nothing through a pooler")


@pytest.fixture
async def listening(db):
    """Starts a listener; what it heard comes into a queue."""
    tasks = []

    async def start():
        connected, heard = asyncio.Event(), asyncio.Queue()
        listener = Listener(
            Database(db.dsn), Weather(), connected=connected.set, tapped=lambda *tap: heard.put_nowait(tap)
        )
        tasks.append(asyncio.create_task(listener.run()))
        await asyncio.wait_for(connected.wait(), 20)
        return tasks[-1], heard

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_tap_that_came_with_the_answer_of_a_probe_is_heard(db, listening, monkeypatch):
    monkeypatch.setattr(listener_module, "QUIET", 0.05)
    probed = psycopg.AsyncConnection.execute
    sent = []

    async def then_a_tap_is_read(conn, query, *args, **options):
        answer = await probed(conn, query, *args, **options)
        if query == "select" and not sent:
            sent.append(True)
            db.rows("select pg_notify('postrow', 'late default')")
            assert select.select([conn.fileno()], [], [], 20)[0]
            conn.pgconn.consume_input()  # so the socket has nothing more to say
            monkeypatch.setattr(listener_module, "QUIET", 3600)
        return answer

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", then_a_tap_is_read)
    _, heard = await listening()
    assert await asyncio.wait_for(heard.get(), 20) == ("late", "default")


async def test_a_connection_that_is_lost_while_it_is_quiet_ends_the_listener(db, listening):
    task, heard = await listening()
    db.rows("select pg_notify('postrow', 'q acme')")
    assert await asyncio.wait_for(heard.get(), 20) == ("q", "acme")
    db.rows("select pg_terminate_backend(pid) from pg_stat_activity where application_name like '%listener%'")
    with pytest.raises(psycopg.OperationalError):
        await asyncio.wait_for(task, 20)
