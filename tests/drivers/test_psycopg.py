"""What is psycopg's own: cursors, row factories, codecs, pipelines, two-phase commit, cancellation."""

import asyncio
from dataclasses import dataclass
from uuid import uuid4

import psycopg
import pytest
from psycopg.adapt import Loader
from psycopg.pq import TransactionStatus
from psycopg.rows import class_row, dict_row, kwargs_row, namedtuple_row, scalar_row

import postrow
from postrow.errors import (
    AbortedTransactionError,
    BadNameError,
    NotInTransactionError,
    PayloadError,
    UnsupportedHandleError,
)
from postrow.ops import produce


@dataclass
class Row:
    anything: int


@pytest.mark.parametrize(
    "factory",
    [dict_row, namedtuple_row, scalar_row, class_row(Row), kwargs_row(lambda **values: values)],
    ids=["dict", "namedtuple", "scalar", "class", "kwargs"],
)
async def test_the_callers_row_factory_does_not_leak_in(connect, done, stored, factory):
    conn = await connect(row_factory=factory)
    assert not (await done(postrow.enqueue(conn, "q", 1))).deduplicated
    assert len(await done(postrow.enqueue_many(conn, "q", [2, 3]))) == 2
    assert await done(postrow.depth(conn, "q")) == 3
    assert conn.row_factory is factory
    await done(conn.commit())
    assert stored() == [1, 2, 3]


@pytest.mark.parametrize("kind", ["ClientCursor", "RawCursor"])
async def test_the_callers_cursor_factory_does_not_leak_in(driver, connect, done, kind):
    factory = getattr(psycopg, kind if driver.connection_class is psycopg.Connection else f"Async{kind}")
    conn = await connect(cursor_factory=factory)
    await done(postrow.enqueue(conn, "q", {"%s": "$1"}))
    assert await done(postrow.depth(conn, "q")) == 1


class Wrong(Loader):
    """A codec of the user's that gives what we could not read."""

    def load(self, data):
        return ["not", "what", "it", "was"]


async def test_the_callers_codecs_do_not_leak_in(connect, done, stored):
    conn = await connect()
    for name in ("json", "jsonb", "uuid", "timestamptz", "timestamp", "numeric", "interval"):
        conn.adapters.register_loader(name, Wrong)
    conn.adapters.register_dumper(dict, psycopg.types.json.JsonbDumper)
    conn.adapters.register_dumper(list, psycopg.types.json.JsonbDumper)
    chosen = uuid4()
    assert await done(postrow.enqueue(conn, "q", {"a": [1]}, id=chosen)) == postrow.Enqueued(chosen, False)
    assert (await done(postrow.enqueue(conn, "q", {"a": [1]}, id=chosen))).deduplicated
    await done(postrow.enqueue_many(conn, "q", [{"a": [2]}], headers={"trace": ["x"]}))
    await done(conn.commit())
    assert stored() == [{"a": [1]}, {"a": [2]}]


async def test_a_cursor_is_refused_with_the_next_step(tx, done):
    cursor = tx.cursor()
    with pytest.raises(UnsupportedHandleError, match="Cursor is not a connection") as caught:
        await done(postrow.enqueue(cursor, "q", 1))
    assert caught.value.hint == "Pass cursor.connection instead."
    await done(postrow.enqueue(cursor.connection, "q", 1))
    await done(tx.rollback())


async def test_a_pipeline_carries_messages_of_its_transaction(connect, done, entered, stored):
    conn = await connect(autocommit=True)
    async with entered(conn.pipeline()), entered(conn.transaction()):
        await done(conn.execute("select 1"))
        await done(postrow.enqueue(conn, "q", 1))
        await done(postrow.enqueue_many(conn, "q", [2, 3]))
    assert stored() == [1, 2, 3]


async def test_a_pipeline_without_autocommit_commits_with_the_caller(tx, done, entered, stored):
    async with entered(tx.pipeline()):
        await done(postrow.enqueue(tx, "q", 1))
        await done(tx.execute("select 1"))
        await done(postrow.enqueue(tx, "q", 2))
    assert stored() == []
    await done(tx.commit())
    assert stored() == [1, 2]


async def test_a_begin_that_stands_in_a_pipeline_is_seen(connect, done, entered, stored):
    conn = await connect(autocommit=True)
    async with entered(conn.pipeline()):
        await done(conn.execute("begin"))
        await done(postrow.enqueue(conn, "q", 1))
        await done(conn.execute("rollback"))
        await done(conn.execute("begin"))
        await done(postrow.enqueue(conn, "q", 2))
        await done(conn.execute("commit"))
    assert stored() == [2]


async def test_a_pipeline_in_autocommit_without_a_transaction_is_refused(connect, done, entered, stored):
    conn = await connect(autocommit=True)
    async with entered(conn.pipeline()):
        with pytest.raises(NotInTransactionError):
            await done(postrow.enqueue(conn, "q", 1))
        await done(conn.execute("select 1"))  # not answered yet: its state is not known
        with pytest.raises(NotInTransactionError):
            await done(postrow.enqueue(conn, "q", 1))
        await done(conn.execute("begin"))
        await done(conn.execute("commit"))
        with pytest.raises(NotInTransactionError):
            await done(postrow.enqueue(conn, "q", 1))
    assert stored() == []


