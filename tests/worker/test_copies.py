"""A worker and a database that was copied from another: it refuses to start, and to go on."""

import pytest

from postrow import App
from postrow.errors import CopiedDatabaseError
from postrow.worker import connections


@pytest.fixture
def own(database, sessions_on):
    """A database of this test's own, and a connection to it in autocommit mode."""
    conn = sessions_on(database)
    conn.autocommit = True
    app = App(database)
    app.own = conn
    yield app
    app.close()


COPIED = "update postrow.home set database_oid = 1, database_name = 'shop'"


@pytest.fixture
def began(own):
    """The handlers that began, by payload."""
    found = []

    @own.queue("q").consumer()
    async def handle(message):
        found.append(message.payload)

    return found


@pytest.fixture
def worker(own, start_on):
    return lambda: start_on(own)


def put(conn, payload):
    conn.execute("select postrow.enqueue('q', to_jsonb(%s::int))", [payload])


def test_the_first_worker_makes_the_database_its_home(own, worker, began, wait_for):
    put(own.own, 1)
    worker()
    wait_for(lambda: began == [1])
    assert own.own.execute("select database_name = current_database() from postrow.home").fetchone() == (True,)


def test_a_worker_does_not_start_on_a_copy(own, worker, began):
    own.own.execute("select postrow.refuse_copy()")
    own.own.execute(COPIED)
    put(own.own, 1)
    error = worker().end()
    assert isinstance(error, CopiedDatabaseError)
    assert "database shop of this server" in error.message
    assert "postrow adopt" in error.hint
    assert began == []
    assert own.own.execute("select count(*) from postrow.consumer").fetchone() == (0,)  # and changed nothing


@pytest.mark.session("the server renames no database that a pooler is connected to")
def test_a_worker_whose_database_is_replaced_by_a_copy_claims_nothing_until_it_is_adopted(
    own, worker, began, wait_for, impatient, monkeypatch
):
    refused = []
    original = connections.Weather.failed

    def failed(self, part, error):
        original(self, part, error)
        refused.extend([part] if isinstance(error, CopiedDatabaseError) else [])

    monkeypatch.setattr(connections.Weather, "failed", failed)
    put(own.own, 1)
    worker()
    wait_for(lambda: began == [1])

    own.own.execute(COPIED)
    own.own.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and application_name like 'postrow %'"
    )
    wait_for(lambda: "claimer" in refused, what="the refusal")
    put(own.own, 2)
    seen = refused.count("claimer")
    wait_for(lambda: refused.count("claimer") > seen + 1, what="more refusals")
    assert began == [1]

    own.own.execute("select postrow.adopt()")
    wait_for(lambda: began == [1, 2])


@pytest.mark.parametrize("part", ["claimer", "scheduler"])
async def test_the_parts_that_begin_something_get_no_connection_to_a_copy_and_the_others_do(own, part):
    database = connections.Database(own.dsn)
    own.own.execute("select postrow.refuse_copy()")
    own.own.execute(COPIED)
    with pytest.raises(CopiedDatabaseError):
        await database.connect(part)
    async with await database.connect("acker"):  # what was handled is written
        pass
