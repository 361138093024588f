"""The heartbeat, timeouts, lost leases, and handlers that extend or settle their own message."""

import asyncio
import threading
import time

import psycopg
import pytest

import postrow
from postrow.errors import LeaseLostError
from postrow.worker import heartbeat as heartbeat_module

LEASE = 0.6


def lease_left(db, id_):
    """Seconds until the message's lease ends; None when nobody holds it."""
    return db.value(
        "select (select extract(epoch from available_at - postrow.clock())::float8 from postrow.message "
        "where id = %s and claim_token is not null)",
        [id_],
    )


def take_away(db, id_):
    """What a sweep and another worker's claim do: a new token."""
    db.rows("update postrow.message set claim_token = gen_random_uuid(), claimed_by = 'other' where id = %s", [id_])


class Reached:
    """A point that a handler comes to, with what it has to show."""

    def __init__(self):
        self.event = threading.Event()
        self.value = None

    def come(self, value=None):
        self.value = value
        self.event.set()

    def wait(self):
        assert self.event.wait(20), "the handler did not come so far"
        return self.value


def ack(message, conn):
    """As a handler settles its own message in SQL."""
    (row,) = conn.execute(
        "select outcome from postrow.ack(array[%s], array[%s]::uuid[], array[%s]::uuid[])",
        [message.tenant, message.id, message.claim_token],
    ).fetchall()
    return row[0]


@pytest.mark.parametrize("kind", ["async", "blocking the loop", "sync"])
def test_a_handler_that_runs_for_several_leases_is_started_once(app, db, start, wait_for, kind):
    starts = []
    if kind == "async":

        @app.queue("q").consumer(lease=LEASE, name="h")
        async def handle(message):
            starts.append(message.payload)
            await asyncio.sleep(3 * LEASE)

    elif kind == "blocking the loop":

        @app.queue("q").consumer(lease=LEASE, name="h")
        async def handle(message):
            starts.append(message.payload)
            time.sleep(3 * LEASE)  # noqa: ASYNC251  # what must not be done

    else:

        @app.queue("q").consumer(lease=LEASE, name="h")
        def handle(message):
            starts.append(message.payload)
            time.sleep(3 * LEASE)

    start()
    id_ = db.put()
    wait_for(lambda: starts)
    start(name="w2")
    wait_for(lambda: db.history(id_))
    assert starts == [1]
    assert db.history(id_).attempt == 1


def test_a_blocked_event_loop_is_said_once_and_seen_by_nobody_else(app, db, start, lines, wait_for, monkeypatch):
    monkeypatch.setattr(heartbeat_module, "BLOCKED", 0.3)

    @app.queue("q").consumer(lease=LEASE)
    async def blocks(_message):
        time.sleep(1.0)  # noqa: ASYNC251  # what must not be done

    id_ = db.put()
    start()
    wait_for(lambda: db.history(id_))
    (line,) = lines("event loop has been blocked")
    assert "plain def" in line


def test_a_busy_database_is_not_taken_for_a_blocked_loop(app, db, start, lines, wait_for, monkeypatch, sessions_on):
    monkeypatch.setattr(heartbeat_module, "BLOCKED", 0.3)
    monkeypatch.setattr(heartbeat_module, "BEAT_EVERY", 0.1)

    @app.queue("q").consumer(lease=LEASE)
    async def handle(_message):
        pass

    start()
    wait_for(lambda: db.rows("select 1 from postrow.worker"))
    blocker = sessions_on(db.dsn)
    blocker.execute("lock table postrow.worker in access exclusive mode")
    (pid,) = db.backends("heartbeat")
    wait_for(
        lambda: db.value(
            "select wait_event_type = 'Lock' and now() - query_start > interval '0.6 s' "
            "from pg_stat_activity where pid = %s",
            [pid],
        )
    )
    blocker.rollback()
    before = db.value("select max(beat_at) from postrow.worker")
    wait_for(lambda: db.value("select max(beat_at) > %s from postrow.worker", [before]))
    assert lines("blocked") == []


