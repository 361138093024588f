"""Taps as a listener hears them. Absence is shown by a mark sent afterwards: NOTIFY keeps the order of commits."""

import os
import time
import uuid
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from postrow import migrate
from postrow.embedded import Server

DEADLINE = 20.0


class Listener:
    def __init__(self, dsn):
        self.conn = psycopg.connect(dsn, autocommit=True)
        self._heard = []
        self.conn.add_notify_handler(lambda notify: self._heard.append((notify.channel, notify.payload)))
        self.conn.execute("listen postrow")

    def heard(self):
        """The payloads since the last call, of all that was committed before this one."""
        mark = f"mark {uuid.uuid4()}"
        self.conn.execute("select pg_notify('postrow', %s)", [mark])
        end = time.monotonic() + DEADLINE
        while ("postrow", mark) not in self._heard:
            assert time.monotonic() < end, "the mark did not come"
            self.conn.execute("select 1")
        at = self._heard.index(("postrow", mark))
        heard, self._heard = self._heard[:at], self._heard[at + 1 :]
        return [payload for _, payload in heard]


@pytest.fixture
def listener(committed, direct):
    made = Listener(direct(committed))
    yield made
    made.conn.close()


@pytest.fixture
def producer(actors):
    return actors("producer")


def forget(actor):
    """As if the last taps of this session were long ago."""
    actor.query("set postrow.taps = ''")


def test_an_enqueue_taps_with_queue_and_tenant(producer, listener):
    producer.put(queue="Emails.new", tenant="acme:eu")

    assert listener.heard() == ["Emails.new acme:eu"]


def test_the_tap_comes_at_the_commit_and_not_before(producer, listener):
    producer.begin()
    producer.put()
    assert listener.heard() == []

    producer.commit()
    assert listener.heard() == ["q default"]


def test_no_tap_after_a_rollback_and_the_next_enqueue_taps_at_once(producer, listener):
    producer.begin()
    producer.put()
    producer.rollback()
    producer.put(tenant="later")
    assert listener.heard() == ["q later"]

    producer.begin()
    producer.put(tenant="again")
    producer.rollback()
    producer.put(tenant="again")  # within the window of a tap that was never sent
    assert listener.heard() == ["q again"]


def test_no_tap_from_a_savepoint_that_was_rolled_back(producer, listener):
    producer.begin()
    producer.query("savepoint s")
    producer.put(tenant="undone")
    producer.query("rollback to s")
    producer.put(tenant="kept")
    producer.commit()

    assert listener.heard() == ["q kept"]


def test_many_messages_of_one_transaction_are_one_tap_for_each_queue_and_tenant(producer, listener):
    producer.begin()
    for _ in range(5):
        producer.put()
        producer.put(tenant="acme")
        producer.put(queue="r")
    producer.commit()

    assert sorted(listener.heard()) == ["q acme", "q default", "r default"]


def test_enqueue_many_taps_once_for_each_tenant_and_not_for_nothing(producer, listener):
    producer.rows("enqueue_many", queue="q", messages=[{"payload": 1, "tenant": tenant} for tenant in "abab"])
    assert sorted(listener.heard()) == ["q a", "q b"]

    producer.rows("enqueue_many", queue="q", messages=[])
    assert listener.heard() == []


def test_enqueue_lines_taps_once_and_not_for_nothing(producer, listener):
    producer.rows("enqueue_lines", queue="q", payloads="1\n2\n3", tenant="acme")
    assert listener.heard() == ["q acme"]

    producer.rows("enqueue_lines", queue="q", payloads="\n", tenant="beta")
    assert listener.heard() == []


def test_an_enqueue_that_is_swallowed_by_a_waiting_message_taps_too(producer, listener):
    """Its transaction kept the message from being claimed: who found it locked looks again."""
    producer.rows("enqueue", queue="q", payload=1, dedup_key="k")
    assert listener.heard() == ["q default"]
    forget(producer)
    producer.rows("enqueue", queue="q", payload=1, dedup_key="k")
    assert listener.heard() == ["q default"]


def test_a_session_taps_once_in_twenty_milliseconds(producer, listener):
    for _ in range(200):  # until two commits fall into one window for sure: the machine may pause between them
        forget(producer)
        began = time.monotonic()
        producer.put()
        producer.put()
        if time.monotonic() - began < 0.015:
            break
        listener.heard()
    else:
        pytest.fail("two enqueues never took less than 15 ms")

    assert listener.heard() == ["q default"]


