"""Handlers of batches: what they are given, and what becomes of each message by what they return or raise."""

import asyncio
import threading

import psycopg
import pytest

import postrow
from postrow.errors import LeaseLostError

LEASE = 1.5


@pytest.fixture(params=["async", "sync"])
def handles(request):
    """Makes a function a handler of both kinds: handles(queue, **options)(function)."""

    def kinds(queue, **options):
        def register(function):
            if request.param == "sync":
                return queue.consumer(name="handler", **options)(function)

            async def handler(messages):
                return function(messages)

            queue.consumer(name="handler", **options)(handler)
            return function

        return register

    return kinds


def settled(db, count):
    return lambda: db.done() + db.value("select count(*) from postrow.dead_letter") == count


def test_a_batch_is_a_list_of_as_many_as_are_there_up_to_its_size_and_each_message_is_in_one(
    app, db, start, wait_for, handles
):
    seen = []
    handles(app.queue("q"), batch=40, concurrency=1)(lambda messages: seen.append([m.payload for m in messages]))
    db.put_many(range(100))
    start()
    wait_for(settled(db, 100))
    assert sorted(payload for batch in seen for payload in batch) == list(range(100))
    assert max(map(len, seen)) == 40
    assert db.rows("select distinct attempt, failures from postrow.history") == [(1, None)]


def test_a_batch_is_not_waited_for(app, db, start, wait_for, handles):
    seen = []
    handles(app.queue("q"), batch=500)(seen.append)
    id_ = db.put(payload="alone")
    start()
    wait_for(lambda: db.history(id_))
    ((message,),) = seen
    assert isinstance(message, postrow.Message)
    assert (message.id, message.payload, message.attempt) == (id_, "alone", 1)


def test_each_result_is_its_own_messages(app, db, start, wait_for, handles, soon):
    results = {
        "done": 7,
        "nothing": None,
        "failed": LookupError("no such user"),
        "retried": postrow.Retry("slow down", after=3600),
        "snoozed": postrow.Snooze(3600),
        "buried": postrow.Bury("card closed"),
        "a class": postrow.Retry,
        "a class that wants more": postrow.Bury,
    }
    handles(app.queue("q"), batch=100, max_attempts=5, retry=postrow.Constant(base=3600))(
        lambda messages: [results[m.payload] for m in messages]
    )
    ids = {payload: db.put(payload=payload) for payload in results}
    start()
    put_off = "select count(*) from postrow.message where available_at > postrow.clock() + interval '20 min'"
    wait_for(lambda: db.value(put_off) == 5)
    wait_for(settled(db, 3))
    assert db.history(ids["done"])
    assert db.history(ids["nothing"])
    assert db.dead(ids["buried"]).failures[-1]["message"] == "card closed"
    said = {name: (db.message(ids[name]).failures or [{}])[-1] for name in results if db.message(ids[name])}
    assert (said["failed"]["type"], said["failed"]["message"]) == ("LookupError", "no such user")
    assert (said["retried"]["type"], said["retried"]["message"]) == ("Retry", "slow down")
    assert said["a class"]["type"] == "Retry"
    assert said["a class that wants more"]["type"] == "TypeError"
    assert said["snoozed"] == {}


@pytest.mark.parametrize(
    ("result", "kind", "text"),
    [
        ([None], "ValueError", "returned 1 results for 2 messages"),
        ((None, None, None), "ValueError", "returned 3 results for 2 messages"),
        ({}, "TypeError", "returned dict: return None, or a list"),
        (True, "TypeError", "returned bool"),
    ],
)
def test_a_result_that_fits_no_batch_fails_all_of_it(app, db, start, wait_for, handles, result, kind, text):
    handles(app.queue("q"), batch=2, concurrency=1, max_attempts=1)(lambda _messages: result)
    ids = [row.id for row in db.rows("select id from postrow.enqueue_many('q', '[{\"payload\":1},{\"payload\":2}]')")]
    start()
    wait_for(settled(db, 2))
    for id_ in ids:
        (failure,) = db.dead(id_).failures
        assert failure["type"] == kind
        assert text in failure["message"]


def test_what_a_handler_raises_is_the_failure_of_all_its_messages(app, db, start, wait_for, handles):
    @handles(app.queue("q"), batch=10, max_attempts=1)
    def fails(messages):
        raise LookupError(f"{len(messages)} at once")

    db.put_many(range(3))
    start()
    wait_for(settled(db, 3))
    errors = {row.message for row in db.rows("select failures -> 0 ->> 'message' as message from postrow.dead_letter")}
    assert errors == {"3 at once"}


def test_a_payload_that_cannot_be_read_fails_alone(app, db, start, wait_for, handles):
    seen = []
    handles(app.queue("q", int), batch=10, max_attempts=1)(lambda messages: seen.extend(m.payload for m in messages))
    good, bad = db.put(payload=1), db.put(payload="x")
    start()
    wait_for(settled(db, 2))
    assert db.history(good)
    assert db.dead(bad).failures[-1]["type"] == "postrow.errors.PayloadTypeError"
    assert seen == [1]


def test_as_many_batches_run_at_once_as_the_concurrency_says(app, db, start, wait_for):
    lock, opened = threading.Lock(), threading.Event()
    inside, most, seen = set(), [], []

    @app.queue("q").consumer(batch=3, concurrency=2)
    def handle(messages):
        with lock:
            inside.add(id(messages))
            most.append(len(inside))
            seen.append(len(messages))
        opened.wait(20)
        with lock:
            inside.discard(id(messages))

    db.put_many(range(12))
    start()
    wait_for(lambda: len(most) == 2)
    wait_for(lambda: db.value("select count(*) from postrow.message where claim_token is not null") == 6)
    opened.set()
    wait_for(settled(db, 12))
    assert max(most) == 2
    assert max(seen) == 3


