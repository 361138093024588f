"""What every driver does with the caller's handle."""

from uuid import UUID, uuid4

import psycopg
import pytest

import postrow
from postrow.drivers.psycopg3 import AUTOCOMMIT
from postrow.errors import (
    AbortedTransactionError,
    BadArgumentError,
    BadNameError,
    IdTakenError,
    NotInTransactionError,
    NotYetError,
    PayloadError,
    PayloadUnicodeError,
    SerializationError,
)
from postrow.ops import Op, produce

LEVELS = ["read committed", "repeatable read", "serializable"]


async def test_a_message_is_seen_by_others_once_its_transaction_commits(tx, done, stored):
    sent = await done(postrow.enqueue(tx, "q", {"n": 1}))
    assert isinstance(sent.id, UUID)
    assert not sent.deduplicated
    assert stored() == []
    await done(tx.commit())
    assert stored() == [{"n": 1}]


async def test_a_message_never_was_when_its_transaction_rolls_back(tx, done, stored):
    await done(postrow.enqueue(tx, "q", 1))  # the first statement of the transaction
    await done(tx.rollback())
    assert stored() == []


async def test_an_enqueue_that_is_the_first_statement_begins_the_callers_transaction(tx, done, stored):
    await done(postrow.enqueue(tx, "q", 1))
    await done(tx.execute("select pg_notify('somebody', 'else')"))
    assert tx.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    assert stored() == []
    await done(tx.commit())
    assert stored() == [1]


async def test_a_message_and_a_business_row_share_their_fate(connect, done, entered, stored):
    conn = await connect()
    await done(conn.execute("create temporary table orders (id int primary key)"))
    await done(conn.commit())
    with pytest.raises(psycopg.errors.UniqueViolation):  # noqa: PT012  # the transaction is the statement
        async with entered(conn.transaction()):
            await done(conn.execute("insert into orders values (1)"))
            await done(postrow.enqueue(conn, "q", 1))
            await done(conn.execute("insert into orders values (1)"))
    assert stored() == []
    async with entered(conn.transaction()):
        await done(conn.execute("insert into orders values (1)"))
        await done(postrow.enqueue(conn, "q", 1))
    assert stored() == [1]


async def test_a_savepoint_that_is_rolled_back_takes_its_message_and_no_other(tx, done, entered, stored):
    async with entered(tx.transaction()):
        await done(postrow.enqueue(tx, "q", "before"))
        with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the savepoint is the statement
            async with entered(tx.transaction()):
                await done(postrow.enqueue(tx, "q", "inside"))
                raise ZeroDivisionError
        await done(postrow.enqueue(tx, "q", "after"))
    assert stored() == ["after", "before"]


async def test_a_transaction_block_is_a_handle(connect, done, entered, stored):
    conn = await connect(autocommit=True)
    async with entered(conn.transaction()) as tx:
        await done(postrow.enqueue(tx, "q", 1))
        async with entered(conn.transaction()) as nested:
            await done(postrow.enqueue(nested, "q", 2))
        assert stored() == []
    assert stored() == [1, 2]


async def test_autocommit_without_a_transaction_is_refused_with_the_way_out(connect, done, stored):
    conn = await connect(autocommit=True)
    calls = [
        lambda: postrow.enqueue(conn, "q", 1),
        lambda: postrow.enqueue_many(conn, "q", [1]),
        lambda: postrow.enqueue_many(conn, "q", []),
        lambda: postrow.depth(conn, "q"),
    ]
    for call in calls:
        with pytest.raises(NotInTransactionError) as caught:
            await done(call())
        assert not isinstance(caught.value, AbortedTransactionError)
        assert str(caught.value) == (
            "this connection is in autocommit mode, so the message would not be part of your transaction.\n"
            "Open one (with conn.transaction():) or use app.send(...), which opens its own."
        )
        assert (caught.value.message, caught.value.hint) == AUTOCOMMIT
    assert stored() == []
    async with entered_transaction(conn, done):
        await done(postrow.enqueue(conn, "q", 1))
    assert stored() == [1]


class entered_transaction:  # noqa: N801  # reads as a block
    """A transaction in plain SQL, which the driver's own block knows nothing of."""

    def __init__(self, conn, done):
        self.conn, self.done = conn, done

    async def __aenter__(self):
        await self.done(self.conn.execute("begin"))

    async def __aexit__(self, *_):
        await self.done(self.conn.execute("commit"))


