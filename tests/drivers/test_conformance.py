"""What every handle is to Postrow: a transaction of the caller's. Every test runs on every handle of the conftest."""

import asyncio
import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

import postrow
from postrow.errors import (
    AbortedTransactionError,
    BadArgumentError,
    BadNameError,
    IdTakenError,
    LeaseLostError,
    NotInTransactionError,
    PayloadError,
    PayloadUnicodeError,
    SchemaMismatchError,
    SerializationError,
)
from postrow.models import Message
from postrow.ops import Op, produce

pytestmark = pytest.mark.asyncio(loop_scope="module")  # of the handles that tests leave to each other
# One of each way that a statement goes. What depends on that, and not on the kind of handle, is tested on these.
FAMILIES = (
    "psycopg",
    "psycopg async",
    "asyncpg",
    "sqlalchemy psycopg2",
    "sqlalchemy session psycopg",
    "sqlalchemy async session asyncpg",
    "django",
)
LEVELS = ["read committed", "repeatable read", "serializable"]


def on_each_family(test):
    """The test runs on FAMILIES only."""
    test.handles = FAMILIES
    return test


def on_each_async(test):
    """The test runs on the async handles only."""
    test.handles = "async"
    return test


def claimed(monitor):
    """A message in the hands of a handler."""
    monitor.execute("select postrow.enqueue('work', '\"claimed\"')")
    row = monitor.execute("select tenant, id, queue, claim_token from postrow.claim('work', 1)").fetchone()
    fields = dict.fromkeys(inspect.signature(Message).parameters)
    return Message(**(fields | dict(zip(("tenant", "id", "queue", "claim_token"), row, strict=True))))


def subscribed(monitor):
    """A topic that two queues are subscribed to."""
    monitor.execute("select postrow.subscribe('order.*', queue) from unnest(array['q1', 'q2']) queue")
    return "order.paid"


@dataclass(frozen=True)
class Case:
    """A call of a function that takes a transaction, with what `prepare` made, and what it has to give."""

    call: Callable
    check: Callable
    prepare: Callable = lambda _: None


# Every function that takes a transaction. A new one is a line here.
OPS = {
    "enqueue": Case(
        lambda tx, _: tx.call(postrow.enqueue, "q", {"n": 1}),
        lambda sent: type(sent.id) is UUID and sent.deduplicated is False,
    ),
    "enqueue_many": Case(
        lambda tx, _: tx.call(postrow.enqueue_many, "q", [1, 2]),
        lambda sent: [(type(one.id), one.deduplicated) for one in sent] == [(UUID, False)] * 2,
    ),
    "enqueue_many keyed": Case(
        lambda tx, _: tx.call(postrow.enqueue_many, "q", ["a", "b", "a"], dedup_key=str),
        lambda sent: [one.deduplicated for one in sent] == [False, False, True] and sent[0].id == sent[2].id,
    ),
    "publish": Case(
        lambda tx, topic: tx.call(postrow.publish, topic, {"n": 1}),
        lambda sent: (
            {q: (type(one.id), one.deduplicated) for q, one in sent.messages.items()}
            == dict.fromkeys(("q1", "q2"), (UUID, False))
        ),
        subscribed,
    ),
    "depth": Case(lambda tx, _: tx.call(postrow.depth, "q"), lambda n: type(n) is int),
    "depth_pending": Case(lambda tx, _: tx.call(postrow.depth_pending, "q"), lambda n: type(n) is int),
    "once": Case(lambda tx, _: tx.call(postrow.once, "event:1"), lambda first: first is True),
    "ack": Case(lambda tx, message: tx.call(postrow.ack, message), lambda nothing: nothing is None, claimed),
}


async def test_every_function_that_takes_a_transaction_is_in_the_suite():
    functions = {name: getattr(postrow, name) for name in postrow.__all__}
    taking = {
        n for n, f in functions.items() if inspect.isfunction(f) and next(iter(inspect.signature(f).parameters)) == "tx"
    }
    assert taking == {name.split()[0] for name in OPS}


async def run_every_op(tx, prepared):
    """All of them in one transaction."""
    for name, case in OPS.items():
        given = await case.call(tx, prepared[name])
        assert case.check(given), (name, given)