@pytest.fixture
def sessions_on():
    made = []

    def connect(dsn):
        made.append(psycopg.connect(dsn))
        return made[-1]

    yield connect
    for conn in made:
        conn.close()


def test_an_async_handler_that_takes_longer_than_its_timeout_is_cancelled_and_fails(app, db, start, soon, wait_for):
    cancelled = []

    @app.queue("q").consumer(timeout=0.1, max_attempts=2, retry=soon)
    async def slow(message):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(message.attempt)
            raise

    id_ = db.put()
    start()
    dead = wait_for(lambda: db.dead(id_))
    assert cancelled == [1, 2]
    assert dead.reason == "attempts"
    assert [(f["type"], f["message"]) for f in dead.failures] == [
        ("TimeoutError", "the handler took longer than its timeout of 0.1 s")
    ] * 2


def test_a_timeout_of_the_handlers_own_is_told_from_ours(app, db, start, wait_for):
    @app.queue("q").consumer(timeout=10, max_attempts=1)
    async def slow(_message):
        async with asyncio.timeout(0.01):
            await asyncio.sleep(30)

    id_ = db.put()
    start()
    dead = wait_for(lambda: db.dead(id_))
    assert dead.failures[0]["type"] == "TimeoutError"
    assert "longer than its timeout" not in dead.failures[0]["message"]


def test_a_sync_handler_past_its_timeout_loses_its_lease_and_its_late_outcome_is_refused(
    app, db, start, soon, wait_for, lines
):
    first_may_end, ran = threading.Event(), []

    @app.queue("q").consumer(lease=LEASE, timeout=0.2, retry=soon, concurrency=1)
    def slow(message):
        ran.append(message.attempt)
        if message.attempt == 1:
            first_may_end.wait(20)

    id_ = db.put()
    start(name="w1")
    wait_for(lambda: ran == [1])
    start(name="w2")
    wait_for(lambda: db.history(id_))
    assert ran == [1, 2]
    assert (db.history(id_).claimed_by, db.history(id_).attempt) == ("w2", 2)
    assert "lease of worker w1" in db.history(id_).failures[0]["message"]
    first_may_end.set()
    again = db.put(payload=2)
    wait_for(lambda: db.history(again))
    assert db.value("select count(*) from postrow.history where id = %s", [id_]) == 1


def test_a_late_outcome_of_a_message_that_another_holds_is_refused_and_said(app, db, start, wait_for, lines):
    at, may_end = Reached(), threading.Event()

    @app.queue("q").consumer(lease=60)
    def slow(_message):
        at.come()
        may_end.wait(20)

    id_ = db.put()
    start()
    at.wait()
    take_away(db, id_)
    token = db.message(id_).claim_token
    may_end.set()
    wait_for(lambda: lines("was refused: another worker holds the message"))
    assert db.message(id_).claim_token == token


def test_a_lost_lease_cancels_an_async_handler_and_nothing_is_reported(app, db, start, wait_for, lines):
    at, cancelled = Reached(), Reached()

    @app.queue("q").consumer(lease=LEASE)
    async def slow(_message):
        at.come()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.come()
            raise

    id_ = db.put()
    start()
    at.wait()
    take_away(db, id_)
    cancelled.wait()
    assert len(lines("lost the lease")) == 1
    assert db.message(id_).claimed_by == "other"
    assert db.message(id_).failures is None


def test_a_lost_lease_leaves_a_sync_handler_and_drops_its_outcome(app, db, start, wait_for, lines):
    at, may_end = Reached(), threading.Event()

    @app.queue("q").consumer(lease=LEASE, concurrency=1)
    def slow(message):
        if message.payload == 1:
            at.come()
            may_end.wait(20)

    id_ = db.put()
    start()
    at.wait()
    take_away(db, id_)
    wait_for(lambda: lines("cannot be stopped"))
    may_end.set()
    after = db.put(payload=2)
    wait_for(lambda: db.history(after))
    assert db.message(id_).claimed_by == "other"


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_extend_holds_the_claim_and_the_heartbeat_never_shortens_it(app, db, start, wait_for, until, kind):
    at, may_end = Reached(), threading.Event()
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
    # the heartbeat renews the other one: so it has looked at this one too
    first = wait_for(lambda: (m := db.message(other)).claim_token and m).available_at
    wait_for(lambda: db.message(other).available_at > first)
    assert lease_left(db, id_) > 290
    may_end.set()
    wait_for(lambda: db.history(id_))


