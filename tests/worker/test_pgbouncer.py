"""A worker whose database is behind PgBouncer."""

import threading

import psycopg
import pytest
from pgbouncer import POOLED
from psycopg.conninfo import conninfo_to_dict

import postrow
from postrow import App
from postrow.errors import BadArgumentError, WorkerError
from postrow.worker import Worker

pytestmark = pytest.mark.skipif(POOLED, reason="it starts poolers of its own")
DEAF = "LISTEN hears nothing through it"


@pytest.fixture
def behind(db, bouncer):
    """Makes an app whose database is behind a pooler: behind(mode, more='?pgbouncer=true', **settings)."""
    made = []

    def make(mode="transaction", *, more="", **settings):
        pooler = bouncer(db.dsn, mode, **settings)
        made.append(App(pooler.dsn() + more))
        return pooler, made[-1]

    yield make
    for app in made:
        app.close()


@pytest.fixture
def handled():
    """Gives an app a handler; what it got."""

    def add(app, **options):
        seen = []

        @app.queue("q").consumer(**options)
        async def handle(message):
            seen.append(message.payload)

        return seen

    return add


def test_it_finds_out_by_itself_that_sessions_are_shared_and_goes_on_without_taps(
    behind, handled, db, start_on, wait_for, lines
):
    _, app = behind()
    seen = handled(app)
    start_on(app, poll_interval=0.05)
    for n in range(30):  # more often than psycopg would wait before it prepares a statement
        db.put(payload=n)
        wait_for(lambda n=n: n in seen)
    (warning,) = lines("", level=30)
    assert DEAF in warning
    assert "--listen-dsn" in warning
    assert db.backends("listener") == []


def test_with_a_direct_connection_for_the_listener_a_tap_wakes_it(behind, handled, db, start_on, wait_for, lines):
    _, app = behind()
    seen = handled(app)
    start_on(app, poll_interval=60, listen_dsn=db.dsn)
    wait_for(lambda: db.value("select count(*) from pg_stat_activity where query = 'listen postrow'"))
    db.put(payload=1)
    wait_for(lambda: 1 in seen)
    assert lines("", level=30) == []


def test_a_listener_that_is_sent_to_a_pooler_too_says_so(behind, handled, db, start_on, wait_for, lines):
    pooler, app = behind()
    handled(app)
    start_on(app, listen_dsn=pooler.dsn())
    wait_for(lambda: lines(DEAF, level=30))


def test_a_listener_that_is_said_to_be_behind_a_pooler_is_refused(app, handled):
    handled(app)
    with pytest.raises(BadArgumentError, match="lets nobody listen"):
        Worker(app, listen_dsn="postgresql://db/shop?pgbouncer=true")


def test_who_chose_to_poll_is_not_warned(behind, handled, db, start_on, wait_for, lines):
    _, app = behind()
    seen = handled(app)
    start_on(app, transport="poll", poll_interval=0.05)
    db.put(payload=1)
    wait_for(lambda: 1 in seen)
    assert lines("", level=30) == []


def test_behind_a_pooler_in_session_mode_nothing_is_different(behind, handled, db, start_on, wait_for, lines):
    _, app = behind("session")
    seen = handled(app)
    start_on(app, poll_interval=60)
    wait_for(lambda: db.value("select count(*) from pg_stat_activity where query = 'listen postrow'"))
    db.put(payload=1)
    wait_for(lambda: 1 in seen)
    assert lines("", level=30) == []


def test_a_pooler_that_allows_no_transactions_ends_it_with_the_reason(behind, handled, start_on):
    _, app = behind("statement")
    handled(app)
    error = start_on(app).end()
    assert isinstance(error, WorkerError)
    assert "allows no transactions" in error.message
    assert "pool_mode" in error.hint


def test_a_setting_that_the_pooler_refuses_ends_it_with_the_reason(behind, handled, start_on):
    _, app = behind(more="?options=-c%20statement_timeout%3D5s")
    handled(app)
    error = start_on(app).end()
    assert isinstance(error, WorkerError)
    assert "unsupported startup parameter" in error.message
    assert "alter role" in error.hint