@pytest.fixture
def prepared(monitor):
    return {name: case.prepare(monitor) for name, case in OPS.items()}


async def test_every_op_gives_pythons_own_values(tx, prepared):
    await run_every_op(tx, prepared)
    await tx.commit()


async def test_every_op_works_whatever_the_caller_registered_for_rows_and_types(connect, prepared):
    tx = await connect(odd=True)
    await run_every_op(tx, prepared)
    await tx.commit()


@pytest.mark.parametrize("name", OPS)
async def test_an_op_that_is_the_first_statement_never_was_after_a_rollback(tx, name, monitor):
    case = OPS[name]
    await case.call(tx, case.prepare(monitor))
    await tx.rollback()
    for table, left in {"message": name == "ack", "seen": False, "history": False}.items():
        assert monitor.execute(f"select exists (select from postrow.{table})").fetchone() == (left,)


@pytest.mark.parametrize("level", LEVELS[1:])
async def test_every_op_works_in_every_isolation_level(tx, prepared, level):
    await tx.rows(f"set transaction isolation level {level}")
    await run_every_op(tx, prepared)
    assert await tx.rows("show transaction_isolation") == [(level,)]
    await tx.commit()


async def test_every_op_in_a_savepoint_goes_with_it(tx, prepared, stored):
    await tx.call(postrow.enqueue, "q", "before")
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the savepoint is the statement
        async with tx.savepoint():
            await run_every_op(tx, prepared)
            raise ZeroDivisionError
    async with tx.savepoint():
        await tx.call(postrow.enqueue, "q", "kept")
    await tx.call(postrow.enqueue, "q", "after")
    assert await tx.call(postrow.once, "event:1")
    await tx.commit()
    assert stored() == ["after", "before", "kept"]


async def test_every_op_is_refused_in_autocommit_with_the_way_out(connect, prepared, stored):
    tx = await connect(autocommit=True)
    for name, case in OPS.items():
        with pytest.raises(NotInTransactionError) as caught:
            await case.call(tx, prepared[name])
        assert not isinstance(caught.value, AbortedTransactionError)
        assert "autocommit mode, so the message would not be part of your transaction" in caught.value.message
        assert "app.send(...)" in caught.value.hint
    with pytest.raises(NotInTransactionError):
        await tx.call(postrow.enqueue_many, "q", [])
    assert stored() == []


async def test_every_op_is_refused_in_a_transaction_that_has_failed(tx, prepared, stored):
    await tx.call(postrow.enqueue, "q", "lost")
    with pytest.raises(tx.error):
        await tx.rows("select 1/0")
    for name, case in OPS.items():
        with pytest.raises(AbortedTransactionError) as caught:
            await case.call(tx, prepared[name])
        assert isinstance(caught.value, NotInTransactionError)
        assert "Roll it back" in caught.value.hint
    await tx.rollback()
    await tx.begin()
    await run_every_op(tx, prepared)
    await tx.rollback()
    assert stored() == []


async def test_a_message_is_seen_by_others_once_its_transaction_commits(tx, stored):
    sent = await tx.call(postrow.enqueue, "q", {"n": 1})
    assert stored() == []
    await tx.commit()
    assert stored() == [{"n": 1}]
    await tx.begin()
    assert await tx.rows("select id::text from postrow.message") == [(str(sent.id),)]


async def test_a_message_never_was_when_its_transaction_rolls_back(tx, stored):
    await tx.call(postrow.enqueue, "q", 1)  # the first statement of the transaction
    assert await tx.rows("select count(*) from postrow.message") == [(1,)]
    await tx.rollback()
    assert stored() == []


async def test_a_list_that_is_the_first_statement_never_was_after_a_rollback(tx, stored, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 2)
    assert len(await tx.call(postrow.enqueue_many, "q", [1, 2, 3, 4, 5])) == 5
    await tx.rollback()
    assert stored() == []


async def test_an_enqueue_that_is_the_first_statement_begins_the_callers_transaction(tx, stored):
    await tx.call(postrow.enqueue, "q", 1)
    await tx.rows("select pg_notify('somebody', 'else')")
    assert stored() == []
    await tx.commit()
    assert stored() == [1]


