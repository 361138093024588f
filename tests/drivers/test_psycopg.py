"""What is psycopg's own: cursors, row factories, codecs, pipelines, two-phase commit, cancellation."""

import asyncio
from dataclasses import dataclass
from uuid import uuid4

import psycopg
import pytest
from psycopg.adapt import Loader
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import class_row, dict_row, kwargs_row, namedtuple_row, scalar_row

import postrow
from postrow.drivers.psycopg3 import OwnConnection, execute_async, run_all
from postrow.errors import (
    AbortedTransactionError,
    BadNameError,
    NotInTransactionError,
    PayloadError,
    UnsupportedHandleError,
)
from postrow.ops import Op, produce


class Driver:
    """psycopg's connections, sync or async."""

    def __init__(self, connection_class):
        self.connection_class = connection_class


@pytest.fixture(params=[psycopg.Connection, psycopg.AsyncConnection], ids=["sync", "async"])
def driver(request):
    return Driver(request.param)


@pytest.fixture
async def connect(driver, committed, done):
    """Makes connections on the shared database."""
    made = []

    async def make(**options):
        made.append(await done(driver.connection_class.connect(committed, **options)))
        return made[-1]

    yield make
    for conn in made:
        await done(conn.close())


@pytest.fixture
async def tx(connect):
    """A connection as psycopg makes it: not in autocommit mode."""
    return await connect()


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


async def server_pid(conn):
    """The id of the process that serves the connection's transaction: a pooler makes up conn.info.backend_pid."""
    return (await (await conn.execute("select pg_backend_pid()")).fetchone())[0]


async def until_blocked(pid, task, monitor):
    """Wait until the statement that the task runs in this process waits for a lock."""
    statement = "select 1 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
    try:
        async with asyncio.timeout(20):
            while not monitor.run(statement, [pid]):
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
        pid = await server_pid(conn)
        task = asyncio.create_task(postrow.enqueue(conn, "q", "mine", id=chosen))
        await until_blocked(pid, task, sessions("monitor"))
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


@pytest.mark.session("in autocommit mode a pooler may take another for each statement")
async def test_a_busy_connection_in_autocommit_mode_is_refused(committed, sessions, stored):
    """What another task has going may be a transaction, or not: nobody can say."""
    gate, monitor = sessions("gate"), sessions("monitor")
    gate.run("select pg_advisory_lock(815)")
    async with await psycopg.AsyncConnection.connect(committed, autocommit=True) as conn:
        pid = await server_pid(conn)
        task = asyncio.create_task(conn.execute("select pg_advisory_lock(815)"))
        await until_blocked(pid, task, monitor)
        with pytest.raises(NotInTransactionError, match="busy"):
            await postrow.enqueue(conn, "q", 1)
        gate.run("select pg_advisory_unlock(815)")
        await task
    assert stored() == []


async def test_arguments_are_checked_before_anything_is_awaited(committed):
    async with await psycopg.AsyncConnection.connect(committed) as conn:
        with pytest.raises(PayloadError):
            postrow.enqueue(conn, "q", {1, 2})


async def test_a_transaction_block_is_a_handle(connect, done, entered, stored):
    conn = await connect(autocommit=True)
    async with entered(conn.transaction()) as tx:
        await done(postrow.enqueue(tx, "q", 1))
        async with entered(conn.transaction()) as nested:
            await done(postrow.enqueue(nested, "q", 2))
        assert stored() == []
    assert stored() == [1, 2]


async def test_autocommit_is_refused_in_the_words_of_the_docs(connect, done, stored):
    conn = await connect(autocommit=True)
    with pytest.raises(NotInTransactionError) as caught:
        await done(postrow.enqueue(conn, "q", 1))
    assert str(caught.value) == (
        "this connection is in autocommit mode, so the message would not be part of your transaction.\n"
        "Open one (with conn.transaction():) or use app.send(...), which opens its own."
    )
    await done(conn.execute("begin"))  # in plain SQL, which psycopg's own block knows nothing of
    await done(postrow.enqueue(conn, "q", 1))
    await done(conn.execute("commit"))
    assert stored() == [1]


async def test_an_error_of_the_database_has_its_code_on_its_cause(tx, done):
    with pytest.raises(BadNameError) as caught:
        await done(postrow.enqueue(tx, "no good", 1))
    assert caught.value.__cause__.sqlstate == "PW002"
    assert tx.info.transaction_status == TransactionStatus.INERROR


async def test_a_closed_connection_is_the_drivers_own_error(tx, done):
    await done(tx.close())
    with pytest.raises(psycopg.OperationalError, match="closed"):
        await done(postrow.enqueue(tx, "q", 1))
    with pytest.raises(psycopg.OperationalError, match="closed"):
        await done(postrow.enqueue_many(tx, "q", [1, 2]))


def test_a_list_may_be_read_from_the_same_transaction(committed, stored, monkeypatch):
    """A generator that asks the database as it goes."""
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 10)
    with psycopg.connect(committed) as conn, conn.cursor("numbers") as numbers:
        numbers.itersize = 10
        numbers.execute("select n from generate_series(1, 100) n")
        sent = postrow.enqueue_many(conn, "q", (n for (n,) in numbers))
        conn.commit()
    assert len(sent) == 100
    assert stored() == list(range(1, 101))


async def test_a_list_that_failed_in_a_pipeline_leaves_the_connection_as_it_was(connect, done, stored, monkeypatch):
    """Nothing was prepared in what the server skipped."""
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 10)
    conn = await connect()
    conn.prepare_threshold = 1
    await done(conn.execute("alter table postrow.message add constraint no_5 check (payload <> '5')"))
    for _ in range(3):
        with pytest.raises(psycopg.errors.CheckViolation):
            await done(postrow.enqueue_many(conn, "q", list(range(100))))
    assert len(await done(postrow.enqueue_many(conn, "q", list(range(10, 100))))) == 90
    await done(conn.execute("alter table postrow.message drop constraint no_5"))
    await done(conn.commit())
    assert stored() == list(range(10, 100))