def test_a_default_isolation_level_that_it_cannot_change_is_refused(behind, handled, db, start_on):
    db.admin.execute(f"alter database {db.name} set default_transaction_isolation = 'repeatable read'")
    try:
        _, app = behind()
        handled(app)
        error = start_on(app).end()
    finally:
        db.admin.execute(f"alter database {db.name} reset default_transaction_isolation")
    assert isinstance(error, WorkerError)
    assert "alter role" in error.hint


def test_effect_and_ack_are_one_transaction_for_handlers_of_both_kinds(behind, db, start_on, wait_for):
    _, app = behind()
    db.rows("create table effect (n int)")
    try:

        @app.queue("a").consumer()
        async def in_the_loop(message):
            async with message.transaction() as tx:
                await tx.execute("insert into effect values (%s)", [message.payload])
                await postrow.enqueue(tx, "b", message.payload)

        @app.queue("b").consumer()
        def in_a_thread(message):
            with message.transaction() as tx:
                tx.execute("insert into effect values (%s)", [message.payload])
                if message.attempt == 1 and message.payload % 5 == 0:
                    raise postrow.Retry(after=0.01)

        start_on(app, poll_interval=0.05)
        db.put_many(range(20), queue="a")
        wait_for(lambda: db.done() == 40 and db.live() == 0)
        assert db.value("select count(*) from effect") == 40  # what was rolled back with its attempt is not there
    finally:
        db.rows("drop table effect")


def test_nothing_of_it_stays_in_the_sessions_that_strangers_use_next(behind, handled, db, start_on, wait_for):
    """One session serves all: what a stranger set there before is there still, and nothing has come to it."""
    pooler, app = behind(more="?pgbouncer=true", default_pool_size=1)
    seen = handled(app, lease=0.3)

    @app.queue("own").consumer()
    async def own(message):
        async with message.transaction() as tx:
            await tx.execute("select 1")
        seen.append(message.payload)

    app.schedule("ticks", queue="q", payload="scheduled", every=1)
    with psycopg.connect(pooler.dsn(), autocommit=True, prepare_threshold=None) as stranger:
        stranger.execute("set app.mine = 'here'")
        running = start_on(app, transport="poll", poll_interval=0.05)
        db.put_many(range(10))
        db.put_many(range(10, 20), queue="own")
        wait_for(lambda: {*range(20), "scheduled"} <= set(seen))
        running.stop()
        found = stranger.execute(
            "select current_setting('app.mine'), (select count(*) from pg_prepared_statements), "
            "(select count(*) from pg_listening_channels()), pg_my_temp_schema(), "
            "(select count(*) from pg_locks where locktype = 'advisory'), "
            "array(select name from pg_settings where source = 'session' and name not in ('application_name', "
            "'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings', 'app.mine') order by name)"
        ).fetchone()
    # our own settings are remarks on how far this session of the server has swept: true for whoever has it
    assert [name for name in found[5] if not name.startswith("postrow.")] == []
    assert found[:5] == ("here", 0, 0, 0, 0)


@pytest.mark.usefixtures("impatient")
def test_it_goes_on_when_the_pooler_was_killed_and_started_again(behind, db, start_on, wait_for, until, lines):
    pooler, app = behind()
    inside, may_end, starts = threading.Semaphore(0), threading.Event(), []

    @app.queue("q").consumer(lease=30, concurrency=5)
    async def handle(message):
        starts.append(message.payload)
        inside.release()
        await until(may_end)

    start_on(app, transport="poll", poll_interval=0.05)
    db.put_many(range(5))
    for _ in range(5):
        assert inside.acquire(timeout=20)
    pooler.kill()
    may_end.set()
    wait_for(lambda: lines("database trouble"))
    db.put_many(range(5, 10))
    pooler.start()
    wait_for(lambda: db.done() == 10)
    assert sorted(starts) == list(range(10))  # each ran once
    wait_for(lambda: lines("the database is back"))


def test_an_app_is_told_by_its_dsn(behind, db):
    pooler, app = behind(more="?pgbouncer=true")
    assert app.pooled
    assert app.dsn == pooler.dsn()
    for n in range(10):
        app.send("q", n)
    assert db.live() == 10
    assert conninfo_to_dict(app.dsn)["port"] == str(pooler.port)
    assert not App(db.dsn).pooled
