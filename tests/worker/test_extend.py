"""Handlers that extend or settle their own message, and rows that others have locked."""

import asyncio
import threading
import time

import psycopg
import pytest

from postrow.errors import LeaseLostError

pytestmark = pytest.mark.slow  # each waits for real time to pass

LEASE = 0.6  # seconds


def ack(message, conn):
    """As a handler settles its own message in SQL."""
    (row,) = conn.execute(
        "select outcome from postrow.ack(array[%s], array[%s]::uuid[], array[%s]::uuid[])",
        [message.tenant, message.id, message.claim_token],
    ).fetchall()
    return row[0]


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_extend_holds_the_claim_and_the_heartbeat_never_shortens_it(
    app, db, clock, start, wait_for, until, kind, reached
):
    at, may_end = reached(), threading.Event()
    if kind == "async":

        @app.queue("q").consumer(lease=LEASE)
        async def handle(message):
            await message.extend(300)
            at.come()
            await until(may_end)

    else:

        @app.queue("q").consumer(lease=LEASE)
        def handle(message):
            message.extend(300)
            at.come()
            may_end.wait(20)

    @app.queue("other").consumer(lease=LEASE)
    async def beside(_message):
        await until(may_end)

    id_, other = db.put(), db.put(queue="other")
    start()
    at.wait()
    wait_for(lambda: db.message(other).claim_token)
    clock.renewed(other)  # so the heartbeat has looked at this one too
    assert db.lease_left(id_) > 290
    may_end.set()
    wait_for(lambda: db.history(id_))


def test_extend_for_less_than_the_lease_does_not_end_it_early(app, db, start, wait_for, reached):
    at, may_end = reached(), threading.Event()

    @app.queue("q").consumer(lease=60)
    def handle(message):
        message.extend(0.1)
        at.come()
        may_end.wait(20)

    id_ = db.put()
    start()
    at.wait()
    assert db.lease_left(id_) > 50
    may_end.set()
    wait_for(lambda: db.history(id_))


def test_extend_goes_beyond_the_timeout_of_a_sync_handler(app, db, clock, start, wait_for, reached):
    at, may_end = reached(), threading.Event()

    @app.queue("q").consumer(lease=LEASE, timeout=0.05)
    def handle(message):
        time.sleep(0.1)
        message.extend(30)
        at.come()
        may_end.wait(20)

    id_ = db.put()
    start()
    at.wait()
    assert db.lease_left(id_) > 25
    may_end.set()
    wait_for(lambda: db.history(id_))
    assert db.history(id_).attempt == 1


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_extend_of_a_message_that_another_holds_raises(app, db, start, wait_for, until, kind, reached):
    at, go, told = reached(), threading.Event(), reached()
    if kind == "async":

        @app.queue("q").consumer(lease=60)
        async def handle(message):
            at.come()
            await until(go)
            try:
                await message.extend(60)
            except BaseException as error:
                told.come(error)
                raise

    else:

        @app.queue("q").consumer(lease=60)
        def handle(message):
            at.come()
            go.wait(20)
            try:
                message.extend(60)
            except BaseException as error:
                told.come(error)
                raise

    id_ = db.put()
    start()
    at.wait()
    db.take_away(id_)
    go.set()
    error = told.wait()
    # an async handler is cancelled for the same reason, and may learn of that first
    assert isinstance(error, LeaseLostError | asyncio.CancelledError)
    assert kind == "async" or isinstance(error, LeaseLostError)


def test_a_handler_that_is_cancelled_while_it_extends_does_not_harm_the_heartbeat(app, db, start, wait_for, lines):
    @app.queue("q").consumer(lease=60, timeout=0.1, max_attempts=1)
    async def handle(message):
        while True:
            await message.extend(60)

    ids = [db.put(payload=n) for n in range(10)]
    start()
    for id_ in ids:
        wait_for(lambda id_=id_: db.dead(id_))
    assert lines("the heartbeat failed") == []
    assert lines("database trouble") == []


