"""What a handler returns or raises, and what becomes of its message."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

import postrow
from postrow import Constant


@pytest.fixture(params=["async", "sync"])
def consume(request, app):
    """Makes a function the handler of queue q: as an async one, or as a sync one."""

    def register(function, **options):
        if request.param == "sync":
            app.queue("q").consumer(name="handler", **options)(function)
            return

        async def handler(message):
            function(message)

        app.queue("q").consumer(name="handler", **options)(handler)

    return register


def test_a_handler_that_returns_settles_its_message(consume, db, start, wait_for):
    seen = []
    consume(seen.append)
    id_ = db.put(payload={"to": "ada"}, tenant="acme", subject="user:17", headers=json_of({"trace": "x"}))
    start()
    wait_for(lambda: db.history(id_))
    assert db.history(id_).outcome == "done"
    assert db.history(id_).claimed_by == "w1"
    (message,) = seen
    assert (message.id, message.payload, message.tenant) == (id_, {"to": "ada"}, "acme")
    assert (message.attempt, message.subject, dict(message.headers)) == (1, "user:17", {"trace": "x"})


def json_of(value):
    from psycopg.types.json import Jsonb

    return Jsonb(value)


def test_an_exception_is_recorded_and_retried_until_the_attempts_are_spent(consume, db, start, soon, wait_for):
    def fail(message):
        raise ValueError(f"no luck with {message.payload}")

    consume(fail, retry=soon, max_attempts=3)
    id_ = db.put(payload=7)
    start()
    dead = wait_for(lambda: db.dead(id_))
    assert (dead.reason, dead.attempt) == ("attempts", 3)
    assert [failure["message"] for failure in dead.failures] == ["no luck with 7"] * 3
    assert [failure["type"] for failure in dead.failures] == ["ValueError"] * 3
    assert 'raise ValueError(f"no luck with {message.payload}")' in dead.failures[0]["traceback"]


def test_a_handler_sees_the_failures_before_it(consume, db, start, soon, wait_for):
    seen = []

    def fail_once(message):
        seen.append(message)
        if message.attempt == 1:
            raise ValueError("first")

    consume(fail_once, retry=soon)
    id_ = db.put()
    start()
    wait_for(lambda: db.history(id_))
    assert [message.attempt for message in seen] == [1, 2]
    assert [(f.attempt, f.type, f.message, f.worker) for f in seen[1].failures] == [(1, "ValueError", "first", "w1")]


def test_retry_after_is_used_in_place_of_the_policy(consume, db, start, wait_for):
    def retry(message):
        if message.attempt == 1:
            raise postrow.Retry("busy", after=0.05)

    consume(retry, retry=Constant(base=3600, cap=3600))
    id_ = db.put()
    start()
    wait_for(lambda: db.history(id_))
    assert db.history(id_).attempt == 2
    assert db.history(id_).failures[0]["message"] == "busy"


class OfItsOwn(postrow.Retry):
    """A subclass that sets what Retry's own constructor would have checked."""

    def __init__(self, after):
        self.reason, self.after = "busy", after


class UntilOfItsOwn(postrow.Snooze):
    def __init__(self, until):
        self.until = until


def test_what_a_subclass_of_a_signal_has_set_is_checked_and_holds_up_no_others_outcome(
    consume, db, start, wait_for, lines, soon
):
    asked = {"a number": OfItsOwn(0.05), "a word": OfItsOwn("soon"), "snoozed": UntilOfItsOwn(0.05)}
    seen = []

    def handle(message):
        seen.append(message.payload)
        if seen.count(message.payload) == 1:
            raise asked[message.payload]

    consume(handle, retry=soon)
    ids = {name: db.put(payload=name) for name in asked}
    start()
    wait_for(lambda: all(db.history(id_) for id_ in ids.values()))
    assert lines("begins again") == []
    (failure,) = db.history(ids["a number"]).failures
    assert (failure["type"], failure["message"]) == ("Retry", "busy")
    (failure,) = db.history(ids["a word"]).failures
    assert failure["type"] == "postrow.errors.BadArgumentError"
    assert "'soon'" in failure["message"]
    assert db.history(ids["snoozed"]).attempt == 1


def test_retry_without_a_time_follows_the_policy(consume, db, start, wait_for):
    def retry(_message):
        raise postrow.Retry("busy")

    consume(retry, retry=Constant(base=3600, cap=3600, jitter=False))
    id_ = db.put()
    start()
    message = wait_for(lambda: (m := db.message(id_)) and m.failures and m)
    assert message.available_at - datetime.now(UTC) > timedelta(seconds=3500)


def test_a_snooze_for_seconds_spends_no_attempt(consume, db, start, wait_for):
    seen = []

    def snooze(message):
        seen.append(message.attempt)
        if len(seen) < 3:
            raise postrow.Snooze(0.05)

    consume(snooze, max_attempts=1)
    id_ = db.put()
    start()
    wait_for(lambda: db.history(id_))
    assert seen == [1, 1, 1]
    assert db.history(id_).failures is None


def test_a_snooze_until_a_moment_is_not_before_it(consume, db, start, wait_for):
    until = datetime.now(UTC) + timedelta(days=3)

    def snooze(_message):
        raise postrow.Snooze(until)

    consume(snooze)
    id_ = db.put()
    start()
    message = wait_for(lambda: (m := db.message(id_)) and m.claim_token is None and m.available_at == until and m)
    assert (message.attempt, message.failures) == (0, None)


