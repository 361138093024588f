"""`App.send`: a message in a transaction of its own, enqueued once however often the connection dies."""

import asyncio
import os
import shutil
import tempfile
import threading
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from pydantic import BaseModel

import postrow
from postrow import migrate
from postrow.drivers import connecting, sender
from postrow.errors import BadArgumentError, BadNameError, DatabaseUnreachableError, IdTakenError, PayloadError
from postrow.ops import produce


class Welcome(BaseModel):
    user_id: int


@pytest.fixture
def app(committed):
    with_close = postrow.App(committed)
    yield with_close
    with_close.close()


@pytest.fixture
def stored(committed):
    """The payloads that are in a queue."""
    with psycopg.connect(committed, autocommit=True) as monitor:

        def payloads(queue="q"):
            statement = "select payload from postrow.message where queue = %s order by payload"
            return [row[0] for row in monitor.execute(statement, [queue])]

        yield payloads


@pytest.fixture
def sender_pids(committed):
    """The server processes of connections that send."""
    with psycopg.connect(committed, autocommit=True) as monitor:

        def pids():
            statement = "select pid from pg_stat_activity where application_name = %s and datname = current_database()"
            return [row[0] for row in monitor.execute(statement, [sender.NAME])]

        yield pids


@pytest.fixture
def cut(committed, sender_pids, wait_for):
    """Ends every sending connection from the server's side, as a restart does."""

    def end():
        pids = sender_pids()
        assert pids
        with psycopg.connect(committed, autocommit=True) as monitor:
            for pid in pids:
                monitor.execute("select pg_terminate_backend(%s, 10000)", [pid])
        wait_for(lambda: not sender_pids())

    return end


def test_a_sent_message_is_committed_at_once(app, stored):
    emails = app.queue("emails", Welcome)
    sent = app.send(emails, Welcome(user_id=1), subject="user:1")
    assert stored("emails") == [{"user_id": 1}]
    assert not sent.deduplicated
    assert sent.id.version == 7
    app.send("emails", Welcome(user_id=2))
    assert stored("emails") == [{"user_id": 1}, {"user_id": 2}]


def test_a_message_sent_to_a_name_follows_the_queues_type_and_declares_nothing(app):
    app.send("emails", {"any": "thing"})
    assert app.queues == {}
    app.queue("emails", Welcome)
    with pytest.raises(PayloadError):
        app.send("emails", {"any": "thing"})


def test_a_message_sent_twice_with_one_id_is_one_message(app, stored):
    chosen = uuid4()
    assert app.send("q", 1, id=chosen) == postrow.Enqueued(chosen, deduplicated=False)
    assert app.send("q", 2, id=chosen) == postrow.Enqueued(chosen, deduplicated=True)
    assert stored() == [1]
    with pytest.raises(IdTakenError):
        app.send("other", 1, id=chosen)
    app.send("q", 3)  # the refusal did not break the connection
    assert stored() == [1, 3]


@pytest.mark.parametrize("value", ["", 0, False, "0192f3"])
def test_an_id_that_is_none_is_refused(app, value):
    with pytest.raises(BadArgumentError, match="id is"):
        app.send("q", 1, id=value)


def test_a_bad_name_is_refused_before_and_by_the_database(app, stored):
    for name in ("no good", "q\0", ""):
        with pytest.raises(BadNameError):
            app.send(name, 1)
    with pytest.raises(BadArgumentError):
        app.send("q", 1, nonsense=1)


def test_the_applications_name_in_the_dsn_is_kept(committed):
    app = postrow.App(f"{committed}?application_name=web")
    try:
        sent = app.send("q", 1)
    finally:
        app.close()
    with psycopg.connect(committed) as conn:
        found = conn.execute("select enqueued_by from postrow.message where id = %s", [sent.id]).fetchone()
    assert found == ("postrow@web",)


def test_a_peer_that_vanished_is_noticed_by_a_sender_as_by_a_worker(committed):
    given = psycopg.conninfo.make_conninfo(committed, keepalives_idle=77)
    with connecting.connect(given, name="test") as conn:
        settings = conn.info.get_parameters()
    assert (settings["tcp_user_timeout"], settings["keepalives_idle"]) == ("30000", "77")


