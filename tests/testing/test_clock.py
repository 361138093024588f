import contextlib
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

import postrow
from postrow.testing import clock, drain, enqueued

pytestmark = pytest.mark.slow  # each waits for real time to pass


def near(left, right):
    return abs(left - right) < timedelta(seconds=20)


def test_what_is_scheduled_runs_when_the_clock_has_been_moved(app, postrow_clock):
    app.queue("reminders").consumer(name="h")(lambda message: None)
    app.send("reminders", 1, delay=timedelta(days=7))
    assert drain(app).done == 0
    postrow_clock.advance(timedelta(days=6))
    assert drain(app).done == 0
    postrow_clock.advance(86_400)
    assert drain(app).done == 1


def test_a_retry_is_due_after_its_delay(app, postrow_clock):
    attempts = []

    @app.queue("orders").consumer(retry=postrow.Constant(base=600, cap=600, jitter=False))
    def handle(message):
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise ValueError

    app.send("orders", 1)
    drain(app, raise_failures=False)
    postrow_clock.advance(500)
    drain(app)
    assert attempts == [1]
    postrow_clock.advance(100)
    drain(app)
    assert attempts == [1, 2]


def test_many_messages_enqueued_together_are_due_at_once_under_a_moved_clock(app, postrow_clock, postrow_conn):
    queue = app.queue("orders")
    queue.consumer(name="h")(lambda message: None)
    postrow_clock.advance(60)
    queue.enqueue_many(postrow_conn, list(range(50)))
    postrow_conn.commit()
    assert drain(app).done == 50


def test_the_clock_can_be_set_and_read(postrow_clock):
    assert near(postrow_clock.now, datetime.now(UTC))
    for moment in (datetime(2031, 5, 6, tzinfo=UTC), datetime(2001, 2, 3, tzinfo=UTC)):
        postrow_clock.set(moment)
        assert near(postrow_clock.now, moment)
        assert postrow_clock.now >= moment
    postrow_clock.advance(3600)
    assert near(postrow_clock.now, datetime(2001, 2, 3, 1, tzinfo=UTC))


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_a_transaction_that_is_open_sees_the_clock_move(postrow_clock, postrow_conn, level):
    postrow_conn.execute(f"set transaction isolation level {level}")
    postrow.enqueue(postrow_conn, "orders", 1)
    postrow_clock.advance(3600)
    postrow.enqueue(postrow_conn, "orders", 2)
    before, after = (message.enqueued_at for message in enqueued(postrow_conn, "orders"))
    assert near(after, before + timedelta(hours=1))


def test_the_clock_is_the_real_one_again_after_the_block_and_after_an_error(postrow_dsn):
    body = "select prosrc from pg_proc where oid = 'postrow.clock()'::regprocedure"
    with psycopg.connect(postrow_dsn, autocommit=True) as conn:
        real = conn.execute(body).fetchone()
        with contextlib.suppress(ZeroDivisionError), clock(postrow_dsn) as moved:
            moved.advance(10)
            assert conn.execute(body).fetchone() != real
            raise ZeroDivisionError
        assert conn.execute(body).fetchone() == real


def test_the_clock_of_a_database_that_is_not_for_tests_is_refused(database):
    with pytest.raises(postrow.BadArgumentError, match="was not made by postrow"), clock(database):
        pass
    with clock(database, any_database=True) as moved:
        moved.advance(60)
        assert near(moved.now, datetime.now(UTC) + timedelta(minutes=1))


def test_the_clock_of_a_database_without_the_schema_is_refused(empty_database):
    with pytest.raises(postrow.SchemaMismatchError, match="no Postrow schema"), clock(empty_database):
        pass


@pytest.mark.parametrize(
    ("method", "value", "words"),
    [
        ("advance", -1, "set"),
        ("advance", "an hour", "seconds"),
        ("set", datetime(2030, 1, 1), "time zone"),  # noqa: DTZ001
        ("set", datetime(9999, 1, 1, tzinfo=UTC), "2998"),
        ("set", None, "2998"),
    ],
)
def test_a_move_that_makes_no_sense_is_refused(postrow_clock, method, value, words):
    with pytest.raises(postrow.BadArgumentError, match=words):
        getattr(postrow_clock, method)(value)
