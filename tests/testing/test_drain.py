import asyncio
import re
import threading
import traceback
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

import postrow
from postrow import App, Bury, Constant, Message, Retry, Snooze
from postrow.testing import drain, drain_async

pytestmark = pytest.mark.slow  # each waits for real time to pass


@dataclass
class Order:
    number: int


def test_drain_runs_what_is_queued_and_counts_it(app, rows):
    orders = app.queue("orders", Order)
    seen = []

    @orders.consumer()
    def handle(message: Message[Order]):
        seen.append(message.payload)

    sent = [app.send(orders, Order(n)) for n in (1, 2, 3)]
    drained = drain(app)
    assert seen == [Order(1), Order(2), Order(3)]
    assert (drained.done, drained.failed, drained.dead, drained.snoozed) == (3, 0, 0, 0)
    assert [(m.id, m.queue, m.tenant, m.attempt, m.outcome) for m in drained.messages] == [
        (s.id, "orders", "default", 1, "done") for s in sent
    ]
    assert [m.payload for m in drained.messages] == seen
    assert rows("select outcome, claimed_by from postrow.history") == [("done", "drain")] * 3


def test_drain_of_an_empty_queue_does_nothing(app):
    app.queue("orders").consumer(name="h")(lambda message: None)
    assert drain(app).messages == ()


def test_drain_runs_async_handlers_in_a_loop_and_sync_ones_in_a_thread(app):
    where = {}

    @app.queue("a").consumer()
    async def in_a_loop(message):
        await asyncio.sleep(0)
        where["a"] = threading.current_thread()

    @app.queue("b").consumer()
    def in_a_thread(message):
        where["b"] = threading.current_thread()

    app.send("a", 1)
    app.send("b", 1)
    assert drain(app).done == 2
    assert where["a"] is threading.current_thread()
    assert where["b"] is not threading.current_thread()


def test_drain_runs_what_handlers_enqueue(app, postrow_dsn):
    done = []

    @app.queue("first").consumer()
    def first(message):
        with psycopg.connect(postrow_dsn) as conn, conn.transaction():
            postrow.enqueue(conn, "second", message.payload + 1)

    @app.queue("second").consumer()
    async def second(message):
        done.append(message.payload)
        if message.payload < 3:
            await app.send_async("first", message.payload)

    app.send("first", 1)
    assert drain(app).done == 4
    assert done == [2, 3]


def test_drain_takes_the_oldest_of_the_lowest_priority_of_each_queue(app):
    order = []
    for name in ("late", "early"):
        app.queue(name).consumer(name="h")(lambda message: order.append(message.payload))
    app.send("early", "e")
    app.send("late", 2, priority=1)
    app.send("late", 1, tenant="b")
    app.send("late", 0, priority=-1)
    app.send("late", 3, priority=1, tenant="a")
    drain(app)
    assert order == [0, 1, 2, 3, "e"]


def test_drain_sees_only_what_is_committed(app, postrow_conn):
    app.queue("orders").consumer(name="h")(lambda message: None)
    postrow.enqueue(postrow_conn, "orders", 1)
    assert drain(app).done == 0
    postrow_conn.commit()
    assert drain(app).done == 1


def test_drain_of_some_queues_and_of_one_tenant_leaves_the_rest(app):
    for name in ("a", "b"):
        app.queue(name).consumer(name="h")(lambda message: None)
    app.send("a", 1)
    app.send("b", 2)
    app.send("b", 3, tenant="acme")
    assert [m.payload for m in drain(app, queues=["b"], tenant="acme").messages] == [3]
    assert [m.payload for m in drain(app, queues=["b"]).messages] == [2]
    assert [m.payload for m in drain(app).messages] == [1]


def test_drain_gives_each_tenant_to_its_own_handler(app):
    taken = []
    queue = app.queue("orders")
    queue.consumer(name="all")(lambda message: taken.append(("all", message.tenant)))
    queue.consumer(name="acme", tenant="acme")(lambda message: taken.append(("acme", message.tenant)))
    app.send("orders", 1)
    app.send("orders", 1, tenant="acme")
    app.send("orders", 1, tenant="acme", target="drain")
    drain(app)
    assert sorted(taken) == [("acme", "acme"), ("acme", "acme"), ("all", "default")]


def test_drain_takes_targeted_messages_under_the_name_it_is_given(app):
    app.queue("orders").consumer(name="h")(lambda message: None)
    app.send("orders", 1, target="laptop")
    assert drain(app).done == 0
    assert drain(app, name="laptop").done == 1


