"""What is SQLAlchemy's own: sessions and their binds, isolation levels, blocks that have ended, events."""

import asyncio
import subprocess
import sys
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from pgbouncer import SQLALCHEMY
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

import postrow
from postrow.errors import (
    AbortedTransactionError,
    BadNameError,
    NotInTransactionError,
    PayloadError,
    SerializationError,
    UnsupportedHandleError,
)
from postrow.ops import produce


class Base(orm.DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    __table_args__ = {"schema": "public"}  # noqa: RUF012  # SQLAlchemy's way

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)


def url_of(dsn, driver):
    return sa.make_url(dsn).set(drivername=f"postgresql+{driver}")


@pytest.fixture(params=["psycopg", "psycopg2"])
def engine(request, committed):
    engine = sa.create_engine(url_of(committed, request.param), connect_args=SQLALCHEMY[request.param])
    yield engine
    engine.dispose()


@pytest.fixture(params=["psycopg", "asyncpg"])
async def async_engine(request, committed):
    engine = create_async_engine(url_of(committed, request.param), connect_args=SQLALCHEMY[request.param])
    yield engine
    await engine.dispose()


@pytest.fixture
def session(engine):
    """A session with a table of orders."""
    with orm.Session(engine) as session:
        session.execute(sa.text("create table public.orders (id int primary key)"))
        session.commit()
        yield session
        session.rollback()
        session.execute(sa.text("drop table public.orders"))
        session.commit()


# The trap: the adapter of asyncpg sends BEGIN with its first statement. One that is sent past it is no part of the
# transaction that the session believes in, and stays after a rollback.


@pytest.mark.parametrize("kind", ["connection", "session"])
async def test_a_message_is_not_kept_when_sqlalchemy_on_asyncpg_rolls_back_after_it_as_first_statement(
    committed, stored, kind
):
    engine = create_async_engine(url_of(committed, "asyncpg"))
    handle = AsyncSession(engine) if kind == "session" else await engine.connect()
    try:
        for call in (postrow.enqueue(handle, "q", 1), postrow.enqueue_many(handle, "q", [2, 3])):
            await call
            assert stored() == []
            await handle.rollback()
            assert stored() == []
        await postrow.enqueue(handle, "q", 4)
        await handle.commit()
        assert stored() == [4]
    finally:
        await handle.close()
        await engine.dispose()


async def test_the_trap_is_there_for_who_goes_past_sqlalchemy(committed, monitor):
    """If this fails, asyncpg's adapter has changed, and the test above guards nothing any more."""
    engine = create_async_engine(url_of(committed, "asyncpg"))
    async with engine.connect() as conn:
        raw = (await conn.get_raw_connection()).driver_connection
        await raw.fetch("select postrow.enqueue('q', '1')")
        await conn.rollback()
    await engine.dispose()
    assert monitor.execute("select count(*) from postrow.message").fetchone() == (1,)


def test_a_connection_commits_as_it_goes_or_with_its_block(engine, stored):
    with engine.connect() as conn:
        postrow.enqueue(conn, "q", 1)
        conn.commit()
        postrow.enqueue(conn, "q", "not committed")
    with engine.begin() as conn:
        postrow.enqueue(conn, "q", 2)
    assert stored() == [1, 2]


def test_a_session_is_not_flushed_and_nothing_expires(session, monitor):
    order = Order(id=1)
    session.add(order)
    sent = postrow.enqueue(session, "q", 1)
    postrow.enqueue_many(session, "q", [2, 3])
    assert type(sent.id) is UUID
    assert order in session.new
    session.flush()
    postrow.enqueue(session, "q", 4)
    assert "id" not in sa.inspect(order).expired_attributes
    session.commit()
    assert monitor.execute("select count(*) from postrow.message").fetchone() == (4,)


def test_a_list_of_several_statements_does_not_flush_either(session, stored, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 1)
    order = Order(id=1)
    session.add(order)
    with pytest.raises(BadNameError):
        postrow.enqueue_many(session, "no good", [1, 2, 3])
    postrow.enqueue_many(session, "q", [1, 2, 3])
    assert order in session.new
    session.commit()
    assert stored() == [1, 2, 3]


def test_a_list_within_nested_blocks_of_the_session_leaves_them_as_they_were(session, stored, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 1)
    with session.begin_nested():
        postrow.enqueue_many(session, "q", [1, 2])
        with pytest.raises(BadNameError), session.begin_nested():
            postrow.enqueue_many(session, "no good", [3, 4])
        session.add(Order(id=1))
    session.commit()
    assert session.get(Order, 1)
    assert stored() == [1, 2]


