"""The handles under one suite. A new one is a class here: how it connects, begins, ends and asks; tests are for all."""

import asyncio
import inspect
import itertools
import re
from collections import defaultdict
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import psycopg
import psycopg2
import psycopg_pool
import pytest
import pytest_asyncio
import sqlalchemy as sa
import sqlmodel
from pgbouncer import ASYNCPG, PSYCOPG, SQLALCHEMY
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

ODD_TYPES = ("uuid", "bool", "int4", "int8", "text", "json", "jsonb", "timestamptz", "interval")


async def done(value):
    """The value of a call: sync handles give it, async ones an awaitable of it."""
    return await value if inspect.isawaitable(value) else value


@asynccontextmanager
async def entered(context):
    """`with` or `async with`, whichever the context knows."""
    if hasattr(context, "__aenter__"):
        async with context as value:
            yield value
    else:
        with context as value:
            yield value


class Handle:
    """A handle as an application has it: `handle` is what is passed to Postrow.

    `odd=True` connects with all the codecs and row factories of the user's own that the library knows;
    `autocommit=True` without a transaction around the statements.
    """

    error = psycopg.Error  # the base of what the library raises
    serialization = psycopg.errors.SerializationFailure  # what its retry loops await
    is_async = False

    def __init__(self, dsn):
        self.dsn = dsn
        self.handle = None

    async def open(self, *, autocommit=False, odd=False):
        raise NotImplementedError

    async def begin(self):
        """Nothing, where the library begins by itself."""

    async def commit(self):
        await done(self.handle.commit())

    async def rollback(self):
        await done(self.handle.rollback())

    async def close(self):
        await done(self.handle.close())

    async def reset(self):
        """As after `open`, for the next test; whether that went well."""
        try:
            await self.rollback()
            await self.begin()
        except Exception:
            return False
        return not getattr(self.handle, "closed", False)

    def savepoint(self):
        """A block inside of the transaction, rolled back if it raises."""
        raise NotImplementedError

    async def rows(self, statement):
        """What a statement of the application's own gives."""
        raise NotImplementedError

    async def call(self, function, *args, **options):
        """Call a function of ours with the handle first."""
        return await done(function(self.handle, *args, **options))


class Psycopg(Handle):
    connection_class = psycopg.Connection

    async def open(self, *, autocommit=False, odd=False):
        self.handle = await done(self.connection_class.connect(self.dsn, autocommit=autocommit, **PSYCOPG))
        self._odd(odd)

    def _odd(self, odd):
        if odd:
            self.handle.row_factory = dict_row
            for name in ODD_TYPES:
                self.handle.adapters.register_loader(name, OddLoader)

    def savepoint(self):
        return entered(self.handle.transaction())

    async def rows(self, statement):
        cursor = await done(self.handle.execute(statement))
        return await done(cursor.fetchall()) if cursor.description else []


class OddLoader(psycopg.adapt.Loader):
    def load(self, data):
        return ["odd", bytes(data)]


class PsycopgAsync(Psycopg):
    connection_class = psycopg.AsyncConnection
    is_async = True


class PsycopgPool(Psycopg):
    pool_class = psycopg_pool.ConnectionPool

    async def open(self, *, autocommit=False, odd=False):
        self.pool = self.pool_class(
            self.dsn, min_size=1, max_size=1, open=False, kwargs={"autocommit": autocommit, **PSYCOPG}
        )
        await done(self.pool.open())
        self.handle = await done(self.pool.getconn())
        self._odd(odd)

    async def close(self):
        await done(self.pool.putconn(self.handle))
        await done(self.pool.close())


class PsycopgAsyncPool(PsycopgPool):
    pool_class = psycopg_pool.AsyncConnectionPool
    is_async = True