def test_a_failed_message_raises_its_own_error_with_a_note(app, rows):
    @app.queue("orders").consumer()
    def handle(message):
        raise ValueError("no such product")

    sent = app.send("orders", {"product": 17})
    with pytest.raises(ValueError, match="no such product") as caught:
        drain(app)
    assert str(caught.value) == "no such product"
    (note,) = caught.value.__notes__
    assert str(sent.id) in note
    assert re.search(r"queue orders \(tenant default\), attempt 1: failed; payload {'product': 17}$", note)
    assert rows("select attempt, failures->-1->>'message' from postrow.message") == [(1, "no such product")]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_traceback_of_a_failed_message_leads_from_the_test_to_the_handler(app, kind):
    def broken(message):
        raise ValueError("broken")

    async def broken_async(message):
        broken(message)

    app.queue("orders").consumer(name="h")(broken if kind == "sync" else broken_async)
    app.send("orders", 1)
    with pytest.raises(ValueError, match="broken") as caught:
        drain(app)
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    expected = ["broken"] if kind == "sync" else ["broken_async", "broken"]
    assert frames[1:3] == ["drain", "raise_failed"]
    assert frames[3:] == expected


def test_several_failed_messages_raise_a_group_after_all_have_run(app):
    ran = []

    @app.queue("orders").consumer()
    def handle(message):
        ran.append(message.payload)
        if message.payload != 2:
            raise LookupError(message.payload)

    for n in (1, 2, 3):
        app.send("orders", n)
    with pytest.raises(ExceptionGroup, match="2 messages failed") as caught:
        drain(app)
    assert ran == [1, 2, 3]
    assert [str(error) for error in caught.value.exceptions] == ["1", "3"]


def test_failures_can_be_looked_at_instead_of_raised(app):
    @app.queue("orders").consumer(max_attempts=2)
    def handle(message):
        raise KeyError(message.payload)

    app.send("orders", "a")
    app.send("orders", "b", max_attempts=1)
    drained = drain(app, raise_failures=False)
    assert (drained.done, drained.failed, drained.dead) == (0, 1, 1)
    assert [(m.outcome, type(m.error), m.error.args) for m in drained.messages] == [
        ("failed", KeyError, ("a",)),
        ("dead", KeyError, ("b",)),
    ]


def test_a_failed_message_is_run_once_though_it_is_due_again_at_once(app, rows):
    ran = []

    @app.queue("orders").consumer(retry=Constant(base=0, cap=0))
    def handle(message):
        ran.append(message.payload)
        raise ValueError

    app.send("orders", 1)
    app.send("orders", 2)
    drained = drain(app, raise_failures=False)
    assert ran == [1, 2]
    assert drained.failed == 2
    left = rows("select attempt, claim_token, available_at <= postrow.clock() from postrow.message")
    assert left == [(1, None, True)] * 2


def test_with_retries_a_message_that_succeeds_in_the_end_raises_nothing(app):
    @app.queue("orders").consumer(max_attempts=3)
    def handle(message):
        if message.attempt < 3:
            raise ValueError(message.attempt)

    app.send("orders", 1)
    drained = drain(app, retries=True)
    assert [(m.attempt, m.outcome) for m in drained.messages] == [(1, "failed"), (2, "failed"), (3, "done")]


def test_with_retries_a_message_that_dies_raises_its_last_error(app, rows):
    @app.queue("orders").consumer(max_attempts=3)
    def handle(message):
        raise ValueError(f"attempt {message.attempt}")

    app.send("orders", 1)
    with pytest.raises(ValueError, match="attempt 3"):
        drain(app, retries=True)
    assert rows("select reason, attempt from postrow.dead_letter") == [("attempts", 3)]


def test_bury_and_retry_raise_and_snooze_does_not(app, rows):
    raised = {"bury": Bury("closed"), "retry": Retry("busy", after=60), "snooze": Snooze(60)}

    @app.queue("orders").consumer()
    async def handle(message):
        raise raised[message.payload]

    app.send("orders", "snooze")
    drained = drain(app)
    assert (drained.snoozed, drained.messages[0].error) == (1, None)
    app.send("orders", "bury")
    with pytest.raises(Bury, match="closed"):
        drain(app)
    app.send("orders", "retry")
    with pytest.raises(Retry, match="busy"):
        drain(app)
    assert rows("select reason from postrow.dead_letter") == [("buried",)]
    waiting = rows(
        "select payload, attempt, extract(epoch from available_at - postrow.clock()) from postrow.message "
        "order by payload"
    )
    assert [row[:2] for row in waiting] == [("retry", 1), ("snooze", 0)]
    assert all(30 < row[2] <= 60 for row in waiting)


def test_a_message_snoozed_for_no_time_is_run_once(app):
    @app.queue("orders").consumer()
    def handle(message):
        raise Snooze(0)

    app.send("orders", 1)
    assert drain(app, retries=True).snoozed == 1
    assert drain(app).snoozed == 1