def test_an_error_to_run_again_is_psycopgs_with_all_that_it_has(committed, monitor):
    with psycopg.connect(committed) as conn:
        conn.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        conn.execute("select 1")
        chosen = uuid4()
        monitor.execute("select postrow.enqueue('q', '1', id => %s)", [chosen])
        with pytest.raises(psycopg.errors.SerializationFailure) as caught:
            postrow.enqueue(conn, "q", 1, id=chosen)
        assert caught.value.sqlstate == caught.value.diag.sqlstate == "40001"
        assert isinstance(caught.value, postrow.SerializationError)
        assert str(caught.value).endswith("again.")
        conn.rollback()


async def test_a_long_list_in_a_pipeline_of_the_callers_is_all_or_nothing(tx, done, entered, stored, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 10)
    async with entered(tx.pipeline()):
        await done(postrow.enqueue(tx, "q", -1))
        with pytest.raises(PayloadError):
            await done(postrow.enqueue_many(tx, "q", [*range(200), float("nan")]))
    await done(tx.commit())
    assert stored() == [-1]


@pytest.fixture
async def own(committed):
    async with await OwnConnection.connect(committed, autocommit=True) as conn:
        yield conn


def numbers(count):
    return Op("select n::int from generate_series(1, $1::int) n", (count,), lambda rows: [n for (n,) in rows])


async def test_a_statement_of_a_list_is_made_while_the_server_works_on_the_ones_before(connect, done, monitor):
    conn = await connect()
    monitor.execute("select pg_advisory_lock(7)")

    def ops():
        yield Op("select 1 from pg_advisory_xact_lock(7)", (), lambda rows: [n for (n,) in rows])  # works until ...
        yield numbers(2)
        yield numbers(3)
        monitor.execute("select pg_advisory_unlock(7)")  # ... the fourth is made
        yield numbers(4)
        yield numbers(5)

    await done(conn.execute("set lock_timeout = '20 s'"))
    assert await done(run_all(conn, ops(), ahead=True)) == [1, *range(1, 3), *range(1, 4), *range(1, 5), *range(1, 6)]


async def test_what_the_server_skips_of_a_list_that_failed_is_no_warning(connect, done, monitor, caplog):
    conn = await connect()

    def ops(sent):
        monitor.execute("select pg_advisory_lock(7)")
        yield Op("select 1 / (random() * 0)::int from pg_advisory_xact_lock(7)", (), list)
        for n in range(2, sent + 1):
            yield numbers(n)
        monitor.execute("select pg_advisory_unlock(7)")
        yield from map(numbers, range(3))

    await done(conn.execute("set lock_timeout = '20 s'"))
    for sent in (2, 3) * 5:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await done(run_all(conn, ops(sent), ahead=True))
        assert await done(run_all(conn, [numbers(1), numbers(1)], ahead=True)) == [1, 1]
    assert [record.message for record in caplog.records if record.name == "psycopg"] == []


async def test_a_workers_connection_keeps_a_cursor_but_none_that_holds_many_rows(own):
    assert await execute_async(own, numbers(2)) == [1, 2]
    kept = own.kept[False]
    assert await execute_async(own, numbers(OwnConnection.MOST_ROWS)) == [*range(1, 101)]
    assert own.kept[False] is kept
    assert await execute_async(own, numbers(OwnConnection.MOST_ROWS + 1)) == [*range(1, 102)]
    assert own.kept.get(False) is not kept


async def test_calls_at_once_on_a_workers_connection_have_a_cursor_each(own):
    found = await asyncio.gather(*(execute_async(own, numbers(n)) for n in range(5)))
    assert found == [[*range(1, n + 1)] for n in range(5)]


async def test_after_an_error_or_a_cancelled_call_a_workers_connection_gives_right_rows(own):
    with pytest.raises(psycopg.errors.DivisionByZero):
        await execute_async(own, Op("select 1 / 0", (), list))
    assert await execute_async(own, numbers(3)) == [1, 2, 3]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await execute_async(own, Op("select pg_sleep(60)", (), list))
    assert await execute_async(own, numbers(3)) == [1, 2, 3]


async def test_a_workers_connection_keeps_no_cursor_that_holds_much_payload(own):
    def payloads(rows, size):
        return Op(f"select repeat('x', {size}) from generate_series(1, {rows})", (), len, raw=True)

    assert await execute_async(own, payloads(2, 100)) == 2
    kept = own.kept[True]
    assert await execute_async(own, payloads(OwnConnection.MOST_RAW_ROWS, 100)) == 10
    assert own.kept[True] is kept
    assert await execute_async(own, payloads(1, OwnConnection.MOST_BYTES + 1)) == 1
    assert True not in own.kept
    assert await execute_async(own, payloads(OwnConnection.MOST_RAW_ROWS + 1, 1)) == 11
    assert True not in own.kept


async def test_loaders_that_an_application_registered_for_all_its_connections_leave_binary_answers_alone(own):
    class Loud(Loader):
        format = Format.BINARY

        def load(self, data):
            return "loud"

    id_ = uuid4()
    for kind in ("uuid", "text", "int4", "int8", "bool"):
        own.adapters.register_loader(kind, Loud)
    op = Op("select $1::uuid, 'a'::text, 1::int4, 2::int8, true", (id_,), list)
    assert await execute_async(own, op, binary=True) == [(id_, "a", 1, 2, True)]