class Asyncpg(Handle):
    error = (asyncpg.PostgresError, asyncpg.InterfaceError)
    serialization = asyncpg.exceptions.SerializationError
    is_async = True
    transaction = None

    async def open(self, *, autocommit=False, odd=False):
        self.handle = await asyncpg.connect(self.dsn, record_class=OddRecord if odd else asyncpg.Record, **ASYNCPG)
        await self._odd(odd)
        if not autocommit:
            await self.begin()

    async def _odd(self, odd):
        for name in ODD_TYPES if odd else ():
            await self.handle.set_type_codec(
                name, encoder=lambda _: "odd", decoder=lambda text: ["odd", text], schema="pg_catalog", format="text"
            )

    async def begin(self):
        self.transaction = self.handle.transaction()
        await self.transaction.start()

    async def reset(self):
        if self.handle.is_closed():
            return False
        await self.handle.reset()  # ends the transaction, too
        if self.transaction is not None:
            await self.begin()
        return True

    async def commit(self):
        await self.transaction.commit()

    async def rollback(self):
        await self.transaction.rollback()

    def savepoint(self):
        return self.handle.transaction()

    async def rows(self, statement):
        return [tuple(row) for row in await self.handle.fetch(statement)]


class OddRecord(asyncpg.Record):
    def __iter__(self):
        return iter(("odd",))


class AsyncpgPool(Asyncpg):
    async def open(self, *, autocommit=False, odd=False):
        self.pool = asyncpg.create_pool(
            self.dsn, min_size=1, max_size=1, record_class=OddRecord if odd else asyncpg.Record, **ASYNCPG
        )
        await self.pool
        self.handle = await self.pool.acquire()
        await self._odd(odd)
        if not autocommit:
            await self.begin()

    async def close(self):
        await self.pool.release(self.handle)
        await self.pool.close()


ENGINES = {}  # of sync drivers, for the whole run: a new engine asks the server a few things


class Core(Handle):
    """SQLAlchemy's Connection."""

    error = sa.exc.DBAPIError
    serialization = sa.exc.DBAPIError
    driver = "psycopg"

    def url(self):
        return sa.make_url(self.dsn).set(drivername=f"postgresql+{self.driver}")

    def engine(self, *, autocommit, odd):
        key = (self.driver, self.dsn, odd)
        if key not in ENGINES:
            ENGINES[key] = sa.create_engine(self.url(), connect_args=SQLALCHEMY[self.driver])
            if odd:
                self._odd(ENGINES[key])
        options = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
        if odd:
            options |= {"stream_results": True, "yield_per": 1}
        return ENGINES[key].execution_options(**options)

    def _odd(self, engine):
        sa.event.listen(engine, "connect", {"psycopg": odd_psycopg, "psycopg2": odd_psycopg2}[self.driver])

    async def open(self, **options):
        self.handle = self.engine(**{"autocommit": False, "odd": False} | options).connect()

    def savepoint(self):
        return entered(self.handle.begin_nested())

    async def rows(self, statement):
        result = await done(self.handle.execute(sa.text(statement)))
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []


def odd_psycopg(conn, _record):
    for name in ("uuid", "bool", "json", "jsonb"):  # SQLAlchemy and Django need the others themselves
        conn.adapters.register_loader(name, TextLoader)


def odd_psycopg2(conn, _record):
    kind = psycopg2.extensions.new_type((2950, 16, 1184), "ODD", lambda text, _cursor: text)
    psycopg2.extensions.register_type(kind, conn)


class Core2(Core):
    driver = "psycopg2"


class Orm(Core):
    session_class = Session

    async def open(self, **options):
        engine = self.engine(**{"autocommit": False, "odd": False} | options)
        self.handle = self.session_class(engine)


class Orm2(Orm):
    driver = "psycopg2"


class Scoped(Core):
    async def open(self, **options):
        self.handle = scoped_session(sessionmaker(self.engine(**{"autocommit": False, "odd": False} | options)))


class SqlModel(Orm):
    session_class = sqlmodel.Session

    async def rows(self, statement):
        result = self.handle.exec(sa.text(statement))
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []


class AsyncCore(Core):
    driver = "asyncpg"
    is_async = True

    def engine(self, *, autocommit, odd):
        options = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
        self.own_engine = create_async_engine(
            self.url(), connect_args=SQLALCHEMY[self.driver], **options
        )  # a loop's, so not for the whole run
        if odd:
            self._odd(self.own_engine.sync_engine)
        return self.own_engine

    def _odd(self, engine):
        sa.event.listen(engine, "connect", {"psycopg": odd_psycopg, "asyncpg": odd_asyncpg}[self.driver])

    async def open(self, **options):
        self.handle = await self.engine(**{"autocommit": False, "odd": False} | options).connect()

    async def close(self):
        await self.handle.close()
        await self.own_engine.dispose()