def test_a_payload_that_does_not_fit_raises_what_a_worker_records(app, rows):
    called = []
    app.queue("orders", Order).consumer(name="h")(called.append)
    other = App(app.dsn)
    other.send("orders", {"number": "many"})
    other.close()
    with pytest.raises(postrow.PayloadTypeError, match="number"):
        drain(app)
    assert not called
    assert rows("select failures->-1->>'type' from postrow.message") == [("postrow.errors.PayloadTypeError",)]


def test_an_async_handler_that_takes_too_long_raises_a_timeout(app):
    @app.queue("orders").consumer(timeout=0.05)
    async def handle(message):
        await asyncio.Event().wait()

    app.send("orders", 1)
    with pytest.raises(TimeoutError, match=r"longer than its timeout of 0.05 s") as caught:
        drain(app)
    assert "attempt 1" in caught.value.__notes__[0]


def test_a_plain_def_that_gives_a_coroutine_raises_a_type_error(app):
    async def inner():
        """Never run."""

    app.queue("orders").consumer(name="h")(lambda message: inner())
    app.send("orders", 1)
    with pytest.raises(TypeError, match="make it an async def"):
        drain(app)


@pytest.fixture
def time_is_up(monkeypatch):
    """Ends the time of a drain with timeout=0.2 when it is called, and not before: a busy machine may take longer."""
    original, bounds = asyncio.timeout, []

    def timeout(seconds):
        if seconds != 0.2:
            return original(seconds)
        bounds.append((asyncio.get_running_loop(), original(None)))
        return bounds[-1][1]

    def end():
        ((loop, bound),) = bounds
        loop.call_soon_threadsafe(lambda: bound.reschedule(loop.time()))

    monkeypatch.setattr(asyncio, "timeout", timeout)
    return end


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_drain_that_takes_too_long_says_what_ran_and_gives_it_back(app, rows, time_is_up, kind):
    release = threading.Event()

    def stuck(message):
        time_is_up()
        release.wait(20)

    async def stuck_async(message):
        time_is_up()
        await asyncio.Event().wait()

    app.queue("orders").consumer(name="stuck")(stuck if kind == "sync" else stuck_async)
    sent = app.send("orders", 1)
    with pytest.raises(TimeoutError, match=f"not done after 0.2 s: handler stuck was running message {sent.id}"):
        drain(app, timeout=0.2)
    assert rows("select attempt, claim_token from postrow.message") == [(0, None)]
    release.set()


def test_handlers_that_enqueue_without_end_are_ended_by_the_timeout(app):
    @app.queue("orders").consumer()
    async def handle(message):
        await app.send_async("orders", 1)

    app.send("orders", 1)
    with pytest.raises(TimeoutError, match=r"not done after 0.5 s: .* messages were handled"):
        drain(app, timeout=0.5)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_can_extend_its_lease(app, rows, kind):
    leases = []

    def look(message):
        leases.extend(rows("select available_at - postrow.clock() > interval '59 min' from postrow.message"))

    def handle(message):
        message.extend(timedelta(hours=1))
        look(message)

    async def handle_async(message):
        await message.extend(timedelta(hours=1))
        look(message)

    app.queue("orders").consumer(name="h")(handle if kind == "sync" else handle_async)
    app.send("orders", 1)
    drain(app)
    assert leases == [(True,)]


def test_a_message_that_another_worker_took_is_lost(app, rows):
    @app.queue("orders").consumer()
    def handle(message):
        rows("update postrow.message set claim_token = gen_random_uuid() returning 1")
        with pytest.raises(postrow.LeaseLostError):
            message.extend(60)

    app.send("orders", 1)
    assert [m.outcome for m in drain(app).messages] == ["lost"]


def test_drain_async_runs_handlers_in_the_loop_of_the_caller(app):
    async def test():
        loop = asyncio.get_running_loop()
        seen = []

        @app.queue("orders").consumer()
        async def handle(message):
            seen.append(asyncio.get_running_loop() is loop)

        await app.send_async("orders", 1)
        drained = await drain_async(app)
        assert (drained.done, seen) == (1, [True])
        with pytest.raises(postrow.BadArgumentError, match="await drain_async"):
            drain(app)

    asyncio.run(test())


def test_a_drain_that_is_cancelled_gives_back_what_ran(app, rows):
    async def test():
        started = asyncio.Event()

        @app.queue("orders").consumer()
        async def handle(message):
            started.set()
            await asyncio.Event().wait()

        await app.send_async("orders", 1)
        task = asyncio.create_task(drain_async(app))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(test())
    assert rows("select attempt, claim_token from postrow.message") == [(0, None)]


def test_an_exit_of_a_handler_fails_its_message_and_is_raised(app):
    @app.queue("orders").consumer()
    def handle(message):
        raise SystemExit(3)

    app.send("orders", 1)
    with pytest.raises(SystemExit):
        drain(app)