def test_extend_for_less_than_the_lease_does_not_end_it_early(app, db, start, wait_for):
    at, may_end = Reached(), threading.Event()

    @app.queue("q").consumer(lease=60)
    def handle(message):
        message.extend(0.1)
        at.come()
        may_end.wait(20)

    id_ = db.put()
    start()
    at.wait()
    assert lease_left(db, id_) > 50
    may_end.set()
    wait_for(lambda: db.history(id_))


def test_extend_goes_beyond_the_timeout_of_a_sync_handler(app, db, start, wait_for):
    at, may_end = Reached(), threading.Event()

    @app.queue("q").consumer(lease=LEASE, timeout=0.05)
    def handle(message):
        time.sleep(0.1)
        message.extend(30)
        at.come()
        may_end.wait(20)

    id_ = db.put()
    start()
    at.wait()
    assert lease_left(db, id_) > 25
    may_end.set()
    wait_for(lambda: db.history(id_))
    assert db.history(id_).attempt == 1


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_extend_of_a_message_that_another_holds_raises(app, db, start, wait_for, until, kind):
    at, go, told = Reached(), threading.Event(), Reached()
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
    take_away(db, id_)
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


def test_extend_while_the_handlers_own_transaction_holds_the_row_is_granted_when_that_ends(app, db, start, wait_for):
    """Neither refused nor forgotten: the row is locked, so nobody can take it, and the lease follows."""
    at, go, rolled_back, may_end = Reached(), threading.Event(), Reached(), threading.Event()

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
    wait_for(lambda: (left := lease_left(db, id_)) and left > 250)
    may_end.set()
    wait_for(lambda: db.history(id_))
    assert db.history(id_).attempt == 1


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_message_that_its_handler_acks_in_sql_is_neither_cancelled_nor_reported_again(
    app, db, start, wait_for, until, lines, kind
):
    at, may_end, ended = Reached(), threading.Event(), Reached()
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
    # the heartbeat goes on beside it, so it has looked at this message too
    moment = wait_for(lambda: (m := db.message(other)) and m.claim_token and m).available_at
    wait_for(lambda: db.message(other).available_at > moment)
    moment = db.message(other).available_at
    wait_for(lambda: db.message(other).available_at > moment)
    may_end.set()
    ended.wait()
    other_may_end.set()
    wait_for(lambda: db.history(other))
    assert lines("", level=30) == []


def test_a_row_that_another_session_has_locked_holds_up_neither_the_others_nor_the_shutdown(
    app, db, start, wait_for, until, lines, sessions_on
):
    at, may_end = Reached(), threading.Event()

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
    wait_for(lambda: db.done() == 50)
    assert running.stop() < 10
    assert lines("1 outcomes could not be written")
    session.rollback()
    assert db.message(locked) is not None


def test_the_outcome_of_a_row_that_was_locked_is_written_when_it_is_free(app, db, start, wait_for, sessions_on):
    at, may_end = Reached(), threading.Event()

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


def test_a_retry_signal_after_a_lost_lease_changes_nothing(app, db, start, wait_for, lines):
    at, may_end = Reached(), threading.Event()

    @app.queue("q").consumer(lease=60)
    def handle(message):
        if message.payload == 1:
            at.come()
            may_end.wait(20)
            raise postrow.Retry(after=0)

    id_ = db.put()
    start()
    at.wait()
    take_away(db, id_)
    may_end.set()
    wait_for(lambda: lines("the outcome (fail)"))
    assert (db.message(id_).attempt, db.message(id_).failures) == (1, None)