def odd_asyncpg(conn, _record):
    async def register(raw):
        for name in ("uuid", "bool", "timestamptz", "interval", "json", "jsonb"):
            await raw.set_type_codec(
                name, encoder=lambda _: "odd", decoder=lambda text: text, schema="pg_catalog", format="text"
            )

    conn.run_async(register)


class AsyncCore3(AsyncCore):
    driver = "psycopg"


class AsyncOrm(AsyncCore):
    async def open(self, **options):
        self.handle = AsyncSession(self.engine(**{"autocommit": False, "odd": False} | options))


class AsyncOrm3(AsyncOrm):
    driver = "psycopg"


class AsyncScoped(AsyncCore):
    async def open(self, **options):
        engine = self.engine(**{"autocommit": False, "odd": False} | options)
        self.handle = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: self)

    async def close(self):
        await self.handle.remove()
        await self.own_engine.dispose()


def django_connections(dsn):
    """Django's connections, with one of the alias `shop` for the DSN; a test's settings, if none are configured yet."""
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(DATABASES={}, LOGGING_CONFIG=None)
    django.setup()
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    given = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    shop = {"ENGINE": "django.db.backends.postgresql"} | {key: parts.get(name, "") for key, name in given.items()}
    connections.settings["shop"] = connections.configure_settings({"default": {}, "shop": shop})["shop"]
    return connections


class Django(Handle):
    """What `django.db.connection` is, of another alias."""

    @property
    def error(self):
        from django.db import Error

        return Error

    @property
    def serialization(self):
        from django.db import OperationalError

        return OperationalError

    async def open(self, *, autocommit=False, odd=False):
        self.connections = django_connections(self.dsn)
        self.alias = f"shop{id(self)}"  # one of this handle's own: a second one of a test is another connection
        self.connections.settings[self.alias] = self.connections.settings["shop"]
        self.wrapper = self.connections[self.alias]
        self.handle = self.make_handle()
        self.atomic = None
        self.begun = not autocommit
        if odd:
            self.handle.ensure_connection()
            odd_psycopg(self.handle.connection, None)
            self.handle.force_debug_cursor = True
            self.handle.execute_wrappers.append(lambda execute, *args: execute(*args))
        if not autocommit:
            await self.begin()

    def make_handle(self):
        from django.utils.connection import ConnectionProxy

        return ConnectionProxy(self.connections, self.alias)

    def block(self):
        from django.db.transaction import atomic

        self.enter_task()
        return atomic(using=self.alias)

    def enter_task(self):
        """Django keeps a connection for each task, and each test, and each setup, is another one."""
        self.connections[self.alias] = self.wrapper

    async def begin(self):
        self.atomic = self.block()
        self.atomic.__enter__()

    async def commit(self):
        self.enter_task()
        self.atomic.__exit__(None, None, None)
        self.atomic = None

    async def rollback(self):
        self.enter_task()
        self.handle.set_rollback(True)
        await self.commit()

    async def reset(self):
        if self.atomic is not None:
            await self.rollback()
        if self.begun:
            await self.begin()
        return True

    async def close(self):
        self.wrapper.in_atomic_block = False
        self.wrapper.close()

    def savepoint(self):
        return entered(self.block())

    async def rows(self, statement):
        with self.wrapper.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    async def call(self, function, *args, **options):
        self.enter_task()
        return function(self.handle, *args, **options)


class DjangoWrapper(Django):
    """What `django.db.connections[alias]` is."""

    def make_handle(self):
        return self.wrapper