def test_a_session_whose_flush_failed_is_refused(session, stored):
    session.add_all([Order(id=1)])
    session.commit()
    session.expunge_all()
    session.add(Order(id=1))
    with pytest.raises(sa.exc.IntegrityError):
        session.flush()
    for call in (postrow.enqueue, postrow.enqueue_many):
        with pytest.raises(AbortedTransactionError, match="this SQLAlchemy transaction has failed already") as caught:
            call(session, "q", [1, 2])
        assert "Roll it back" in caught.value.hint
    session.rollback()
    postrow.enqueue(session, "q", 3)
    session.commit()
    assert stored() == [3]


@pytest.mark.parametrize("where", ["engine", "engine option", "connection option", "session option"])
def test_autocommit_is_refused_wherever_it_was_set(engine, committed, stored, where):
    level = {"isolation_level": "AUTOCOMMIT"}
    other = sa.create_engine(engine.url, **level)
    with other.connect() as at_engine, engine.connect() as conn, orm.Session(engine) as session:
        if where == "engine":
            handle = at_engine
        elif where == "engine option":
            handle = orm.Session(engine.execution_options(**level))
        elif where == "connection option":
            handle = conn.execution_options(**level)
        else:
            session.connection(execution_options=level)
            handle = session
        with pytest.raises(NotInTransactionError, match="in autocommit mode") as caught:
            postrow.enqueue(handle, "q", 1)
        assert "isolation_level than AUTOCOMMIT, or use app.send" in caught.value.hint
        with pytest.raises(NotInTransactionError):
            postrow.enqueue_many(handle, "q", [1, 2])
        handle.close()
    other.dispose()
    assert stored() == []


def test_a_session_that_does_not_begin_by_itself_is_refused_until_it_has(engine, stored):
    with orm.Session(engine, autobegin=False) as session:
        with pytest.raises(NotInTransactionError, match=r"session\.begin\(\)"):
            postrow.enqueue(session, "q", 1)
        with session.begin():
            postrow.enqueue(session, "q", 2)
    assert stored() == [2]


def test_a_block_whose_transaction_has_ended_is_refused(engine, stored):
    with engine.connect() as conn, conn.begin() as transaction:
        transaction.rollback()
        with pytest.raises(NotInTransactionError, match="closed transaction") as caught:
            postrow.enqueue(conn, "q", 1)
        assert "end the block" in caught.value.hint
    with orm.Session(engine) as session, session.begin():
        session.rollback()
        with pytest.raises(NotInTransactionError, match="closed transaction"):
            postrow.enqueue_many(session, "q", [1, 2])
    assert stored() == []


def test_a_closed_connection_is_sqlalchemys_own_error(engine):
    conn = engine.connect()
    conn.close()
    with pytest.raises(sa.exc.ResourceClosedError):
        postrow.enqueue(conn, "q", 1)


def test_a_connection_that_dies_is_sqlalchemys_own_error_and_then_refused(engine, monitor, stored, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 1)
    with engine.connect() as conn:
        pid = conn.execute(sa.text("select pg_backend_pid()")).scalar()

        def payloads():
            yield from (1, 2, 3)
            monitor.execute("select pg_terminate_backend(%s, 5000)", [pid])
            yield 4

        with pytest.raises(sa.exc.DBAPIError) as caught:
            postrow.enqueue_many(conn, "q", payloads())
        assert caught.value.connection_invalidated
        with pytest.raises(AbortedTransactionError, match="this SQLAlchemy transaction"):
            postrow.enqueue(conn, "q", 1)
        conn.rollback()
        postrow.enqueue(conn, "q", 5)
        conn.commit()
    assert stored() == [5]


def test_a_session_of_several_databases_needs_a_default_one(engine, stored):
    with orm.Session(binds={Order: engine}) as session:
        with pytest.raises(UnsupportedHandleError, match="no default engine") as caught:
            postrow.enqueue(session, "q", 1)
        assert "session.connection(bind_arguments=" in caught.value.hint
        postrow.enqueue(session.connection(bind_arguments={"mapper": Order}), "q", 2)
        session.commit()
    lite = sa.create_engine("sqlite://")
    with orm.Session(engine, binds={Order: lite}) as session:
        postrow.enqueue(session, "q", 3)
        session.commit()
    lite.dispose()
    assert stored() == [2, 3]