async def test_a_message_and_a_business_row_share_their_fate(tx, monitor, stored):
    monitor.execute("create table if not exists public.orders (id int primary key)")
    try:
        await tx.rows("insert into public.orders values (1)")
        await tx.call(postrow.enqueue, "q", 1)
        await tx.rollback()
        await tx.begin()
        await tx.call(postrow.enqueue, "q", 2)
        await tx.rows("insert into public.orders values (2)")
        await tx.commit()
        assert stored() == [2]
        assert monitor.execute("select id from public.orders").fetchall() == [(2,)]
    finally:
        monitor.execute("drop table public.orders")


async def test_a_handle_is_used_again_after_an_error_in_a_savepoint(tx, stored):
    await tx.call(postrow.enqueue, "q", "before")
    for _ in range(2):
        with pytest.raises(BadNameError):
            async with tx.savepoint():
                await tx.call(postrow.enqueue, "no good", 1)
        with pytest.raises(tx.error):
            async with tx.savepoint():
                await tx.rows("select 1/0")
    await tx.call(postrow.enqueue, "q", "after")
    await tx.commit()
    assert stored() == ["after", "before"]


@on_each_family
@pytest.mark.parametrize(
    ("error", "call"),
    [
        (PayloadError, lambda tx: postrow.enqueue(tx, "q", {1: 2})),
        (PayloadError, lambda tx: postrow.enqueue(tx, "q", [float("nan")])),
        (PayloadUnicodeError, lambda tx: postrow.enqueue(tx, "q", "a\0")),
        (BadArgumentError, lambda tx: postrow.enqueue(tx, "q", 1, priority=40_000)),
        (BadArgumentError, lambda tx: postrow.enqueue(tx, "q", 1, nonsense=1)),
        (BadNameError, lambda tx: postrow.enqueue(tx, "q\0", 1)),
        (BadArgumentError, lambda tx: postrow.enqueue_many(tx, "q", "text")),
        (PayloadError, lambda tx: postrow.enqueue_many(tx, "q", [1, {1, 2}])),
    ],
)
async def test_what_the_client_refuses_leaves_the_transaction_as_it_was(tx, stored, error, call):
    await tx.call(postrow.enqueue, "q", "before")
    with pytest.raises(error):
        await tx.call(call)
    await tx.call(postrow.enqueue, "q", "after")
    await tx.commit()
    assert stored() == ["after", "before"]


async def test_what_the_database_refuses_is_never_rolled_back_for_the_caller(tx, stored):
    await tx.call(postrow.enqueue, "q", "before")
    await tx.rows("savepoint mine")
    with pytest.raises(BadNameError, match="not a valid name") as caught:
        await tx.call(postrow.enqueue, "no good", 1)
    assert isinstance(caught.value.__cause__, tx.error)
    assert "Use letters" in caught.value.hint
    with pytest.raises(AbortedTransactionError):
        await tx.call(postrow.enqueue, "q", 1)
    await tx.rows("rollback to savepoint mine")
    await tx.call(postrow.enqueue, "q", "after")
    await tx.commit()
    assert stored() == ["after", "before"]


@on_each_family
async def test_a_refusal_of_the_database_is_the_class_of_its_code(tx):
    taken = uuid4()
    await tx.call(postrow.enqueue, "q", 1, id=taken)
    for error, call in [
        (IdTakenError, lambda: tx.call(postrow.enqueue, "other", 1, id=taken)),
        (BadArgumentError, lambda: tx.call(postrow.enqueue, "q", 1, delay=-1)),
        (BadNameError, lambda: tx.call(postrow.enqueue, "q", 1, tenant="")),
        (BadArgumentError, lambda: tx.call(postrow.enqueue, "q", 1, delay=timedelta.max)),
        (PayloadError, lambda: tx.call(postrow.drivers.run, Op("select $1::text::jsonb", ("{",), list))),
        (SchemaMismatchError, lambda: tx.call(postrow.drivers.run, Op("select postrow.nothing()", (), list))),
    ]:
        with pytest.raises(error):
            async with tx.savepoint():
                await call()
    await tx.rollback()