HANDLES = {
    "psycopg": Psycopg,
    "psycopg async": PsycopgAsync,
    "psycopg pool": PsycopgPool,
    "psycopg async pool": PsycopgAsyncPool,
    "asyncpg": Asyncpg,
    "asyncpg pool": AsyncpgPool,
    "sqlalchemy psycopg": Core,
    "sqlalchemy psycopg2": Core2,
    "sqlalchemy session psycopg": Orm,
    "sqlalchemy session psycopg2": Orm2,
    "sqlalchemy scoped": Scoped,
    "sqlmodel": SqlModel,
    "sqlalchemy async asyncpg": AsyncCore,
    "sqlalchemy async psycopg": AsyncCore3,
    "sqlalchemy async session asyncpg": AsyncOrm,
    "sqlalchemy async session psycopg": AsyncOrm3,
    "sqlalchemy async scoped": AsyncScoped,
    "django": Django,
    "django wrapper": DjangoWrapper,
}


def pytest_generate_tests(metafunc):
    if "handle_class" in metafunc.fixturenames:
        names = getattr(metafunc.function, "handles", tuple(HANDLES))
        if names == "async":
            names = [name for name, cls in HANDLES.items() if cls.is_async]
        metafunc.parametrize("handle_class", [HANDLES[name] for name in names], ids=names, scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def spare():
    """Handles that tests have left, to be used again: connecting is most of a test's time."""
    kept = defaultdict(list)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # all tests are coroutines
        yield kept
        for one in itertools.chain(*kept.values()):
            await one.close()


@pytest_asyncio.fixture(loop_scope="module")
async def connect(handle_class, committed, spare):
    """Makes handles of the class on the shared database."""
    made = []

    async def make(**options):
        key = (handle_class, *sorted(options.items()))
        one = spare[key].pop() if spare[key] else handle_class(committed)
        made.append((key, one))
        if one.handle is None:
            await one.open(**options)
        return one

    yield make
    for key, one in made:
        if await one.reset():
            spare[key].append(one)
        else:
            await one.close()


@pytest_asyncio.fixture(loop_scope="module")
async def tx(connect):
    """A handle in a transaction, or one that begins it with its first statement."""
    return await connect()


@pytest.fixture(scope="session")
def _monitor(shared_dsn):
    with psycopg.connect(shared_dsn, autocommit=True, prepare_threshold=None) as conn:
        yield conn


@pytest.fixture
def monitor(_monitor, committed):
    """Another session, in autocommit mode."""
    return _monitor


@pytest.fixture
def committed(shared_dsn, _monitor, emptied):
    """The shared DSN; what a test left is deleted at its end."""
    yield shared_dsn
    emptied(_monitor)


@pytest.fixture
def stored(monitor):
    """The payloads that are in a queue, as another session sees them."""

    def payloads(queue="q"):
        found = monitor.execute("select payload from postrow.message where queue = %s order by payload", [queue])
        return [row[0] for row in found]

    return payloads


@pytest.fixture(name="done")
def _done():
    return done


@pytest.fixture(name="entered")
def _entered():
    return entered


@pytest.fixture
def handles():
    """The classes of handles by name, for tests of one of them."""
    return HANDLES


@pytest.fixture
def django(committed, monkeypatch):
    """Django's connections, on the shared database."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    return django_connections(committed)


@pytest.fixture
def wait_blocked(monitor):
    """Waits until the session of a process waits for a lock."""

    async def wait(pid):
        statement = "select 1 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
        async with asyncio.timeout(20):
            while not monitor.execute(statement, [pid]).fetchone():  # noqa: ASYNC110  # of another process
                await asyncio.sleep(0.005)

    return wait


@pytest.fixture
def handle_statements(monitor):
    """Collects the first words of the statements that a handle sends, from the server's log."""

    @asynccontextmanager
    async def collecting(tx):
        data = Path(monitor.execute("show data_directory").fetchone()[0])
        log = data.with_name(f"{data.name}.postrow") / "server.log"
        await tx.rows("set local log_statement = 'all'")
        start = log.stat().st_size
        found = []
        yield found
        await tx.rows("set local log_statement = 'none'")
        text = log.read_bytes()[start:].decode(errors="replace")
        found += [word.lower() for word in re.findall(r"LOG:  (?:statement|execute [^:]*): \s*(\w+)", text)][:-1]

    return collecting