def test_another_database_than_postgres_is_refused_before_it_is_used():
    engine = sa.create_engine("sqlite://")
    with engine.connect() as conn, orm.Session(engine) as session:
        for handle, kind in ((conn, "Connection"), (session, "Session")):
            with pytest.raises(UnsupportedHandleError, match=f"this SQLAlchemy {kind} is of sqlite") as caught:
                postrow.enqueue(handle, "q", 1)
            assert "has Postrow's schema" in caught.value.hint
        assert not session.in_transaction()
    engine.dispose()


def test_a_driver_that_is_not_tested_is_refused(engine, monkeypatch):
    monkeypatch.setattr(type(engine.dialect), "driver", "pg8000")
    with engine.connect() as conn, pytest.raises(UnsupportedHandleError, match="pg8000") as caught:
        postrow.enqueue(conn, "q", 1)
    assert "postgresql+psycopg://" in caught.value.hint


async def test_what_is_no_connection_is_refused_with_the_next_step(engine, async_engine):
    with engine.connect() as conn, orm.Session(engine) as session:
        for handle, kind, step in (
            (engine, "Engine", "with engine.begin() as conn:"),
            (async_engine, "AsyncEngine", "with engine.begin() as conn:"),
            (orm.sessionmaker(engine), "sessionmaker", "with Session.begin() as session:"),
            (async_sessionmaker(async_engine), "async_sessionmaker", "with Session.begin() as session:"),
            (conn.begin(), "RootTransaction", "the connection or session"),
            (session.begin(), "SessionTransaction", "the connection or session"),
            (session.execute(sa.text("select 1")), "CursorResult", "the connection or session"),
        ):
            with pytest.raises(UnsupportedHandleError, match=f"SQLAlchemy's {kind} is not a connection") as caught:
                postrow.enqueue(handle, "q", 1)
            assert step in caught.value.hint


async def test_an_async_connection_that_was_not_awaited_is_sqlalchemys_own_error(async_engine):
    from sqlalchemy.ext.asyncio.exc import AsyncContextNotStarted

    with pytest.raises(AsyncContextNotStarted):
        await postrow.enqueue(async_engine.connect(), "q", 1)


def test_a_session_on_a_connection_of_a_test_joins_its_transaction(engine, stored):
    """The way of SQLAlchemy's documentation to run tests in a transaction that is rolled back."""
    with engine.connect() as conn:
        outer = conn.begin()
        with orm.Session(bind=conn, join_transaction_mode="create_savepoint") as session:
            postrow.enqueue(session, "q", 1)
            session.commit()
            assert postrow.depth(session, "q") == 1
        outer.rollback()
    assert stored() == []


def test_the_session_of_flask_is_a_handle(committed, stored):
    app = Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = url_of(committed, "psycopg")
    db = SQLAlchemy()
    db.init_app(app)
    with app.app_context():
        postrow.enqueue(db.session, "q", 1)
        db.session.commit()
        with pytest.raises(UnsupportedHandleError) as caught:
            postrow.enqueue(db, "q", 1)
        assert caught.value.hint == "Pass its session (db.session)."
        db.engine.dispose()
    assert stored() == [1]


def test_a_proxy_of_a_handle_is_a_handle(engine, stored):
    from werkzeug.local import LocalProxy

    with orm.Session(engine) as session:
        postrow.enqueue(LocalProxy(lambda: session), "q", 1)
        session.commit()
    assert stored() == [1]


def test_events_and_options_of_the_engine_do_not_leak_in(committed, stored):
    seen = []
    engine = sa.create_engine(url_of(committed, "psycopg2"), paramstyle="format", echo=False)

    @sa.event.listens_for(engine, "before_cursor_execute", retval=True)
    def comment(_conn, _cursor, statement, parameters, _context, _many):
        seen.append(statement)
        return f"{statement} /* from the shop */", parameters

    with engine.execution_options(yield_per=1, stream_results=True).begin() as conn:
        assert type(postrow.enqueue(conn, "q", 1, delay=0, id=uuid4()).id) is UUID
        assert len(postrow.enqueue_many(conn, "q", [2, 3, 4])) == 3
    engine.dispose()
    assert len(seen) == 2
    assert stored() == [1, 2, 3, 4]


def test_a_two_phase_session_takes_messages_when_taps_are_off(engine, stored):
    with orm.Session(engine, twophase=True) as session:
        session.execute(sa.text("set local postrow.tap = off"))
        postrow.enqueue(session, "q", 1)
        session.prepare()
        assert stored() == []
        session.commit()
    assert stored() == [1]