@on_each_family
async def test_an_error_that_is_not_ours_is_the_librarys_own(tx):
    await tx.call(postrow.enqueue, "q", 1)
    with pytest.raises(tx.error) as caught:
        await tx.call(postrow.drivers.run, Op("select 1/0", (), list))
    assert not isinstance(caught.value, postrow.PostrowError)
    await tx.rollback()


@pytest.mark.parametrize("level", LEVELS[1:])
async def test_a_rival_that_committed_the_same_id_is_an_error_to_run_again(tx, monitor, stored, level):
    chosen = uuid4()
    await tx.rows(f"set transaction isolation level {level}")
    await tx.rows("select 1")  # its snapshot
    monitor.execute("select postrow.enqueue('q', '\"first\"', id => %s)", [chosen])
    with pytest.raises(SerializationError) as caught:
        await tx.call(postrow.enqueue, "q", "second", id=chosen)
    assert "again" in caught.value.hint
    assert isinstance(caught.value, tx.serialization)  # what the library's own loops await
    await tx.rollback()
    await tx.begin()
    again = await tx.call(postrow.enqueue, "q", "second", id=chosen)
    assert again == postrow.Enqueued(chosen, deduplicated=True)
    await tx.commit()
    assert stored() == ["first"]


@on_each_family
async def test_depth_counts_in_the_callers_transaction(tx):
    await tx.call(postrow.enqueue, "q", 1)
    await tx.call(postrow.enqueue, "q", 2, delay=60)
    await tx.call(postrow.enqueue, "q", 3, tenant="acme")
    assert await tx.call(postrow.depth, "q") == 3
    assert await tx.call(postrow.depth_pending, "q") == 2
    assert await tx.call(postrow.depth, "q", tenant="acme") == 1
    assert await tx.call(postrow.depth_pending, "q", tenant="default") == 1
    await tx.rollback()
    await tx.begin()
    assert await tx.call(postrow.depth, "q") == 0


@on_each_family
async def test_once_is_true_once(tx):
    assert await tx.call(postrow.once, "event:1", scope="shop", tenant="acme", keep=60)
    await tx.commit()
    await tx.begin()
    assert await tx.call(postrow.once, "event:1", scope="shop", tenant="acme") is False
    assert await tx.call(postrow.once, "event:1") is True


async def test_an_ack_settles_with_the_transaction_and_only_once(tx, monitor):
    message = claimed(monitor)
    await tx.call(postrow.ack, message)
    assert monitor.execute("select count(*) from postrow.history").fetchone() == (0,)
    await tx.commit()
    assert monitor.execute("select outcome from postrow.history").fetchall() == [("done",)]
    await tx.begin()
    with pytest.raises(LeaseLostError):
        await tx.call(postrow.ack, message)
    await tx.rollback()