async def test_an_aborted_transaction_is_refused_until_it_is_rolled_back(tx, done, stored):
    with pytest.raises(psycopg.errors.DivisionByZero):
        await done(tx.execute("select 1/0"))
    with pytest.raises(AbortedTransactionError, match="failed already") as caught:
        await done(postrow.enqueue(tx, "q", 1))
    assert "Roll it back" in caught.value.hint
    assert isinstance(caught.value, NotInTransactionError)
    await done(tx.rollback())
    await done(postrow.enqueue(tx, "q", 2))
    await done(tx.commit())
    assert stored() == [2]


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
async def test_what_the_client_refuses_leaves_the_transaction_as_it_was(tx, done, stored, error, call):
    await done(postrow.enqueue(tx, "q", "before"))
    with pytest.raises(error):
        await done(call(tx))
    await done(postrow.enqueue(tx, "q", "after"))
    await done(tx.commit())
    assert stored() == ["after", "before"]


async def test_what_the_database_refuses_is_never_rolled_back_for_the_caller(tx, done, stored):
    await done(postrow.enqueue(tx, "q", "before"))
    await done(tx.execute("savepoint mine"))
    with pytest.raises(BadNameError, match="not a valid name") as caught:
        await done(postrow.enqueue(tx, "no good", 1))
    assert caught.value.__cause__.sqlstate == "PW002"
    assert "Use letters" in caught.value.hint
    assert tx.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
    await done(tx.execute("rollback to savepoint mine"))
    await done(tx.commit())
    assert stored() == ["before"]


async def test_a_refusal_of_the_database_is_the_class_of_its_code(tx, done, entered):
    taken = uuid4()
    await done(postrow.enqueue(tx, "q", 1, id=taken))
    for error, call in [
        (IdTakenError, lambda: postrow.enqueue(tx, "other", 1, id=taken)),
        (BadArgumentError, lambda: postrow.enqueue(tx, "q", 1, delay=-1)),
        (BadNameError, lambda: postrow.enqueue(tx, "q", 1, tenant="")),
    ]:
        with pytest.raises(error):
            async with entered(tx.transaction()):
                await done(call())
    with pytest.raises(NotYetError):  # noqa: PT012  # as above
        async with entered(tx.transaction()):
            publish = Op("select postrow.publish('topic', '1')", (), list)
            await done(postrow.drivers.run(tx, publish))
    await done(tx.rollback())


@pytest.mark.parametrize("level", LEVELS)
async def test_an_enqueue_works_in_every_isolation_level(tx, done, stored, level):
    await done(tx.execute(f"set transaction isolation level {level}"))
    await done(postrow.enqueue(tx, "q", 1))
    await done(postrow.enqueue(tx, "q", 2, id=uuid4()))
    assert len(await done(postrow.enqueue_many(tx, "q", [3, 4]))) == 2
    ((found,),) = await done((await done(tx.execute("show transaction_isolation"))).fetchall())
    assert found == level
    await done(tx.commit())
    assert stored() == [1, 2, 3, 4]


@pytest.mark.parametrize("level", LEVELS[1:])
async def test_a_rival_that_committed_the_same_id_is_an_error_to_run_again(connect, done, stored, level):
    first, second = await connect(), await connect()
    chosen = uuid4()
    await done(second.execute(f"set transaction isolation level {level}"))
    await done(second.execute("select 1"))  # its snapshot
    await done(postrow.enqueue(first, "q", "first", id=chosen))
    await done(first.commit())
    with pytest.raises(SerializationError) as caught:
        await done(postrow.enqueue(second, "q", "second", id=chosen))
    assert "again" in caught.value.hint
    await done(second.rollback())
    again = await done(postrow.enqueue(second, "q", "second", id=chosen))
    assert again == postrow.Enqueued(chosen, deduplicated=True)
    await done(second.commit())
    assert stored() == ["first"]


async def test_a_closed_connection_is_the_drivers_own_error(tx, done):
    await done(tx.close())
    with pytest.raises(psycopg.OperationalError, match="closed"):
        await done(postrow.enqueue(tx, "q", 1))
    with pytest.raises(psycopg.OperationalError, match="closed"):
        await done(postrow.enqueue_many(tx, "q", [1, 2]))