def test_a_session_taps_again_after_twenty_milliseconds(producer, listener):
    producer.put()
    producer.query("select pg_sleep(0.025)")
    producer.put()

    assert listener.heard() == ["q default"] * 2


def test_another_queue_or_tenant_has_a_window_of_its_own(producer, listener):
    for queue, tenant in (("q", "a"), ("q", "b"), ("r", "a"), ("q", "aa"), ("qq", "a")):
        producer.put(queue=queue, tenant=tenant)

    assert sorted(listener.heard()) == ["q a", "q aa", "q b", "qq a", "r a"]


def test_a_transaction_older_than_the_window_taps_though_another_tap_was_just_sent(producer, listener):
    producer.begin()
    producer.query("select pg_sleep(0.025)")
    producer.query(
        "select set_config('postrow.taps', E'\\nq default ' || "
        "(extract(epoch from clock_timestamp()) * 1000)::bigint, false)"
    )
    producer.put()
    producer.commit()

    assert listener.heard() == ["q default"]


def test_a_delayed_message_taps_too(producer, listener):
    producer.put(delay=timedelta(hours=1))

    assert listener.heard() == ["q default"]


def test_a_duplicate_does_not_tap(producer, listener):
    mine = producer.put(id=uuid.uuid4())
    forget(producer)
    listener.heard()
    assert producer.row("enqueue", queue="q", payload=1, id=mine).deduplicated

    assert listener.heard() == []


def test_with_postrow_tap_off_there_is_none(producer, listener):
    producer.query("set postrow.tap = off")
    producer.put()
    producer.rows("enqueue_many", queue="q", messages=[{"payload": 1}])
    assert listener.heard() == []

    producer.query("set postrow.tap = on")
    producer.put()
    assert listener.heard() == ["q default"]


def test_off_for_one_transaction_holds_for_that_one(producer, listener):
    producer.begin()
    producer.query("set local postrow.tap = off")
    producer.put()
    producer.commit()
    producer.put(tenant="next")

    assert listener.heard() == ["q next"]