OPTIONS = {
    "id": uuid4(),
    "tenant": "acme",
    "priority": -3,
    "max_attempts": 7,
    "target": "worker-1",
    "target_for": timedelta(days=2, microseconds=5),
    "subject": "100% of order:17 $1 %s ü",
    "expires_at": datetime(2999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    "available_at": datetime(2998, 1, 1, tzinfo=UTC),
    "headers": {"trace": ["ü", None, 1.5]},
    "dedup_key": "key %(p1)s",
    "dedup_for": timedelta(hours=1),
}
COLUMNS = [name for name in OPTIONS if name not in {"target_for", "dedup_for"}]


@pytest.mark.parametrize("odd", [False, True], ids=["plain", "odd"])
async def test_every_option_arrives_as_it_was_given(connect, monitor, odd):
    tx = await connect(odd=odd)
    before = datetime.now(UTC)
    sent = await tx.call(postrow.enqueue, "q", 1, **OPTIONS)
    assert sent == postrow.Enqueued(OPTIONS["id"], deduplicated=False)
    again = await tx.call(postrow.enqueue, "q", 1, **(OPTIONS | {"id": None}))
    assert again == postrow.Enqueued(OPTIONS["id"], deduplicated=True)
    await tx.commit()
    names = ", ".join(COLUMNS)
    (*found, until) = monitor.execute(f"select {names}, target_until from postrow.message").fetchone()
    assert dict(zip(COLUMNS, found, strict=True)) == {name: OPTIONS[name] for name in COLUMNS}
    assert timedelta(0) <= until - OPTIONS["available_at"] - OPTIONS["target_for"] or until - before < timedelta(days=3)


@on_each_family
async def test_a_delay_is_the_same_on_every_handle(tx, monitor):
    await tx.rows("set local timezone = 'Europe/Berlin'")
    sent = await tx.call(postrow.enqueue, "q", 1, delay=timedelta(days=400, seconds=3, microseconds=7))
    await tx.commit()
    difference = "select available_at - enqueued_at from postrow.message where id = %s"
    delay = monitor.execute(difference, [sent.id]).fetchone()[0]
    # in the session's time zone a day may have 23 or 25 hours
    assert min(abs((delay - timedelta(days=400, hours=h, seconds=3)).total_seconds()) for h in (-1, 0, 1)) < 1


@on_each_family
async def test_dedup_while_alive_reaches_the_database(tx, monitor):
    sent = await tx.call(postrow.enqueue, "q", 1, dedup_key="k", dedup_while="alive")
    await tx.commit()
    monitor.execute("select postrow.claim('q', 1)")
    await tx.begin()
    assert await tx.call(postrow.enqueue, "q", 2, dedup_key="k", dedup_while="alive") == (sent.id, True)


UNICODE = {
    "ключ": "naïve 😀 \u2028 \\u0041 \\ \" ' $1 %s %(p1)s %% :name ::text ? \t\n",
    "%s": "$2",
    "": ["'; select 1 --"],
}


@on_each_family
async def test_any_text_arrives_as_it_was_given(tx, stored):
    await tx.call(postrow.enqueue, "q", UNICODE)
    await tx.call(postrow.enqueue_many, "r", [UNICODE, [UNICODE], "\\"])
    await tx.commit()
    assert stored() == [UNICODE]
    found = stored("r")
    assert len(found) == 3
    assert all(one in found for one in (UNICODE, [UNICODE], "\\"))


@on_each_family
async def test_a_payload_of_a_megabyte_arrives(tx, stored):
    payload = {"text": "ü%'\\" * 250_000}
    await tx.call(postrow.enqueue, "q", payload)
    await tx.commit()
    assert stored() == [payload]


@on_each_family
async def test_a_list_is_enqueued_in_its_order(tx, monitor):
    sent = await tx.call(postrow.enqueue_many, "q", iter("abcdefghij"), subject="order:1")
    await tx.commit()
    found = monitor.execute("select id, payload, subject from postrow.message order by id").fetchall()
    assert found == [(s.id, payload, "order:1") for s, payload in zip(sent, "abcdefghij", strict=True)]


@on_each_family
async def test_an_empty_list_is_nothing(tx, stored):
    assert await tx.call(postrow.enqueue_many, "q", []) == []
    await tx.commit()
    assert stored() == []


async def test_a_long_list_is_all_or_nothing(tx, stored, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 10)
    await tx.call(postrow.enqueue, "q", -1)
    with pytest.raises(PayloadError, match=r"payloads\[25\]"):
        await tx.call(postrow.enqueue_many, "q", [*range(25), float("inf")])
    with pytest.raises(BadNameError):  # by the database, in the first of three statements
        await tx.call(postrow.enqueue_many, "no good", range(25))
    assert len(await tx.call(postrow.enqueue_many, "q", range(25))) == 25
    await tx.commit()
    assert stored() == [-1, *range(25)]


async def test_a_list_that_the_database_refuses_midway_leaves_nothing_of_it(tx, stored, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 10)
    await tx.call(postrow.enqueue, "q", -1)
    await tx.rows("alter table postrow.message add constraint no_50 check (payload <> '50')")
    with pytest.raises(tx.error):
        await tx.call(postrow.enqueue_many, "q", list(range(100)))
    assert len(await tx.call(postrow.enqueue_many, "q", list(range(50)))) == 50
    await tx.rows("alter table postrow.message drop constraint no_50")
    await tx.commit()
    assert stored() == [-1, *range(50)]


async def test_a_list_in_a_savepoint_goes_with_it(tx, stored, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 10)
    await tx.call(postrow.enqueue, "q", -1)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the savepoint is the statement
        async with tx.savepoint():
            await tx.call(postrow.enqueue_many, "q", list(range(25)))
            raise ZeroDivisionError
    async with tx.savepoint():
        await tx.call(postrow.enqueue_many, "q", [25])
    await tx.commit()
    assert stored() == [-1, 25]


@on_each_family
async def test_a_list_that_fails_at_the_caller_in_a_later_statement_leaves_nothing_of_it(tx, stored, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 10)

    def payloads():
        yield from range(25)
        raise LookupError

    with pytest.raises(LookupError):
        await tx.call(postrow.enqueue_many, "q", payloads())
    await tx.call(postrow.enqueue, "q", 1)
    await tx.commit()
    assert stored() == [1]


@on_each_family
async def test_a_list_of_several_statements_in_a_failed_transaction_is_refused(tx, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 1)
    await tx.call(postrow.enqueue, "q", 1)
    with pytest.raises(tx.error):
        await tx.rows("select 1/0")
    with pytest.raises(AbortedTransactionError):
        await tx.call(postrow.enqueue_many, "q", [1, 2, 3])
    await tx.rollback()


async def test_a_savepoint_is_made_only_for_several_statements(tx, monkeypatch, handle_statements):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 10)
    await tx.rows("select 1")
    async with handle_statements(tx) as statements:
        await tx.call(postrow.enqueue, "q", 1)
        await tx.call(postrow.enqueue_many, "q", list(range(10)))
        await tx.call(postrow.depth, "q")
    assert statements == ["select", "select", "select"]
    async with handle_statements(tx) as statements:
        await tx.call(postrow.enqueue_many, "q", iter(range(20)))
    assert statements == ["savepoint", "select", "select", "release"]


