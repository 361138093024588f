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
    made = actors("producer")
    forget(made)
    return made


def forget(actor):
    """As if the last taps of all sessions were long ago."""
    actor.query("select setval(('postrow.tap_' || n)::pg_catalog.regclass, 0, false) from generate_series(0, 31) n")


def quickly(attempt, *, within):
    """What `attempt` gives when it took less than so many seconds: the machine may pause in it."""
    for _ in range(200):
        began = time.monotonic()
        found = attempt()
        if time.monotonic() - began < within:
            return found
    pytest.fail(f"it never took less than {within} s")


WINDOW = 0.008  # seconds for which other sessions rely on a tap that was committed


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

    forget(producer)
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


def test_a_session_taps_once_in_eight_milliseconds(producer, listener):
    def two():
        listener.heard()
        forget(producer)
        producer.put()
        producer.put()

    quickly(two, within=WINDOW - 0.002)
    assert listener.heard() == ["q default"]


def test_all_sessions_and_tenants_together_tap_once_in_eight_milliseconds(producer, listener, actors):
    others = [actors(f"other {n}") for n in range(4)]

    def five():
        listener.heard()
        forget(producer)
        producer.put()
        for n, other in enumerate(others):
            other.put(tenant=f"t{n}")

    quickly(five, within=WINDOW - 0.002)
    assert listener.heard() == ["q default"]


def test_a_session_taps_again_after_eight_milliseconds(producer, listener):
    def three():
        listener.heard()
        forget(producer)
        producer.put()
        for _ in range(2):
            producer.query("select pg_sleep(0.0095)")
            producer.put()

    quickly(three, within=0.030)
    assert listener.heard() == ["q default"] * 3


def test_where_another_came_soon_they_rely_on_a_tap_for_sixteen_milliseconds(producer, listener):
    def three():
        listener.heard()
        forget(producer)
        producer.put()
        producer.put()
        producer.query("select pg_sleep(0.0095)")
        producer.put()

    quickly(three, within=0.0135)
    assert listener.heard() == ["q default"]


def test_another_queue_has_a_window_of_its_own(producer, listener):
    def three():
        listener.heard()
        forget(producer)
        for queue, tenant in (("q", "a"), ("qq", "a"), ("r", "a")):
            producer.put(queue=queue, tenant=tenant)

    three()
    assert sorted(listener.heard()) == ["q a", "qq a", "r a"]


def test_two_queues_that_share_a_memory_cell_both_tap(producer, listener):
    """Only a queue's own taps are relied on."""
    rows = producer.query(
        "select array_agg(q) as queues from (select 'q' || n as q from generate_series(1, 500) n) x "
        "group by hashtext(q) & 31 order by count(*) desc limit 1"
    )
    first, second = rows[0].queues[:2]
    for queue in (first, second, first, second):
        producer.put(queue=queue)

    assert listener.heard() == [f"{name} default" for name in (first, second, first, second)]


def test_a_transaction_that_tapped_taps_for_its_other_tenants_too(producer, listener):
    producer.begin()
    for tenant in ("a", "b", "a", "c"):
        producer.put(tenant=tenant)
    producer.commit()

    assert sorted(listener.heard()) == ["q a", "q b", "q c"]


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
    [0, 1, -1, 2**62 - 1, -(2**62), 0x1555555555555555, 12, 7 << 46, *(1 << n for n in range(3, 62, 10))],
    ids=hex,
)
def test_whatever_stands_in_the_memory_cells_an_enqueue_succeeds_and_the_next_but_one_taps(producer, listener, garbage):
    producer.query(
        "select setval(('postrow.tap_' || n)::pg_catalog.regclass, %s) from generate_series(0, 31) n", [garbage]
    )
    producer.put()
    producer.query("select pg_sleep(0.15)")  # garbage may be a tap of now, for 0.1 s at most
    listener.heard()
    producer.put()

    assert listener.heard() == ["q default"]