def test_many_threads_send_through_one_connection(app, stored, sender_pids):
    threads = [threading.Thread(target=app.send, args=("q", n)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stored() == list(range(20))
    assert len(sender_pids()) == 1


async def test_many_tasks_send_through_one_connection(app, stored, sender_pids):
    sent = await asyncio.gather(*(app.send_async("q", n) for n in range(20)))
    assert len({one.id for one in sent}) == 20
    assert stored() == list(range(20))
    assert len(sender_pids()) == 1


def test_each_event_loop_has_its_own_connection_and_a_closed_one_is_given_up(app, stored, sender_pids, wait_for):
    for n in range(3):
        asyncio.run(app.send_async("q", n))
    assert stored() == [0, 1, 2]
    wait_for(lambda: len(sender_pids()) == 1)
    app.close()
    wait_for(lambda: not sender_pids())


async def test_a_cancelled_send_leaves_a_connection_that_works(app, stored, sessions):
    chosen = uuid4()
    rival, monitor = sessions("rival"), sessions("monitor")
    rival.run("begin")
    rival.run("select postrow.enqueue('q', '0', id => %s)", [chosen])
    task = asyncio.create_task(app.send_async("q", 1, id=chosen))
    statement = "select 1 from pg_stat_activity where application_name = %s and wait_event_type = 'Lock'"
    try:
        async with asyncio.timeout(20):
            while not monitor.run(statement, [sender.NAME]):  # noqa: ASYNC110  # the event is the database's
                await asyncio.sleep(0.005)
    finally:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    rival.run("rollback")
    await app.send_async("q", 2)
    assert stored() == [2]


def test_a_send_after_the_connection_died_goes_through_a_new_one(app, stored, cut):
    app.send("q", 1)
    cut()
    sent = app.send("q", 2)
    assert not sent.deduplicated
    assert stored() == [1, 2]


async def test_an_async_send_after_the_connection_died_goes_through_a_new_one(app, stored, cut):
    await app.send_async("q", 1)
    cut()
    await app.send_async("q", 2)
    assert stored() == [1, 2]


LOSE = (
    "create or replace function postrow.tap(queue text, tenant text) returns void language plpgsql as "
    "$$ begin if {condition} then perform pg_terminate_backend(pg_backend_pid(), 5000); end if; end $$"
)


@pytest.fixture
def flaky(database):
    """An app whose connections die in the middle of a send, a number of times."""
    app = postrow.App(database)
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create sequence postrow.deaths")
        conn.execute("grant all on postrow.deaths to public")

        def die(times):
            conn.execute(LOSE.format(condition=f"nextval('postrow.deaths') <= {times}"))
            return app

        yield die
    app.close()


def payloads(dsn):
    with psycopg.connect(dsn) as conn:
        return [row[0] for row in conn.execute("select payload from postrow.message order by payload")]


def test_a_send_whose_connection_dies_midway_is_tried_again(flaky, database):
    app = flaky(2)
    assert not app.send("q", 1).deduplicated
    assert payloads(database) == [1]


async def test_a_send_whose_connections_all_die_says_how_to_send_it_again(flaky, database):
    app = flaky(7)
    with pytest.raises(DatabaseUnreachableError, match="may be in its queue now, or not") as caught:
        app.send("q", 1)
    assert "id=UUID('" in caught.value.hint
    chosen = uuid4()
    with pytest.raises(DatabaseUnreachableError) as caught:
        await app.send_async("q", 1, id=chosen)
    assert str(chosen) in caught.value.hint
    assert payloads(database) == []
    await app.send_async("q", 1, id=chosen)
    assert payloads(database) == [1]


def test_a_send_whose_answer_was_lost_is_one_message(app, stored, monkeypatch):
    """The message is committed, and the answer never comes: only the id tells the second try."""
    execute, calls = sender.execute, []

    def lossy(conn, op):
        calls.append(execute(conn, op))
        if len(calls) == 1:
            conn.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return calls[-1]

    monkeypatch.setattr(sender, "execute", lossy)
    sent = app.send("q", 1)
    assert [call.deduplicated for call in calls] == [False, True]
    assert sent == postrow.Enqueued(calls[0].id, deduplicated=False)
    assert stored() == [1]


def test_a_read_only_server_is_given_up_for_a_new_connection(app, stored, committed, sender_pids):
    """After a fail-over the old connection leads to what is a standby now."""
    app.send("q", 1)
    before = sender_pids()
    app._sender._conn.execute("set default_transaction_read_only = on")
    app.send("q", 2)
    assert stored() == [1, 2]
    assert sender_pids() != before


def test_a_server_that_stays_read_only_is_the_databases_own_error(committed):
    app = postrow.App(f"{committed}?options=-c%20default_transaction_read_only%3Don")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        app.send("q", 1)
    app.close()


def test_a_database_of_serializable_transactions_takes_messages(committed, stored):
    app = postrow.App(f"{committed}?options=-c%20default_transaction_isolation%3Dserializable")
    threads = [threading.Thread(target=app.send, args=("q", n)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    app.close()
    assert stored() == list(range(5))


@pytest.mark.parametrize(
    ("dsn", "words"),
    [
        ("postgresql://u:s3cret@127.0.0.1:1/x", "Connection refused"),
        ("postgresql://u:s3cret@nowhere.invalid/x", "cannot connect to the database"),
        ("host=127.0.0.1 port=1 password=s3cret", "Connection refused"),
        ("postgresql://u:half@s3cret@127.0.0.1/x", "the DSN cannot be read"),
        ("postgresql://u:s3cret/more@127.0.0.1/x", "the DSN"),
        ("postgresql://u:%zs3cret@127.0.0.1/x", "the DSN cannot be read"),
        ("password=s3cret host", "the DSN cannot be read"),
        ("postgresql://u:p@127.0.0.1:s3cret/x", "port is not a number"),
        ("s3cret", "the DSN cannot be read"),
    ],
)
async def test_a_database_that_cannot_be_reached_is_said_without_the_password(dsn, words):
    app = postrow.App(dsn)
    for call in (lambda: app.send("q", 1), lambda: asyncio.run(app.send_async("q", 1))):
        with pytest.raises(DatabaseUnreachableError, match=words) as caught:
            await asyncio.to_thread(call)
        error = caught.value
        assert error.hint
        while error is not None:
            assert "s3cret" not in str(error)
            error = error.__cause__ or error.__context__


def test_a_wrong_password_is_said_without_it(server):
    wrong = f"postgresql://postrow:s3cret@127.0.0.1:{server.port}/postgres"
    with pytest.raises(DatabaseUnreachableError, match="password authentication failed") as caught:
        postrow.App(wrong).send("q", 1)
    assert "s3cret" not in str(caught.value)


def test_a_closed_app_begins_anew(app, stored, sender_pids, wait_for):
    app.send("q", 1)
    app.close()
    wait_for(lambda: not sender_pids())
    app.close()
    app.send("q", 2)
    assert stored() == [1, 2]


def in_child(work):
    """Run `work` in a forked child; its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")  # ours is what is tried here
def test_a_forked_child_sends_on_its_own_connection_and_leaves_the_parents_alone(app, stored, sender_pids, wait_for):
    app.send("q", "parent before")
    parent = sender_pids()
    for n in range(3):
        assert in_child(lambda n=n: app.send("q", f"child {n}")) == 0
        app.send("q", f"parent after {n}")
    wait_for(lambda: sender_pids() == parent)  # a server's process ends a moment after its client
    assert len(stored()) == 7


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_fork_while_another_thread_sends_does_not_hold_the_child_up(app, stored, sessions, wait_for):
    chosen = uuid4()
    rival, monitor = sessions("rival"), sessions("monitor")
    rival.run("begin")
    rival.run("select postrow.enqueue('q', '0', id => %s)", [chosen])
    thread = threading.Thread(target=app.send, args=("q", 1), kwargs={"id": chosen})
    thread.start()
    statement = "select 1 from pg_stat_activity where application_name = %s and wait_event_type = 'Lock'"
    wait_for(lambda: monitor.run(statement, [sender.NAME]))

    def child():
        assert app._lock.acquire(timeout=10)
        app._lock.release()
        app.send("q", 2)
        app.close()

    assert in_child(child) == 0
    rival.run("rollback")
    thread.join()
    assert stored() == [1, 2]


def test_ids_of_the_client_are_in_the_order_of_their_making():
    ids = [produce.new_id() for _ in range(2000)]
    assert {(one.version, one.variant) for one in ids} == {(7, "specified in RFC 4122")}
    assert len(set(ids)) == 2000
    times = [one.int >> 64 for one in ids]
    assert times == sorted(times)


@pytest.fixture
def place():
    """A folder that the server's account can reach; as root, it cannot reach pytest's tmp_path."""
    folder = Path(tempfile.mkdtemp(prefix="postrow-test-", dir="/tmp")).resolve()
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


def test_an_embedded_dsn_is_a_server_on_that_folder_that_survives_a_restart(place):
    app = postrow.App(f"embedded:{place}/data")
    try:
        migrate.apply(app.dsn)
        assert app.dsn == app.dsn
        assert (place / "data" / "PG_VERSION").exists()
        app.send("q", 1)
        asyncio.run(app.send_async("q", 2))
        app._server.stop()
        with pytest.raises(DatabaseUnreachableError):
            app.send("q", 3)
        app._server.start()
        app.send("q", 4)
        app.close()
        app.send("q", 5)  # begins anew, on the data that is there
        found = payloads(app.dsn)
        assert set(found) - {3} == {1, 2, 4, 5}
        assert len(found) == len(set(found))
    finally:
        app.close()