@on_each_family
async def test_a_typed_queue_enqueues_on_the_callers_handle(tx, stored):
    emails = postrow.App("unused").queue("emails", dict)
    await tx.call(emails.enqueue, {"n": 1})
    await tx.call(emails.enqueue_many, [{"n": 2}, {"n": 3}])
    with pytest.raises(PayloadError, match=r"payloads\[1\]"):
        await tx.call(emails.enqueue_many, [{}, 7])
    await tx.commit()
    assert stored("emails") == [{"n": 1}, {"n": 2}, {"n": 3}]


@on_each_async
@pytest.mark.parametrize("bulk", [False, True], ids=["one", "many"])
async def test_a_cancelled_call_commits_nothing(tx, sessions, stored, wait_blocked, bulk, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 1)
    await tx.call(postrow.enqueue, "q", "before")
    pid = (await tx.rows("select pg_backend_pid()"))[0][0]
    rival = sessions("rival")
    rival.run("begin")
    rival.run("select postrow.enqueue('q', '\"rival\"', dedup_key => 'k', dedup_for => '1 h')")

    def keyed(tx):
        if bulk:
            keys = itertools.chain(["mine"], itertools.repeat("k"))
            return postrow.enqueue_many(tx, "q", ["1", "2"], dedup_key=lambda _: next(keys), dedup_for=3600)
        return postrow.enqueue(tx, "q", "mine", dedup_key="k", dedup_for=3600)

    with pytest.raises(TimeoutError):  # noqa: PT012  # from the cancellation
        async with asyncio.timeout(None) as limit:
            task = asyncio.ensure_future(wait_blocked(pid))
            task.add_done_callback(lambda _: limit.reschedule(0))
            await tx.call(keyed)
    await task
    try:
        await tx.rollback()
    except tx.error:
        assert "closed" in repr(tx.handle)
    rival.run("commit")
    assert stored() == ["rival"]


@pytest.mark.slow
@on_each_family
async def test_a_hundred_thousand_messages_are_one_transaction(tx, monitor):
    sent = await tx.call(postrow.enqueue_many, "q", ({"n": n} for n in range(100_000)))
    assert len({one.id for one in sent}) == 100_000
    assert monitor.execute("select count(*) from postrow.message").fetchone() == (0,)
    await tx.commit()
    found = monitor.execute("select id from postrow.message order by (payload->>'n')::int").fetchall()
    assert [id_ for (id_,) in found] == [one.id for one in sent]
