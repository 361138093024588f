"""What is asyncpg's own: its pool, transactions begun in plain SQL, its codecs, cancellation, closed connections."""

import asyncio
import inspect
from uuid import UUID, uuid4

import asyncpg
import pytest
from pgbouncer import ASYNCPG

import postrow
from postrow.drivers import asyncpg as driver
from postrow.errors import (
    AbortedTransactionError,
    BadNameError,
    NotInTransactionError,
    PayloadError,
    SerializationError,
    UnsupportedHandleError,
)
from postrow.ops import produce


@pytest.fixture
async def conn(committed):
    conn = await asyncpg.connect(committed, **ASYNCPG)
    yield conn
    await conn.close()


@pytest.fixture
async def pool(committed):
    async with asyncpg.create_pool(committed, min_size=1, max_size=2, **ASYNCPG) as pool:
        yield pool


async def server_pid(conn):
    """The id of the process that serves the connection's transaction: a pooler makes up conn.get_server_pid()."""
    return await conn.fetchval("select pg_backend_pid()")


async def test_a_connection_outside_of_a_transaction_is_refused(conn, stored):
    for call in (postrow.enqueue(conn, "q", 1), postrow.enqueue_many(conn, "q", [])):
        with pytest.raises(NotInTransactionError, match="this asyncpg connection is in autocommit") as caught:
            await call
        assert "async with conn.transaction()" in caught.value.hint
    async with conn.transaction():
        await postrow.enqueue(conn, "q", 1)
    assert stored() == [1]


async def test_a_transaction_begun_in_plain_sql_is_one(conn, stored, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 2)
    await conn.execute("begin")
    await postrow.enqueue(conn, "q", 1)
    await postrow.enqueue_many(conn, "q", [2, 3, 4, 5])
    assert stored() == []
    await conn.execute("commit")
    assert stored() == [1, 2, 3, 4, 5]


async def test_a_connection_of_a_pool_is_a_handle_until_it_is_released(pool, stored):
    async with pool.acquire() as conn, conn.transaction():
        await postrow.enqueue(conn, "q", 1)
    with pytest.raises(asyncpg.InterfaceError, match="released"):
        await postrow.enqueue(conn, "q", 2)
    assert stored() == [1]


async def test_what_is_no_connection_is_refused_with_the_next_step(pool, conn):
    with pytest.raises(UnsupportedHandleError, match="asyncpg's Pool") as caught:
        postrow.enqueue(pool, "q", 1)
    assert "async with pool.acquire() as conn, conn.transaction():" in caught.value.hint
    async with conn.transaction():
        with pytest.raises(UnsupportedHandleError, match="asyncpg's Transaction") as caught:
            postrow.enqueue(conn.transaction(), "q", 1)
        assert "the connection that it belongs to" in caught.value.hint
        with pytest.raises(UnsupportedHandleError, match="asyncpg's PreparedStatement"):
            postrow.enqueue(await conn.prepare("select 1"), "q", 1)


async def test_arguments_and_handles_are_checked_before_anything_is_awaited(conn):
    with pytest.raises(PayloadError):
        postrow.enqueue(conn, "q", {1, 2})


async def test_an_id_is_pythons_own_uuid(conn):
    async with conn.transaction():
        sent = await postrow.enqueue(conn, "q", 1)
        assert type(sent.id) is UUID
        assert (await conn.fetchval("select id from postrow.message")) == sent.id


async def test_a_codec_for_everything_does_not_leak_in(conn, stored):
    for name in ("uuid", "text", "bool", "int4", "int8", "json", "jsonb", "timestamptz", "interval"):
        await conn.set_type_codec(
            name, encoder=lambda _: "odd", decoder=lambda text: f"odd {text}", schema="pg_catalog", format="text"
        )
    chosen = uuid4()
    async with conn.transaction():
        assert await postrow.enqueue(conn, "q", {"a": 1}, id=chosen, delay=0) == (chosen, False)
        assert [one.deduplicated for one in await postrow.enqueue_many(conn, "q", [2, 3])] == [False, False]
        assert await postrow.depth(conn, "q") == 3
    assert await conn.fetchval("select id from postrow.message limit 1") != chosen  # its own use has it still
    assert {"a": 1} in stored()


async def test_without_the_word_that_keeps_codecs_out_everything_else_is_the_same(conn, stored, monkeypatch):
    assert driver._CAN_IGNORE_CODECS
    monkeypatch.setattr(driver, "_CAN_IGNORE_CODECS", False)
    async with conn.transaction():
        sent = await postrow.enqueue(conn, "q", 1, subject="s", delay=0)
        assert type(sent.id) is UUID
        with pytest.raises(BadNameError):
            async with conn.transaction():
                await postrow.enqueue(conn, "no good", 1)
    assert stored() == [1]


@pytest.mark.session("PgBouncer refuses search_path at the start of a connection")
async def test_a_statement_cache_of_none_and_a_schema_that_moved_are_no_matter(committed, stored):
    conn = await asyncpg.connect(committed, statement_cache_size=0, server_settings={"search_path": ""})
    try:
        async with conn.transaction():
            await postrow.enqueue(conn, "q", 1)
            await postrow.enqueue_many(conn, "q", [2, 3])
    finally:
        await conn.close()
    assert stored() == [1, 2, 3]