async def test_an_error_of_the_caller_in_a_pipeline_stays_the_callers(connect, done, entered):
    conn = await connect()
    async with entered(conn.pipeline()):
        await done(conn.execute("select '{'::jsonb"))  # 22P02, which is a PayloadError when it is of ours
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            await done(postrow.enqueue(conn, "q", 1))
        with pytest.raises(AbortedTransactionError):
            await done(postrow.enqueue(conn, "q", 1))


async def test_a_refusal_in_a_pipeline_is_our_class(tx, done, entered):
    async with entered(tx.pipeline()):
        with pytest.raises(BadNameError):
            await done(postrow.enqueue(tx, "no good", 1))
        with pytest.raises(AbortedTransactionError):
            await done(postrow.enqueue(tx, "q", 1))
    await done(tx.rollback())
    await done(postrow.enqueue(tx, "q", 1))
    await done(tx.rollback())


async def test_a_two_phase_transaction_takes_messages_when_taps_are_off(tx, done, stored):
    await done(tx.execute("set postrow.tap = off"))
    await done(tx.commit())
    for finish, expected in (("tpc_rollback", []), ("tpc_commit", [1, 2, 3])):
        await done(tx.tpc_begin(tx.xid(1, uuid4().hex, "branch")))
        await done(postrow.enqueue(tx, "q", 1))
        await done(postrow.enqueue_many(tx, "q", [2, 3]))
        await done(tx.tpc_prepare())
        assert stored() == []
        await done(getattr(tx, finish)())
        assert stored() == expected


async def test_a_long_list_fits_a_two_phase_transaction(tx, done, stored, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 2)
    await done(tx.execute("set postrow.tap = off"))
    await done(tx.commit())
    await done(tx.tpc_begin(tx.xid(1, uuid4().hex, "branch")))
    with pytest.raises(PayloadError):
        await done(postrow.enqueue_many(tx, "q", [*range(20), {1}]))
    await done(postrow.enqueue_many(tx, "q", list(range(20))))
    await done(tx.tpc_prepare())
    await done(tx.tpc_commit())
    assert stored() == list(range(20))


async def test_a_connection_from_a_pool_is_a_handle(driver, committed, done, entered, stored):
    pools = pytest.importorskip("psycopg_pool")
    sync = driver.connection_class is psycopg.Connection
    pool = (pools.ConnectionPool if sync else pools.AsyncConnectionPool)(committed, min_size=1, open=False)
    await done(pool.open())
    try:
        async with entered(pool.connection()) as conn:
            await done(postrow.enqueue(conn, "q", 1))
        with pytest.raises(UnsupportedHandleError, match=r"pool\.connection"):
            postrow.enqueue(pool, "q", 1)
    finally:
        await done(pool.close())
    assert stored() == [1]


async def until_blocked(conn, task, monitor):
    """Wait until the statement that the task runs on the connection waits for a lock."""
    statement = "select 1 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
    try:
        async with asyncio.timeout(20):
            while not monitor.run(statement, [conn.info.backend_pid]):
                assert not task.done(), task
                await asyncio.sleep(0.005)
    except BaseException:
        task.cancel()
        raise


async def test_a_cancelled_call_leaves_the_decision_to_the_caller(committed, sessions, stored):
    chosen = uuid4()
    rival = sessions("rival")
    rival.run("begin")
    rival.run("select postrow.enqueue('q', '\"rival\"', id => %s)", [chosen])
    async with await psycopg.AsyncConnection.connect(committed) as conn:
        await postrow.enqueue(conn, "q", "before")
        task = asyncio.create_task(postrow.enqueue(conn, "q", "mine", id=chosen))
        await until_blocked(conn, task, sessions("monitor"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert conn.info.transaction_status == TransactionStatus.INERROR  # cancelled, not rolled back
        with pytest.raises(AbortedTransactionError):
            await postrow.enqueue(conn, "q", "after")
        await conn.rollback()
        rival.run("commit")
        assert (await postrow.enqueue(conn, "q", "mine", id=chosen)).deduplicated
        await conn.commit()
    assert stored() == ["rival"]


async def test_a_busy_connection_in_autocommit_mode_is_refused(committed, sessions, stored):
    """What another task has going may be a transaction, or not: nobody can say."""
    gate, monitor = sessions("gate"), sessions("monitor")
    gate.run("select pg_advisory_lock(815)")
    async with await psycopg.AsyncConnection.connect(committed, autocommit=True) as conn:
        task = asyncio.create_task(conn.execute("select pg_advisory_lock(815)"))
        await until_blocked(conn, task, monitor)
        with pytest.raises(NotInTransactionError, match="busy"):
            await postrow.enqueue(conn, "q", 1)
        gate.run("select pg_advisory_unlock(815)")
        await task
    assert stored() == []


async def test_arguments_are_checked_before_anything_is_awaited(committed):
    async with await psycopg.AsyncConnection.connect(committed) as conn:
        with pytest.raises(PayloadError):
            postrow.enqueue(conn, "q", {1, 2})