def test_a_number_of_a_transaction_that_is_not_there_yet_fails_no_enqueue(producer, listener):
    """As after a restore of the cells alone: the tap of a moment ago of a transaction of the future."""
    for ahead in (50, 1_000, 16_000):
        producer.query(
            "select setval(('postrow.tap_' || (hashtext('q') & 31))::pg_catalog.regclass, "
            "((hashtext('q') >> 15)::bigint << 46) | "
            "((((date_part('epoch', clock_timestamp()) * 1000)::bigint + 15) & 67108863) << 19) | "
            "(((pg_current_xact_id()::text::bigint + %s) & 32767) << 4) | 1)",
            [ahead],
        )
        listener.heard()
        producer.put()
        assert listener.heard() == ["q default"]


def test_five_hundred_queues_in_one_transaction_all_tap(producer, listener):
    queues = [f"queue-number-{number}" for number in range(500)]
    producer.begin()
    for queue in queues:
        producer.put(queue=queue)
    producer.commit()

    assert sorted(listener.heard()) == sorted(f"{queue} default" for queue in queues)


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


def test_a_change_of_who_consumes_a_queue_or_how_taps_all_its_tenants(producer, listener):
    """Where a limit holds lanes back, workers know until when: another policy may set them free sooner."""
    changes = [
        {"handler": "h", "rate": 1},
        {"handler": "h"},
        {"handler": "h", "tenant": "acme"},
        {"handler": "other", "replace": True},
    ]
    for change in changes:
        producer.rows("register_consumer", queue="q", **change)
        forget(producer)
        assert listener.heard() == ["q *"], change
        producer.rows("register_consumer", queue="q", **change)
        assert listener.heard() == [], "nothing has changed"
    assert producer.value("unregister_consumer", queue="q", tenant="acme")
    forget(producer)
    assert listener.heard() == ["q *"]
    assert not producer.value("unregister_consumer", queue="q", tenant="acme")
    assert listener.heard() == []


def test_claim_ack_extend_and_bury_do_not_tap(producer, listener, held):
    producer.put(tenant="other", queue="r")
    forget(producer)
    listener.heard()
    producer.settle("extend", held, lease=timedelta(seconds=60))
    producer.settle("ack", held)
    producer.settle("bury", producer.take(queue="r"), reasons=["x"])

    assert listener.heard() == []


@pytest.mark.parametrize("limit", ["max_in_flight", "tenant_max_in_flight"])
@pytest.mark.parametrize("end", ["ack", "ack_at"])
def test_an_ack_within_a_limit_taps_for_the_room_that_it_makes(producer, listener, limit, end):
    producer.rows("register_consumer", queue="q", handler="h", **{limit: 1})
    for queue in ("q", "unlimited"):
        producer.put(queue=queue)
    rows = producer.take() + producer.take(queue="unlimited")
    forget(producer)
    listener.heard()
    lists = {
        "tenants": [row.tenant for row in rows],
        "ids": [row.id for row in rows],
        "tokens": [row.claim_token for row in rows],
    }
    producer.rows(end, **lists, **({"places": [row.place for row in rows]} if end == "ack_at" else {}))

    assert listener.heard() == ["q default"]


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
            """Whether it tapped."""
            cell = "('postrow.tap_' || (hashtext('full') & 31))::regclass"
            conn.execute(f"select setval({cell}, 0, false)")
            conn.execute("select postrow.enqueue('full', '1')")
            return conn.execute(f"select pg_sequence_last_value({cell}) is not null").fetchone()[0]

        def fill(share):
            while usage() < share:
                conn.execute("select pg_notify('postrow', %s)", [uuid.uuid4().hex.ljust(7_900)])

        assert enqueue()
        fill(0.5)
        assert not enqueue()
        with pytest.raises(psycopg.Error, match="NOTIFY queue"):
            fill(2)
        assert not enqueue()
        assert conn.execute("select postrow.depth('full')").fetchone() == (3,)
        stuck.execute("commit")