def test_extend_while_the_handlers_own_transaction_holds_the_row_is_granted_when_that_ends(
    app, db, clock, start, wait_for, reached
):
    """Neither refused nor forgotten: the row is locked, so nobody can take it, and the lease follows."""
    at, go, rolled_back, may_end = reached(), threading.Event(), reached(), threading.Event()

    @app.queue("q").consumer(lease=LEASE)
    def handle(message):
        with psycopg.connect(db.dsn) as conn:
            assert ack(message, conn) == "accepted"
            message.extend(300)
            at.come()
            go.wait(20)
            conn.rollback()
        rolled_back.come()
        may_end.wait(20)

    id_ = db.put()
    start()
    at.wait()
    go.set()
    rolled_back.wait()
    wait_for(lambda: (left := db.lease_left(id_)) and left > 250)
    may_end.set()
    wait_for(lambda: db.history(id_))
    assert db.history(id_).attempt == 1


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_message_that_its_handler_acks_in_sql_is_neither_cancelled_nor_reported_again(
    app, db, clock, start, wait_for, until, lines, kind, reached
):
    at, may_end, ended = reached(), threading.Event(), reached()
    if kind == "async":

        @app.queue("q").consumer(lease=LEASE)
        async def handle(message):
            async with await psycopg.AsyncConnection.connect(db.dsn) as conn:
                cursor = await conn.execute(
                    "select outcome from postrow.ack(array[%s], array[%s]::uuid[], array[%s]::uuid[])",
                    [message.tenant, message.id, message.claim_token],
                )
                at.come((await cursor.fetchall())[0][0])
            await until(may_end)
            ended.come()

    else:

        @app.queue("q").consumer(lease=LEASE)
        def handle(message):
            with psycopg.connect(db.dsn) as conn:
                at.come(ack(message, conn))
            may_end.wait(20)
            ended.come()

    other_may_end = threading.Event()

    @app.queue("other").consumer(lease=LEASE)
    async def beside(_message):
        await until(other_may_end)

    id_, other = db.put(), db.put(queue="other")
    start()
    assert at.wait() == "accepted"
    wait_for(lambda: db.history(id_))
    wait_for(lambda: db.message(other).claim_token)
    clock.renewed(other)  # so the heartbeat has looked at this message too
    may_end.set()
    ended.wait()
    other_may_end.set()
    wait_for(lambda: db.history(other))
    assert lines("", level=30) == []


def test_a_row_that_another_session_has_locked_holds_up_neither_the_others_nor_the_shutdown(
    app, db, clock, start, wait_for, until, lines, sessions_on, reached
):
    at, may_end = reached(), threading.Event()

    @app.queue("q").consumer(lease=LEASE, concurrency=20)
    async def handle(message):
        if message.payload == "locked":
            at.come()
            await until(may_end)

    locked = db.put(payload="locked")
    running = start()
    at.wait()
    session = sessions_on(db.dsn)
    session.execute("select from postrow.message where id = %s for update", [locked])
    may_end.set()
    db.put_many(range(50))
    clock.advance(0.001)  # each of a list is due a microsecond after the one before it
    wait_for(lambda: db.done() == 50)
    assert running.stop() < 10
    assert lines("1 outcomes could not be written")
    session.rollback()
    assert db.message(locked) is not None


def test_the_outcome_of_a_row_that_was_locked_is_written_when_it_is_free(
    app, db, clock, start, wait_for, sessions_on, reached
):
    at, may_end = reached(), threading.Event()

    @app.queue("q").consumer(lease=LEASE)
    def handle(_message):
        at.come()
        may_end.wait(20)

    id_ = db.put()
    start()
    at.wait()
    session = sessions_on(db.dsn)
    session.execute("select from postrow.message where id = %s for update", [id_])
    may_end.set()
    after = db.put(payload=2)
    wait_for(lambda: db.history(after))
    assert db.message(id_)
    session.rollback()
    wait_for(lambda: db.history(id_))
    assert db.history(id_).attempt == 1