def test_drain_refuses_what_a_worker_refuses(app, server):
    with pytest.raises(postrow.BadArgumentError, match="no handlers"):
        drain(app)
    app.queue("orders").consumer(name="h")(lambda message: None)
    with pytest.raises(postrow.BadArgumentError, match="no handler for queue 'order'"):
        drain(app, queues=["order"])
    other = App(server.dsn())
    other.queue("orders").consumer(name="h")(lambda message: None)
    with pytest.raises(postrow.SchemaMismatchError, match="postrow migrate"):
        drain(other)


def test_drain_raises_when_the_database_goes_away(app, rows):
    @app.queue("orders").consumer()
    def handle(message):
        rows(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        )

    app.send("orders", 1)
    with pytest.raises(psycopg.OperationalError):
        drain(app)


def test_the_consumer_is_registered_with_its_policy_as_a_worker_does(app, rows):
    app.queue("orders").consumer(name="h", max_attempts=7)(lambda message: None)
    drain(app)
    assert rows("select handler, max_attempts from postrow.consumer") == [("h", 7)]


def test_ids_of_handled_messages_are_those_of_the_enqueue(app):
    app.queue("orders").consumer(name="h")(lambda message: None)
    own = UUID(int=17)
    app.send("orders", 1, id=own)
    assert drain(app).messages[0].id == own


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_effects_and_ack_are_one_transaction_in_a_drain_too(app, rows, kind):
    def handle(message):
        with message.transaction() as tx:
            postrow.enqueue(tx, "receipts", message.payload)
            if message.payload == "broken":
                raise ValueError("broken")

    async def handle_async(message):
        async with message.transaction() as tx:
            await postrow.enqueue(tx, "receipts", message.payload)
            if message.payload == "broken":
                raise ValueError("broken")

    app.queue("orders").consumer(name="h")(handle if kind == "sync" else handle_async)
    app.send("orders", "fine")
    app.send("orders", "broken")
    drained = drain(app, raise_failures=False)
    assert (drained.done, drained.failed) == (1, 1)
    assert rows("select payload from postrow.message where queue = 'receipts'") == [("fine",)]


def test_what_is_raised_after_the_transaction_is_raised_though_the_message_is_done(app, rows):
    @app.queue("orders").consumer()
    def handle(message):
        with message.transaction():
            pass
        raise ValueError("too late")

    app.send("orders", 1)
    with pytest.raises(ValueError, match="too late") as caught:
        drain(app)
    assert "attempt 1: done" in caught.value.__notes__[0]
    assert rows("select outcome from postrow.history") == [("done",)]


def test_a_handler_that_acks_its_message_itself_has_done_it(app, postrow_dsn):
    @app.queue("orders").consumer(keep_history=False)
    def handle(message):
        with psycopg.connect(postrow_dsn) as conn:
            postrow.ack(conn, message)
        raise ValueError("too late")

    app.send("orders", 1)
    (handled,) = drain(app, raise_failures=False).messages
    assert (handled.outcome, str(handled.error)) == ("done", "too late")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_of_batches_gets_one_message_at_a_time_and_raises_what_it_returns_for_it(app, kind):
    sizes = []

    def handle(messages):
        sizes.append(len(messages))
        return [LookupError("no such user") if m.payload == 1 else None for m in messages]

    async def handle_async(messages):
        return handle(messages)

    app.queue("orders").consumer(name="h", batch=10)(handle if kind == "sync" else handle_async)
    app.send("orders", 0)
    app.send("orders", 1)
    with pytest.raises(LookupError, match="no such user") as caught:
        drain(app)
    assert "failed; payload 1" in caught.value.__notes__[0]
    assert sizes == [1, 1]


def test_drain_keeps_the_order_of_groups(app):
    seen = []

    @app.queue("q").consumer(retry=Constant(base=0.001, cap=1))
    def handle(message):
        seen.append((message.group_key, message.payload))
        if (message.payload, message.attempt) == ("a1", 1):
            raise Retry(after=0)

    for payload in ("a1", "b1", "a2", "b2"):
        app.send("q", payload, group_key=payload[0])
    drain(app, retries=True)
    assert [payload for group, payload in seen if group == "a"] == ["a1", "a1", "a2"]
    assert [payload for group, payload in seen if group == "b"] == ["b1", "b2"]


def test_limits_do_not_hold_in_a_drain(app):
    handle = []
    app.queue("q").consumer(
        name="handler", max_in_flight=1, rate=postrow.Rate(1, per=3600), tenant_rate=postrow.Rate(1, per=3600)
    )(handle.append)
    for n in range(3):
        app.send("q", n)
    assert drain(app).done == len(handle) == 3