async def test_an_error_of_the_database_has_its_code_on_its_cause(conn):
    with pytest.raises(BadNameError) as caught:
        async with conn.transaction():
            await postrow.enqueue(conn, "no good", 1)
    assert caught.value.__cause__.sqlstate == "PW002"
    assert "Use letters" in caught.value.hint


async def test_an_error_to_run_again_is_asyncpgs_with_all_that_it_has(conn, monitor):
    chosen = uuid4()
    with pytest.raises(asyncpg.SerializationError) as caught:  # noqa: PT012  # the transaction
        async with conn.transaction(isolation="serializable"):
            await conn.fetch("select 1")
            monitor.execute("select postrow.enqueue('q', '1', id => %s)", [chosen])
            await postrow.enqueue(conn, "q", 1, id=chosen)
    assert isinstance(caught.value, SerializationError)
    assert caught.value.sqlstate == "40001"
    assert caught.value.severity == "ERROR"
    assert caught.value.as_dict()["message"] == caught.value.message


async def test_a_failed_transaction_is_refused_also_for_a_list(conn, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 1)
    with pytest.raises(AbortedTransactionError):  # noqa: PT012  # the transaction
        async with conn.transaction():
            with pytest.raises(asyncpg.DivisionByZeroError):
                await conn.fetch("select 1/0")
            await postrow.enqueue_many(conn, "q", [1, 2])


async def test_a_closed_connection_is_asyncpgs_own_error(conn):
    await conn.close()
    with pytest.raises(asyncpg.InterfaceError, match="closed"):
        await postrow.enqueue(conn, "q", 1)
    with pytest.raises(asyncpg.InterfaceError, match="closed"):
        await postrow.enqueue_many(conn, "q", [1])


async def test_a_connection_that_dies_in_a_list_is_asyncpgs_own_error(conn, monitor, stored, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 1)

    def payloads():
        yield from (1, 2, 3)
        monitor.execute("select pg_terminate_backend(%s, 5000)", [pid])
        yield 4

    with pytest.raises((asyncpg.AdminShutdownError, asyncpg.ConnectionDoesNotExistError, asyncpg.InterfaceError)):  # noqa: PT012  # the transaction
        async with conn.transaction():
            pid = await server_pid(conn)
            await postrow.enqueue_many(conn, "q", payloads())
    assert stored() == []


async def test_a_busy_connection_is_asyncpgs_own_error(conn, sessions, wait_blocked, stored):
    gate = sessions("gate")
    gate.run("begin")
    gate.run("select pg_advisory_xact_lock(815)")
    async with conn.transaction():
        pid = await server_pid(conn)
        task = asyncio.create_task(conn.fetch("select pg_advisory_xact_lock(815)"))
        await wait_blocked(pid)
        with pytest.raises(asyncpg.InterfaceError, match="another operation is in progress"):
            await postrow.enqueue(conn, "q", 1)
        gate.run("commit")
        await task
        await postrow.enqueue(conn, "q", 2)
    assert stored() == [2]


async def test_a_cancelled_call_leaves_the_decision_to_the_caller(conn, sessions, stored, wait_blocked):
    chosen = uuid4()
    rival = sessions("rival")
    rival.run("begin")
    rival.run("select postrow.enqueue('q', '\"rival\"', id => %s)", [chosen])
    transaction = conn.transaction()
    await transaction.start()
    await postrow.enqueue(conn, "q", "before")
    pid = await server_pid(conn)
    task = asyncio.create_task(postrow.enqueue(conn, "q", "mine", id=chosen))
    await wait_blocked(pid)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert conn.is_in_transaction()  # cancelled, not rolled back
    with pytest.raises(AbortedTransactionError):
        await postrow.enqueue(conn, "q", "after")
    await transaction.rollback()
    rival.run("commit")
    async with conn.transaction():
        assert (await postrow.enqueue(conn, "q", "mine", id=chosen)).deduplicated
    assert stored() == ["rival"]


async def test_a_list_that_is_cancelled_is_taken_back_as_a_whole(conn, sessions, stored, wait_blocked, monkeypatch):
    monkeypatch.setattr(produce, "KEYED_MESSAGES", 1)
    rival = sessions("rival")
    rival.run("begin")
    rival.run("select postrow.enqueue('q', '\"rival\"', dedup_key => '2', dedup_for => '1 h')")
    async with conn.transaction():
        await postrow.enqueue(conn, "q", "before")
        pid = await server_pid(conn)
        task = asyncio.create_task(postrow.enqueue_many(conn, "q", [1, 2], dedup_key=str, dedup_for=3600))
        await wait_blocked(pid)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await postrow.enqueue(
            conn, "q", "after"
        )  # the caller who goes on has its own messages, and no part of the list
    rival.run("rollback")
    assert stored() == ["after", "before"]


async def test_a_call_is_an_awaitable_and_nothing_runs_before_it_is_awaited(conn, stored):
    async with conn.transaction():
        call = postrow.enqueue(conn, "q", 1)
        assert inspect.isawaitable(call)
        assert await conn.fetchval("select count(*) from postrow.message") == 0
        await call
    assert stored() == [1]


async def test_a_subclass_is_a_handle(committed, stored):
    class Mine(asyncpg.Connection):
        pass

    conn = await asyncpg.connect(committed, connection_class=Mine)
    try:
        async with conn.transaction():
            await postrow.enqueue(conn, "q", 1)
    finally:
        await conn.close()
    assert stored() == [1]