def test_an_error_to_run_again_is_sqlalchemys_with_all_that_it_has(engine, monitor):
    chosen = uuid4()
    with engine.connect().execution_options(isolation_level="SERIALIZABLE") as conn:
        conn.execute(sa.text("select 1"))
        monitor.execute("select postrow.enqueue('q', '1', id => %s)", [chosen])
        with pytest.raises(sa.exc.OperationalError) as caught:
            postrow.enqueue(conn, "q", 1, id=chosen)
    assert isinstance(caught.value, SerializationError)
    assert "40001" in (getattr(caught.value.orig, "sqlstate", None), getattr(caught.value.orig, "pgcode", None))
    assert "postrow.enqueue" in caught.value.statement
    assert not caught.value.connection_invalidated
    assert str(caught.value).endswith("again.")


async def test_an_error_to_run_again_is_sqlalchemys_on_asyncpg_too(committed, monitor):
    engine = create_async_engine(url_of(committed, "asyncpg"), isolation_level="SERIALIZABLE")
    chosen = uuid4()
    async with AsyncSession(engine) as session:
        await session.execute(sa.text("select 1"))
        monitor.execute("select postrow.enqueue('q', '1', id => %s)", [chosen])
        with pytest.raises(sa.exc.DBAPIError) as caught:
            await postrow.enqueue(session, "q", 1, id=chosen)
    await engine.dispose()
    assert isinstance(caught.value, SerializationError)
    assert caught.value.orig.sqlstate == "40001"


def test_an_error_has_sqlalchemys_as_its_cause_and_the_drivers_below_it(engine):
    with engine.connect() as conn, pytest.raises(BadNameError, match="is not a valid name") as caught:
        postrow.enqueue(conn, "no good", 1)
    assert caught.value.message == "queue 'no good' is not a valid name"
    assert isinstance(caught.value.__cause__, sa.exc.DBAPIError)
    assert "PW002" in (
        getattr(caught.value.__cause__.orig, "sqlstate", None),
        getattr(caught.value.__cause__.orig, "pgcode", None),
    )


def test_a_list_may_be_read_from_the_same_session(session, stored, monkeypatch):
    """A generator that asks the database as it goes."""
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 10)
    numbers = session.execute(sa.text("select n from generate_series(1, 100) n"), execution_options={"yield_per": 10})
    sent = postrow.enqueue_many(session, "q", (n for (n,) in numbers))
    assert len(sent) == 100
    session.commit()
    assert stored() == list(range(1, 101))


async def test_a_cancelled_call_ends_the_transaction_as_sqlalchemy_does(async_engine, sessions, stored, wait_blocked):
    chosen = uuid4()
    rival = sessions("rival")
    rival.run("begin")
    rival.run("select postrow.enqueue('q', '\"rival\"', id => %s)", [chosen])
    async with AsyncSession(async_engine) as session:
        await postrow.enqueue(session, "q", "before")
        pid = (await session.execute(sa.text("select pg_backend_pid()"))).scalar()
        task = asyncio.ensure_future(postrow.enqueue(session, "q", "mine", id=chosen))
        await wait_blocked(pid)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(AbortedTransactionError):
            await postrow.enqueue(session, "q", "after")
        await session.rollback()
        rival.run("commit")
        assert (await postrow.enqueue(session, "q", "mine", id=chosen)).deduplicated
        await session.commit()
    assert stored() == ["rival"]


async def test_arguments_are_checked_before_anything_is_awaited(async_engine):
    async with AsyncSession(async_engine) as session:
        with pytest.raises(PayloadError):
            postrow.enqueue(session, "q", {1, 2})


def test_greenlet_is_not_needed_by_who_has_no_async_engine(committed):
    program = """
import sys
sys.modules["greenlet"] = None
import sqlalchemy as sa, postrow
engine = sa.create_engine(sys.argv[1])
with engine.connect() as conn:
    postrow.enqueue(conn, "q", 1)
"""
    url = url_of(committed, "psycopg2").render_as_string(hide_password=False)
    subprocess.run([sys.executable, "-c", program, url], check=True)


def test_psycopg2s_own_connection_is_refused_with_the_way_to_use_it(committed):
    import psycopg2

    conn = psycopg2.connect(psycopg.conninfo.make_conninfo(committed))
    try:
        with pytest.raises(UnsupportedHandleError, match=r"psycopg2\.extensions\.connection") as caught:
            postrow.enqueue(conn, "q", 1)
        assert "psycopg2 is supported through SQLAlchemy" in caught.value.hint
    finally:
        conn.close()


def test_sqlalchemy_1_is_refused(engine, monkeypatch):
    monkeypatch.setattr(sa, "__version__", "1.4.54")
    with engine.connect() as conn, pytest.raises(UnsupportedHandleError, match=r"1\.4\.54 is too old"):
        postrow.enqueue(conn, "q", 1)