@pytest.mark.parametrize(
    "garbage",
    [
        "x",
        "\nq default ",
        "\nq default 12",
        "\nq default abcdefghijklm",
        "\nq default 9999999999999",
        "\nq default 99999999999999999999",
        "\nq default -111111111111",
        "\nq default \nq default 1234567890123",
        "é" * 5_000,
        "\n" * 10_000,
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_a_setting_that_does_not_parse_counts_as_none(producer, listener, garbage):
    producer.query("select set_config('postrow.taps', %s, false)", [garbage])
    producer.put()

    assert listener.heard() == ["q default"]


def test_five_hundred_queues_in_one_transaction_all_tap_and_the_memory_stays_small(producer, listener):
    queues = [f"queue-number-{number}" for number in range(500)]
    producer.begin()
    for queue in queues:
        producer.put(queue=queue)
    producer.commit()

    assert sorted(listener.heard()) == sorted(f"{queue} default" for queue in queues)
    (row,) = producer.query("select length(current_setting('postrow.taps')) as n")
    assert row.n < 5_000


def test_names_of_200_characters_tap(producer, listener):
    queue, tenant = "Q" * 200, "t" * 200
    producer.put(queue=queue, tenant=tenant)
    producer.put(queue="Q" * 199 + "x", tenant=tenant)

    assert listener.heard() == [f"{queue} {tenant}", f"{'Q' * 199}x {tenant}"]


def test_a_payload_of_any_size_taps_with_the_names_alone(producer, listener):
    producer.put(payload="é" * 10_000)

    assert listener.heard() == ["q default"]


# what else makes a message ready


@pytest.fixture
def held(producer, listener):
    """A claimed message whose enqueue has been heard and forgotten."""
    producer.put()
    rows = producer.take(worker="w1", lease=timedelta(seconds=60))
    forget(producer)
    listener.heard()
    return rows


def test_a_release_taps(producer, listener, held):
    producer.settle("release", held)

    assert listener.heard() == ["q default"]


def test_release_claim_taps(producer, listener, held):
    producer.rows("release_claim", token=held[0].claim_token)

    assert listener.heard() == ["q default"]


def test_a_retry_that_is_due_now_taps_and_a_later_one_does_not(producer, listener, held):
    producer.settle("fail", held, errors=["x"])
    assert listener.heard() == []

    producer.query("update postrow.message set available_at = postrow.clock()")
    producer.settle("fail", producer.take(), errors=["x"], retry_at=["2000-01-01"])
    assert listener.heard() == ["q default"]


def test_a_redrive_taps(producer, listener, held):
    producer.settle("bury", held, reasons=["x"])
    assert listener.heard() == []

    producer.rows("redrive", id=held[0].id, tenant="default")
    assert listener.heard() == ["q default"]


def test_what_the_sweep_gives_back_taps(producer, listener, held):
    producer.expire(held[0].id)
    producer.rows("sweep", step="leases")
    assert listener.heard() == ["q default"]

    producer.put(tenant="t", target="w9", target_for=timedelta(seconds=1))
    producer.query("update postrow.message set target_until = postrow.clock() where target is not null")
    forget(producer)
    listener.heard()
    producer.rows("sweep", step="targets")
    assert listener.heard() == ["q t"]


def test_claim_ack_extend_and_bury_do_not_tap(producer, listener, held):
    producer.put(tenant="other", queue="r")
    forget(producer)
    listener.heard()
    producer.settle("extend", held, lease=timedelta(seconds=60))
    producer.settle("ack", held)
    producer.settle("bury", producer.take(queue="r"), reasons=["x"])

    assert listener.heard() == []


# with a server of another configuration


@pytest.fixture(scope="module")
def narrow():
    """The DSN of a server with two-phase commit and, where it can be set, the smallest notify queue."""
    folder = os.environ.get("POSTROW_TEST_BIN")
    settings = {"max_prepared_transactions": "5"}
    server = Server(bin_dir=Path(folder) if folder else None, durable=False, settings=settings)
    if int(server.version.split(".")[0]) >= 17:
        settings["max_notify_queue_pages"] = "64"
        server = Server(bin_dir=Path(folder) if folder else None, durable=False, settings=settings)
    with server:
        migrate.apply(server.dsn())
        yield server.dsn()


def test_a_callers_two_phase_commit_works_with_taps_off(narrow):
    with psycopg.connect(narrow, autocommit=True) as conn:
        conn.execute("set postrow.tap = off")
        conn.execute("begin")
        conn.execute("select postrow.enqueue('prepared', '1')")
        conn.execute("prepare transaction 'ours'")
        assert conn.execute("select postrow.depth('prepared')").fetchone() == (0,)
        conn.execute("commit prepared 'ours'")
        assert conn.execute("select postrow.depth('prepared')").fetchone() == (1,)

        conn.execute("begin")
        conn.execute("select postrow.enqueue('prepared', '2')")
        conn.execute("prepare transaction 'ours'")
        conn.execute("rollback prepared 'ours'")
        assert conn.execute("select postrow.depth('prepared')").fetchone() == (1,)


def test_with_taps_on_postgres_itself_refuses_two_phase_commit(narrow):
    with psycopg.connect(narrow, autocommit=True) as conn:
        conn.execute("begin")
        conn.execute("select postrow.enqueue('prepared', '1')")
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            conn.execute("prepare transaction 'ours'")


def test_a_notify_queue_that_is_half_full_or_full_fails_no_commit(narrow):
    with psycopg.connect(narrow, autocommit=True) as conn, psycopg.connect(narrow, autocommit=True) as stuck:
        if conn.info.server_version < 170000:
            pytest.skip("the size of the notify queue is a setting from Postgres 17 on: 8 GB would have to be filled")
        stuck.execute("listen postrow")
        stuck.execute("begin")  # a listener in a transaction reads nothing: the queue cannot be emptied

        def usage():
            return conn.execute("select pg_notification_queue_usage()").fetchone()[0]

        def enqueue():
            conn.execute("set postrow.taps = ''")
            conn.execute("select postrow.enqueue('full', '1')")
            return conn.execute("select current_setting('postrow.taps') <> ''").fetchone()[0]

        def fill(share):
            while usage() < share:
                conn.execute("select pg_notify('postrow', %s)", [uuid.uuid4().hex.ljust(7_900)])

        assert enqueue()  # it tapped
        fill(0.5)
        assert not enqueue()
        with pytest.raises(psycopg.Error, match="NOTIFY queue"):
            fill(2)
        assert not enqueue()
        assert conn.execute("select postrow.depth('full')").fetchone() == (3,)
        stuck.execute("commit")