async def test_depth_counts_in_the_callers_transaction(tx, done):
    await done(postrow.enqueue(tx, "q", 1))
    await done(postrow.enqueue(tx, "q", 2, delay=60))
    await done(postrow.enqueue(tx, "q", 3, tenant="acme"))
    assert await done(postrow.depth(tx, "q")) == 3
    assert await done(postrow.depth_pending(tx, "q")) == 2
    assert await done(postrow.depth(tx, "q", tenant="acme")) == 1
    assert await done(postrow.depth_pending(tx, "q", tenant="default")) == 1
    await done(tx.rollback())
    assert await done(postrow.depth(tx, "q")) == 0


async def test_a_list_is_enqueued_in_its_order(tx, done):
    sent = await done(postrow.enqueue_many(tx, "q", iter(["a", "b", "c"]), subject="order:1"))
    cursor = await done(tx.execute("select id, payload, subject from postrow.message order by enqueued_at"))
    found = await done(cursor.fetchall())
    assert found == [(s.id, payload, "order:1") for s, payload in zip(sent, "abc", strict=True)]


async def test_a_long_list_is_all_or_nothing(tx, done, stored, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 10)
    await done(postrow.enqueue(tx, "q", -1))
    with pytest.raises(PayloadError, match=r"payloads\[25\]"):
        await done(postrow.enqueue_many(tx, "q", [*range(25), float("inf")]))
    with pytest.raises(BadNameError):  # by the database, in the first of three statements
        await done(postrow.enqueue_many(tx, "no good", range(25)))
    assert len(await done(postrow.enqueue_many(tx, "q", range(25)))) == 25
    await done(tx.commit())
    assert stored() == [-1, *range(25)]


async def test_a_list_that_the_database_refuses_midway_leaves_nothing_of_it(tx, done, stored, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 10)
    await done(postrow.enqueue(tx, "q", -1))
    await done(tx.execute("alter table postrow.message add check (payload <> '50')"))
    with pytest.raises(psycopg.errors.CheckViolation):
        await done(postrow.enqueue_many(tx, "q", list(range(100))))
    assert len(await done(postrow.enqueue_many(tx, "q", list(range(50))))) == 50
    await done(tx.execute("alter table postrow.message drop constraint message_payload_check"))
    await done(tx.commit())
    assert stored() == [-1, *range(50)]


async def test_a_list_may_be_read_from_the_same_transaction(tx, done, stored, monkeypatch):
    """A generator that asks the database as it goes."""
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 10)
    if isinstance(tx, psycopg.AsyncConnection):
        pytest.skip("an async cursor is no iterable")
    with tx.cursor("numbers") as numbers:
        numbers.itersize = 10
        numbers.execute("select n from generate_series(1, 100) n")
        sent = postrow.enqueue_many(tx, "q", (n for (n,) in numbers))
    assert len(sent) == 100
    await done(tx.commit())
    assert stored() == list(range(1, 101))


async def test_a_long_list_that_fails_in_a_later_statement_leaves_nothing_of_it(tx, done, stored, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 10)

    def payloads():
        yield from range(25)
        raise LookupError

    with pytest.raises(LookupError):
        await done(postrow.enqueue_many(tx, "q", payloads()))
    await done(tx.commit())
    assert stored() == []


async def test_a_typed_queue_enqueues_on_the_callers_handle(tx, done, stored):
    emails = postrow.App("unused").queue("emails", dict)
    await done(emails.enqueue(tx, {"n": 1}))
    await done(emails.enqueue_many(tx, [{"n": 2}, {"n": 3}]))
    with pytest.raises(PayloadError, match=r"payloads\[1\]"):
        await done(emails.enqueue_many(tx, [{}, 7]))
    await done(tx.commit())
    assert stored("emails") == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.parametrize(
    ("handle", "word"),
    [
        ("postgresql://localhost/x", "not a name or a DSN"),
        (None, "not a name or a DSN"),
        (object(), "connection of psycopg 3"),
        (type("Session", (), {"__module__": "sqlalchemy.orm.session"})(), "connection of psycopg 3"),
        (type("ConnectionPool", (), {"__module__": "psycopg_pool.pool"})(), "with pool.connection()"),
    ],
    ids=["text", "none", "object", "another library", "pool"],
)
def test_a_handle_that_no_driver_knows_is_refused_with_the_next_step(handle, word):
    with pytest.raises(postrow.UnsupportedHandleError) as caught:
        postrow.enqueue(handle, "q", 1)
    assert word in caught.value.hint