def test_of_a_group_the_next_comes_in_a_batch_after_the_one_before_it(app, db, start, wait_for, handles):
    seen = []
    handles(app.queue("q"), batch=10, concurrency=1)(lambda messages: seen.append([m.payload for m in messages]))
    for turn in range(3):
        for group in "ab":
            db.put(payload=f"{group}{turn}", group_key=group)
    start()
    wait_for(settled(db, 6))
    at = {payload: place for place, batch in enumerate(seen) for payload in batch}
    assert at["a0"] < at["a1"] < at["a2"]
    assert at["b0"] < at["b1"] < at["b2"]


def test_of_a_group_whose_message_failed_in_a_batch_the_next_waits_for_it(app, db, start, wait_for, handles, soon):
    seen = []

    @handles(app.queue("q"), batch=10, concurrency=1, retry=soon)
    def handle(messages):
        seen.extend((m.payload, m.attempt) for m in messages)
        return [LookupError() if (m.payload, m.attempt) == ("a0", 1) else None for m in messages]

    for payload in ("a0", "a1", "b0"):
        db.put(payload=payload, group_key=payload[0])
    start()
    wait_for(settled(db, 3))
    of_a = [one for one in seen if one[0].startswith("a")]
    assert of_a == [("a0", 1), ("a0", 2), ("a1", 1)]


def test_effects_of_a_batch_and_their_acks_are_one_commit(app, db, start, wait_for):
    db.rows("create table if not exists counted (payload jsonb)")
    db.rows("truncate counted")

    @app.queue("q").consumer(batch=10)
    async def handle(messages):
        async with await psycopg.AsyncConnection.connect(db.dsn, prepare_threshold=None) as conn:
            for message in messages:
                await conn.execute("insert into counted values (%s::text::jsonb)", [str(message.payload)])
            await postrow.ack(conn, messages)
            if messages[0].attempt == 1:
                raise LookupError("rolls back")

    db.put_many(range(5), max_attempts=3)
    start()
    wait_for(lambda: db.value("select count(*) from postrow.message where failures is not null") == 5)
    assert db.rows("select 1 from counted") == []
    db.rows("update postrow.message set available_at = postrow.clock()")
    wait_for(settled(db, 5))
    assert db.value("select count(*) from counted") == 5
    assert db.rows("select distinct attempt from postrow.history") == [(2,)]


def test_an_ack_of_a_batch_of_which_another_has_one_raises_and_settles_none(app, db, start, wait_for, soon):
    raised = []

    @app.queue("q").consumer(batch=10, retry=soon)
    def handle(messages):
        if messages[0].attempt == 1 and not raised:
            db.take_away(messages[-1].id)
            with pytest.raises(LeaseLostError) as caught, psycopg.connect(db.dsn, prepare_threshold=None) as conn:
                postrow.ack(conn, messages)
            raised.append((str(messages[-1].id), caught.value.message, db.done()))

    db.put_many(range(3))
    start()
    wait_for(settled(db, 2))
    ((id_, text, done),) = raised
    assert id_ in text
    assert done == 0
    assert db.live() == 1  # the other's


def test_a_handler_of_a_batch_of_which_another_has_one_goes_on_with_the_rest(
    app, db, start, wait_for, clock, lines, until
):
    begun, may_end, cancelled = [], threading.Event(), []

    @app.queue("q").consumer(batch=10, lease=LEASE)
    async def handle(messages):
        begun.extend(messages)
        try:
            await until(may_end)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    db.put_many(range(3))
    clock.advance(0.001)
    start(sweep=False)
    wait_for(lambda: len(begun) == 3)
    db.take_away(begun[1].id)
    wait_for(lambda: lines("lost the lease"))
    may_end.set()
    wait_for(settled(db, 2))
    assert cancelled == []
    assert db.message(begun[1].id).claimed_by == "other"


def test_a_batch_that_takes_longer_than_its_timeout_is_cancelled_and_all_of_it_has_failed(app, db, start, wait_for):
    @app.queue("q").consumer(batch=10, timeout=0.1, max_attempts=1)
    async def handle(_messages):
        await asyncio.sleep(30)

    db.put_many(range(3))
    start()
    wait_for(settled(db, 3))
    errors = db.rows("select distinct failures -> 0 ->> 'type' from postrow.dead_letter")
    assert errors == [("TimeoutError",)]


def test_at_the_end_of_the_grace_a_batch_is_given_back_whole(app, db, start, wait_for, reached):
    at = reached()

    @app.queue("q").consumer(batch=10)
    async def handle(messages):
        at.come(len(messages))
        await asyncio.sleep(30)

    db.put_many(range(3))
    running = start(grace=0.1)
    assert at.wait() == 3
    running.stop()
    assert db.rows("select distinct claim_token, attempt, failures from postrow.message") == [(None, 0, None)]


def test_what_a_handler_of_a_batch_publishes_has_no_parent_and_one_hop_more_than_any(app, db, start, wait_for, handles):
    db.rows("select postrow.subscribe('t', 'next')")

    @handles(app.queue("q"), batch=10)
    def handle(messages):
        with psycopg.connect(db.dsn, prepare_threshold=None) as conn:
            postrow.publish(conn, "t", len(messages))

    db.put_many(range(3))
    db.rows("update postrow.message set hops = 4 where payload = '1'")
    start()
    wait_for(settled(db, 3))
    (follow,) = db.rows("select payload, parent_id, hops from postrow.message where queue = 'next'")
    assert (follow.payload, follow.parent_id, follow.hops) == (3, None, 5)