def test_a_snooze_until_the_year_5000_is_a_failure_of_its_own_and_harms_no_other(consume, db, start, wait_for):
    def handle(message):
        if message.payload == "refused":
            raise postrow.Snooze(datetime(5000, 1, 1, tzinfo=UTC))
        if message.payload == "far":  # what the class refuses, and the database must be able to refuse too
            signal = postrow.Snooze(1)
            signal.until = datetime(5000, 1, 1, tzinfo=UTC)
            raise signal
        if message.payload == "near":
            raise postrow.Snooze(3600)

    consume(handle, retry=Constant(base=3600, cap=3600))
    ids = {name: db.put(payload=name) for name in ("near", "far", "refused", "done")}
    start()
    wait_for(lambda: db.history(ids["done"]))
    for name, text in (("far", "before the year 3000"), ("refused", "this century")):
        message = wait_for(lambda name=name: (m := db.message(ids[name])) and m.failures and m)
        assert text in message.failures[0]["message"]
    near = wait_for(lambda: (m := db.message(ids["near"])) and m.claim_token is None and m)
    assert (near.attempt, near.failures) == (0, None)


def test_a_retry_after_a_thousand_years_keeps_the_failure_and_follows_the_policy(consume, db, start, wait_for):
    def handle(message):
        if message.payload == "far":
            signal = postrow.Retry("later")
            signal.after = timedelta(days=365_000_000)
            raise signal
        raise ValueError("soon")

    consume(handle, retry=Constant(base=3600, cap=3600))
    far, near = db.put(payload="far"), db.put(payload="near")
    start()
    for id_, text in ((far, "later"), (near, "soon")):
        message = wait_for(lambda id_=id_: (m := db.message(id_)) and m.failures and m)
        assert message.attempt == 1
        assert text in message.failures[0]["message"]
        assert message.available_at - datetime.now(UTC) < timedelta(hours=2)


def test_any_text_comes_and_goes_whatever_encoding_the_environment_asks_for(consume, db, start, wait_for, monkeypatch):
    monkeypatch.setenv("PGCLIENTENCODING", "latin1")
    seen = []

    def fail(message):
        seen.append(message.payload)
        raise ValueError("a → b")

    consume(fail, max_attempts=1)
    id_ = db.put(payload="→")
    start()
    wait_for(lambda: db.dead(id_))
    assert seen == ["→"]
    assert db.dead(id_).failures[-1]["message"] == "a → b"


def test_bury_makes_a_dead_letter_at_once(consume, db, start, wait_for):
    def bury(_message):
        raise postrow.Bury("card closed")

    consume(bury, max_attempts=10)
    id_ = db.put()
    start()
    dead = wait_for(lambda: db.dead(id_))
    assert (dead.reason, dead.attempt) == ("buried", 1)
    assert "card closed" in str(dead.failures)


def test_sync_handlers_run_in_threads_and_async_ones_in_the_loop(app, db, start, wait_for):
    names = {}

    @app.queue("a").consumer()
    async def in_the_loop(_message):
        asyncio.get_running_loop()
        names["a"] = threading.current_thread().name

    @app.queue("b").consumer()
    def in_a_thread(_message):
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        names["b"] = threading.current_thread().name

    db.put("a")
    db.put("b")
    start()
    wait_for(lambda: db.done() == 2)
    assert names["a"] == "the-worker"
    assert names["b"].startswith("postrow-handler")


def test_a_plain_def_that_returns_a_coroutine_is_a_failure_and_not_done(app, db, start, soon, wait_for):
    async def real(_message):
        raise AssertionError("never awaited")

    @app.queue("q").consumer(retry=soon, max_attempts=1)
    def decorated(message):
        return real(message)

    id_ = db.put()
    start()
    dead = wait_for(lambda: db.dead(id_))
    assert "async def" in dead.failures[0]["message"]


def test_an_object_with_an_async_call_is_a_handler(app, db, start, wait_for):
    class Handler:
        async def __call__(self, message):
            await asyncio.sleep(0)
            seen.append(message.payload)

    seen = []
    app.queue("q").consumer(name="handler")(Handler())
    id_ = db.put(payload=5)
    start()
    wait_for(lambda: db.history(id_))
    assert seen == [5]


def test_one_payload_that_does_not_fit_leaves_the_rest_of_its_batch_alone(app, db, start, soon, wait_for):
    from pydantic import BaseModel

    class Order(BaseModel):
        number: int

    seen = []

    @app.queue("q", Order).consumer(retry=soon, max_attempts=2)
    async def handle(message):
        seen.append(message.payload.number)

    good = [db.put(payload={"number": n}) for n in range(4)]
    bad = db.put(payload={"number": "no number at all"})
    good += [db.put(payload={"number": n}) for n in range(4, 8)]
    start()
    dead = wait_for(lambda: db.dead(bad))
    wait_for(lambda: db.live() == 0)
    assert sorted(seen) == list(range(8))
    assert all(db.history(id_) for id_ in good)
    assert (dead.reason, dead.attempt) == ("attempts", 2)
    assert "number" in dead.failures[0]["message"]


def test_history_is_not_kept_where_the_consumer_says_so(app, db, start, wait_for):
    @app.queue("q").consumer(keep_history=False)
    async def handle(_message):
        pass

    db.put()
    start()
    wait_for(lambda: db.live() == 0)
    assert db.done() == 0
