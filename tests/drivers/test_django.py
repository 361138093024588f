"""What is Django's own: aliases, atomic blocks that are broken, autocommit turned off, other databases."""

from uuid import UUID, uuid4

import psycopg
import pytest

import postrow
from postrow.drivers.refusals import SEND
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
def shop(django):
    connection = django["shop"]
    yield connection
    connection.close()


@pytest.fixture
def atomic(django):
    """`transaction.atomic` of the alias `shop`."""
    from django.db import transaction

    return lambda **options: transaction.atomic(using="shop", **options)


def test_a_message_commits_with_the_block(shop, atomic, stored):
    with atomic():
        sent = postrow.enqueue(shop, "q", 1)
        assert type(sent.id) is UUID
        assert stored() == []
    assert stored() == [1]


def test_a_connection_outside_of_atomic_is_refused(shop, stored):
    with pytest.raises(NotInTransactionError, match="Django's connection 'shop' is in autocommit mode") as caught:
        postrow.enqueue(shop, "q", 1)
    assert caught.value.hint == f"Open one (with transaction.atomic():) {SEND}"
    assert stored() == []


def test_autocommit_turned_off_is_a_transaction(shop, stored, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 1)
    shop.set_autocommit(False)
    postrow.enqueue(shop, "q", 1)
    postrow.enqueue_many(shop, "q", [2, 3])
    with pytest.raises(PayloadError):
        postrow.enqueue_many(shop, "q", [4, {1}])
    assert stored() == []
    shop.commit()
    shop.set_autocommit(True)
    assert stored() == [1, 2, 3]


def test_a_block_that_is_to_roll_back_is_refused(shop, atomic):
    with atomic():
        shop.set_rollback(True)
        with pytest.raises(AbortedTransactionError, match="Django's transaction has failed"):
            postrow.enqueue(shop, "q", 1)


def test_an_error_in_a_block_of_its_own_leaves_the_outer_one(shop, atomic, stored, monkeypatch):
    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 1)
    with atomic():
        postrow.enqueue(shop, "q", 1)
        for call in (
            lambda: postrow.enqueue(shop, "no good", 1),
            lambda: postrow.enqueue_many(shop, "no good", [1, 2]),
        ):
            with pytest.raises(BadNameError) as caught, atomic():
                call()
            assert caught.value.__cause__.__cause__.sqlstate == "PW002"
        postrow.enqueue_many(shop, "q", [2, 3])
    assert stored() == [1, 2, 3]


def test_an_error_that_is_handled_in_its_block_aborts_it(shop, atomic, stored):
    with atomic():
        with pytest.raises(BadNameError):
            postrow.enqueue(shop, "no good", 1)
        with pytest.raises(AbortedTransactionError):
            postrow.enqueue(shop, "q", 1)
        shop.set_rollback(True)
    with atomic():
        postrow.enqueue(shop, "q", 2)
    assert stored() == [2]


def test_a_list_that_breaks_in_a_query_of_the_callers_is_taken_back(shop, atomic, stored, monkeypatch):
    from django.db import DatabaseError

    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 1)

    def payloads():
        yield from (1, 2, 3)  # the first two statements are made before any runs
        with shop.cursor() as cursor, atomic(savepoint=False):
            cursor.execute("select 1/0")

    with atomic():
        postrow.enqueue(shop, "q", 0)
        with pytest.raises(DatabaseError):
            postrow.enqueue_many(shop, "q", payloads())
        postrow.enqueue(shop, "q", 4)
    assert stored() == [0, 4]


def test_a_durable_block_and_hooks_are_as_ever(shop, atomic, stored):
    from django.db import transaction

    ran = []
    with atomic(durable=True):
        transaction.on_commit(lambda: ran.append(stored()), using="shop")
        postrow.enqueue_many(shop, "q", [1, 2])
    assert ran == [[1, 2]]


def test_an_error_to_run_again_is_djangos_and_has_psycopgs_as_its_cause(shop, atomic, monitor):
    from django.db import OperationalError

    chosen = uuid4()
    with pytest.raises(OperationalError) as caught, atomic():  # noqa: PT012  # the transaction
        with shop.cursor() as cursor:
            cursor.execute("set transaction isolation level serializable")
            cursor.execute("select 1")
        monitor.execute("select postrow.enqueue('q', '1', id => %s)", [chosen])
        postrow.enqueue(shop, "q", 1, id=chosen)
    assert isinstance(caught.value, SerializationError)
    assert isinstance(caught.value.__cause__, psycopg.errors.SerializationFailure)


@pytest.mark.parametrize("server_side", [False, True], ids=["client", "server"])
def test_either_way_to_bind_is_the_same(django, shop, stored, server_side):
    from django.db import transaction

    django.settings["other"] = django.settings["shop"] | {"OPTIONS": {"server_side_binding": server_side}}
    chosen = uuid4()
    try:
        with transaction.atomic(using="other"):
            postrow.enqueue(django["other"], "q", {"%s": "%(p1)s"}, id=chosen, delay=0, priority=3, subject="100%")
            assert postrow.enqueue(django["other"], "q", 1, id=chosen) == (chosen, True)
            assert postrow.once(django["other"], "event:1")
        assert stored() == [{"%s": "%(p1)s"}]
    finally:
        django["other"].close()


def test_what_is_no_connection_to_postgres_is_refused_with_the_next_step(django, shop, atomic):
    from django.db import transaction

    with pytest.raises(UnsupportedHandleError, match=r"module django\.db\.transaction"):
        postrow.enqueue(transaction, "q", 1)
    for handle, kind in ((atomic(), "Atomic"), (django, "ConnectionHandler")):
        with pytest.raises(UnsupportedHandleError, match=f"Django's {kind} is not a connection") as caught:
            postrow.enqueue(handle, "q", 1)
        assert "django.db.connection, inside of with transaction.atomic():" in caught.value.hint
    with shop.cursor() as cursor, pytest.raises(UnsupportedHandleError, match="Django's CursorWrapper"):
        postrow.enqueue(cursor, "q", 1)
    django.settings["lite"] = django.configure_settings(
        {"default": {}, "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    )["lite"]
    with pytest.raises(UnsupportedHandleError, match="Django's connection 'lite' is of sqlite") as caught:
        postrow.enqueue(django["lite"], "q", 1)
    assert "has Postrow's schema" in caught.value.hint


def test_a_lost_connection_is_djangos_own_error(shop, atomic, monitor, stored, monkeypatch):
    from django.db import InterfaceError, OperationalError

    monkeypatch.setattr(produce, "CHUNK_MESSAGES", 1)
    for last in (4, ValueError):

        def payloads(pid, last=last):
            yield from (1, 2, 3)
            monitor.execute("select pg_terminate_backend(%s, 5000)", pid)
            if last is ValueError:
                raise ValueError
            yield last

        expected = (OperationalError, InterfaceError) if last == 4 else ValueError
        with pytest.raises(expected), atomic(), shop.cursor() as cursor:  # noqa: PT012  # the transaction
            cursor.execute("select pg_backend_pid()")
            postrow.enqueue_many(shop, "q", payloads(cursor.fetchone()))
        shop.close()
    assert stored() == []
