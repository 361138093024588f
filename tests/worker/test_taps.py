"""How a worker learns of new messages: taps, looks, due times."""

import asyncio
import itertools
import math
import re
import threading
import time
from pathlib import Path

import psycopg
import pytest

from postrow.worker import claimer as claimer_module
from postrow.worker import listener as listener_module
from postrow.worker import second_look as second_look_module

pytestmark = pytest.mark.slow  # each waits for real time to pass


@pytest.fixture
def listening(monkeypatch, wait_for):
    """Waits until the worker hears taps from now on: its claimer has looked since its listener began."""
    heard_from, looks = [], []
    begins, ask = claimer_module.Claimer.listening, claimer_module.execute_async

    def noted(self):
        begins(self)
        heard_from.append(time.monotonic())

    async def noted_look(conn, op, **options):
        at = time.monotonic()
        answer = await ask(conn, op, **options)
        if "postrow.lanes(" in op.sql:
            looks.append(at)
        return answer

    monkeypatch.setattr(claimer_module.Claimer, "listening", noted)
    monkeypatch.setattr(claimer_module, "execute_async", noted_look)
    return lambda: wait_for(lambda: heard_from and looks and looks[-1] > heard_from[-1], what="the worker to listen")


def test_a_tap_wakes_a_worker_that_would_sleep_for_a_minute(db, start, wait_for, seen, listening):
    start(poll_interval=60)
    listening()
    delays = []
    for n in range(20):
        began = time.monotonic()
        db.put(payload=n)
        wait_for(lambda n=n: n in seen)
        delays.append(seen[n] - began)
    assert sorted(delays)[10] < 0.25


def test_messages_of_new_tenants_and_priorities_are_found_at_once_while_busy(db, start, wait_for, seen, listening):
    start(poll_interval=60)
    listening()
    stop = threading.Event()

    def keep_busy():
        with psycopg.connect(db.dsn, autocommit=True, prepare_threshold=None) as conn:
            n = 0
            while not stop.is_set():
                n += 1
                conn.execute("select postrow.enqueue('q', to_jsonb(%s::text))", [f"busy {n}"])

    thread = threading.Thread(target=keep_busy)
    thread.start()
    try:
        for n in range(10):
            db.put(payload=f"tenant {n}", tenant=f"t{n}")
            wait_for(lambda n=n: f"tenant {n}" in seen, deadline=3)
            db.put(payload=f"priority {n}", priority=n + 1)
            wait_for(lambda n=n: f"priority {n}" in seen, deadline=3)
    finally:
        stop.set()
        thread.join()


def test_a_delayed_message_wakes_a_sleeping_worker_when_it_is_due(db, start, wait_for, seen, listening):
    start(poll_interval=60)
    listening()
    db.put(payload="late", delay="0.8 s")
    db.put(payload="soon", delay="0.3 s")
    began = time.monotonic()
    wait_for(lambda: len(seen) == 2)
    assert 0.2 < seen["soon"] - began < 0.7
    assert 0.7 < seen["late"] - began < 1.5


def test_a_retry_wakes_a_sleeping_worker_when_it_is_due(app, db, start, wait_for, soon, listening):
    @app.queue("q").consumer(retry=soon, max_attempts=5)
    async def fail(_message):
        raise ValueError

    start(poll_interval=60)
    listening()
    id_ = db.put()
    wait_for(lambda: db.dead(id_), deadline=5)


def test_a_message_of_an_open_transaction_is_found_at_its_commit(db, start, wait_for, seen, listening):
    start(poll_interval=60)
    listening()
    with psycopg.connect(db.dsn) as conn:
        conn.execute("select postrow.enqueue('q', '1')")
        db.put(payload=2)
        wait_for(lambda: 2 in seen)
        assert 1 not in seen
        conn.commit()
        wait_for(lambda: 1 in seen, deadline=3)


def test_a_backlog_is_drained_without_a_wait(app, db, start, wait_for):
    ran = []

    @app.queue("q").consumer(concurrency=10)
    async def handle(message):
        ran.append(message.payload)
        await asyncio.sleep(0.001)

    db.put_many(range(500))
    start(poll_interval=60)
    wait_for(lambda: db.done() == 500)
    assert sorted(ran) == list(range(500))


def test_a_backlog_is_drained_when_outcomes_are_slower_to_write_than_handlers_to_run(
    app, db, start, wait_for, monkeypatch
):
    from postrow.worker import claimer

    monkeypatch.setattr(claimer, "UNWRITTEN", 1)
    monkeypatch.setattr(claimer.Claimer, "_held_up", lambda self: self._acker.pending > 5)

    @app.queue("q").consumer(concurrency=100)
    async def handle(_message):
        pass

    db.put_many(range(1000))
    start(poll_interval=60)
    wait_for(lambda: db.done() == 1000)


def test_rows_without_a_tap_are_found_within_a_poll_interval(db, start, wait_for, seen, listening):
    start(poll_interval=0.5)
    listening()
    db.rows("set postrow.tap = off")
    for n in range(3):
        began = time.monotonic()
        db.put(payload=n)
        wait_for(lambda n=n: n in seen)
        assert seen[n] - began < 2


def test_a_stream_of_taps_for_others_does_not_keep_untapped_rows_waiting(db, start, wait_for, seen, listening):
    start(poll_interval=0.3)
    listening()
    db.rows("set postrow.tap = off")
    stop = threading.Event()

    def forge():
        with psycopg.connect(db.dsn, autocommit=True, prepare_threshold=None) as conn:
            while not stop.is_set():
                conn.execute("select pg_notify('postrow', 'q nobody'), pg_notify('postrow', 'other default')")

    thread = threading.Thread(target=forge)
    thread.start()
    try:
        for n in range(5):
            db.put(payload=n)
            wait_for(lambda n=n: n in seen, deadline=5)
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("payload", ["", "q", "q ", " ", "\U0001f600", "q default extra", "x" * 7000])
def test_a_forged_tap_harms_nothing(db, start, wait_for, seen, lines, payload, listening):
    start()
    listening()
    db.rows("select pg_notify('postrow', %s)", [payload])
    db.put(payload=1)
    wait_for(lambda: 1 in seen)
    assert lines("", level=30) == []


def test_the_poll_transport_needs_no_listener(db, start, wait_for, seen):
    start(transport="poll", poll_interval=0.1)
    for n in range(3):
        db.put(payload=n)
        wait_for(lambda n=n: n in seen)
    assert db.backends("listener") == []


@pytest.mark.session("it gives the DSN that leads to the pooler for a direct one")
def test_the_listener_uses_its_own_dsn(db, start, wait_for, seen):
    start(poll_interval=60, listen_dsn=psycopg.conninfo.make_conninfo(db.dsn, application_name="direct"))
    wait_for(
        lambda: db.value(
            "select count(*) from pg_stat_activity where application_name = 'direct' and query = 'listen postrow'"
        )
    )
    db.put(payload=1)
    wait_for(lambda: 1 in seen, deadline=5)


@pytest.mark.usefixtures("impatient")
def test_a_terminated_listener_listens_again_and_misses_nothing(db, start, wait_for, seen, listening):
    """No round leaves a message to the poll, which comes after a minute."""
    start(poll_interval=60)
    listening()
    count = 0
    for _ in range(10):
        (pid,) = wait_for(lambda: db.backends("listener"))
        db.admin.execute("select pg_terminate_backend(%s)", [pid])
        for _ in range(20):
            db.put(payload=count)
            count += 1
        wait_for(lambda: len(seen) == count, deadline=5)  # noqa: B023  # called at once
        # the old one ends a moment after its client has noticed
        wait_for(lambda pid=pid: len(new := db.backends("listener")) == 1 and new != [pid])


def test_a_burst_of_taps_is_heard_in_flat_memory(db, start, wait_for, seen, monkeypatch, listening):
    def memory():
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096

    heard = []
    original = listener_module.Listener._hear
    monkeypatch.setattr(
        listener_module.Listener, "_hear", lambda self, notify: (heard.append(None), original(self, notify))
    )
    start()
    listening()
    db.rows("select pg_notify('postrow', 'q t' || n) from generate_series(1, 5000) n")
    wait_for(lambda: len(heard) >= 5000)
    before = memory()
    for start_at in range(0, 200_000, 20_000):
        db.rows(
            "select pg_notify('postrow', 'q t' || n) from generate_series(%s::int, %s::int) n",
            [start_at, start_at + 19_999],
        )
    wait_for(lambda: len(heard) >= 205_000, deadline=100)
    assert memory() - before < 40_000_000
    db.put(payload=1)
    wait_for(lambda: 1 in seen)


def test_a_message_that_a_producer_holds_back_is_asked_for_less_and_less_and_taken_at_its_commit(
    app, db, start, wait_for, monkeypatch
):
    done, asked = [], []
    original = claimer_module.execute_async

    async def counted(conn, op, **options):
        if "claim_lanes" in op.sql:
            asked.append(time.monotonic())
        return await original(conn, op, **options)

    monkeypatch.setattr(claimer_module, "execute_async", counted)

    @app.queue("q").consumer()
    async def handle(message):
        done.append(message.payload)

    db.rows("select postrow.pause('q')")
    db.rows("select id from postrow.enqueue('q', '1', dedup_key => 'k')")
    with psycopg.connect(db.dsn) as producer:
        producer.execute("select postrow.enqueue('q', '2', dedup_key => 'k')")
        db.rows("select postrow.resume('q')")
        start(poll_interval=30.0)
        # in a loop without a pause it would be hundreds in a second
        wait_for(lambda: len(asked) > 20)
        assert asked[20] - asked[0] > 0.5
        assert done == []
        producer.commit()
        wait_for(lambda: done)


@pytest.fixture
def asked(monkeypatch):
    """What the claimer asks the database, in a list: the function's name and the queue."""
    calls = []
    original = claimer_module.execute_async

    async def counted(conn, op, **options):
        calls.append((re.findall(r"postrow\.(\w+)\(\$", op.sql)[-1], op.params[0]))
        return await original(conn, op, **options)

    monkeypatch.setattr(claimer_module, "execute_async", counted)
    monkeypatch.setattr(claimer_module, "ASK_EVERY", 3600)
    return calls


@pytest.fixture
def heard(monkeypatch):
    """The taps that the listener has given to the claimer, in a list."""
    taps = []
    original = claimer_module.Claimer.tapped

    def tapped(self, queue, tenant):
        original(self, queue, tenant)
        taps.append((queue, tenant))

    monkeypatch.setattr(claimer_module.Claimer, "tapped", tapped)
    return taps


def at_rest(running, asked, wait_for):
    """No feed of the worker owes a look, and the claimer has asked nothing for half a second."""
    state = [len(asked), time.monotonic()]

    def still():
        owed = [feed.second_look.due_at for feed in running.worker._parts.claimer._feeds]
        if state[0] != len(asked) or min(owed) < math.inf:
            state[:] = [len(asked), time.monotonic()]
        return time.monotonic() - state[1] > 0.5

    wait_for(still, what="the claimer to rest")


@pytest.mark.usefixtures("seen")
def test_a_tap_for_another_queue_makes_a_worker_ask_nothing(db, start, wait_for, asked, heard, listening):
    running = start(poll_interval=60)
    listening()
    at_rest(running, asked, wait_for)
    del asked[:]
    for n in range(50):
        db.rows("select pg_notify('postrow', %s)", [f"other t{n}"])
        db.put(queue="another", tenant=f"t{n}")
    wait_for(lambda: ("other", "t49") in heard)
    at_rest(running, asked, wait_for)
    assert asked == []


def test_a_tap_for_one_queue_of_a_worker_makes_it_claim_from_no_other(
    app, db, start, wait_for, asked, seen, heard, listening
):
    @app.queue("r").consumer()
    async def handle(message):
        seen[message.payload] = time.monotonic()

    running = start(poll_interval=60)
    listening()
    at_rest(running, asked, wait_for)
    del asked[:]
    for n in range(20):
        db.put(queue="q", payload=n)
        wait_for(lambda n=n: n in seen)
    at_rest(running, asked, wait_for)
    assert heard
    assert {function for function, queue in asked if queue == "r"} <= {"lanes"}  # now and then
    assert sum(queue == "r" for _, queue in asked) < 10 < sum(queue == "q" for _, queue in asked)


def test_a_message_of_another_tenant_whose_tap_was_kept_back_is_found_by_the_second_look(
    db, start, wait_for, seen, listening
):
    start(poll_interval=60)
    listening()
    db.put(payload="known", tenant="known")
    wait_for(lambda: "known" in seen)
    for n in range(5):
        with psycopg.connect(db.dsn) as quiet:
            quiet.execute("set local postrow.tap = off")
            quiet.execute("select postrow.enqueue('q', to_jsonb(%s::text), tenant => %s)", [f"quiet {n}", f"t{n}"])
        db.rows("select pg_notify('postrow', 'q known')")
        wait_for(lambda n=n: f"quiet {n}" in seen, deadline=10)


def test_a_consumer_of_one_tenant_looks_again_after_a_tap_of_another(app, db, start, wait_for, listening):
    """Its own tap may have been kept back for that one."""
    done = []

    @app.queue("mine").consumer(tenant="acme")
    async def handle(message):
        done.append(message.payload)

    start(poll_interval=60)
    listening()
    with psycopg.connect(db.dsn) as quiet:
        quiet.execute("set local postrow.tap = off")
        quiet.execute("select postrow.enqueue('mine', '1', tenant => 'acme')")
    db.rows("select pg_notify('postrow', 'mine other')")
    wait_for(lambda: done, deadline=10)


def test_a_message_that_is_committed_long_after_its_tap_was_kept_back_is_found_soon(
    db, start, wait_for, seen, asked, heard, listening
):
    """Its transaction holds the lock that a tap kept back takes, and no other tap comes: the poll would be a minute."""
    running = start(poll_interval=60)
    listening()
    with psycopg.connect(db.dsn) as late:
        late.execute("set local postrow.tap = off")
        late.execute("select pg_advisory_xact_lock_shared(1886613367, hashtext('q') & 31)")
        late.execute("select postrow.enqueue('q', '\"late\"')")
        db.put(payload="tap")
        wait_for(lambda: "tap" in seen)
        before = len(asked)
        wait_for(lambda: asked[before:].count(("taps_kept_back", "q")) >= 4)  # beyond the near and the far look
        assert "late" not in seen
        late.commit()
    wait_for(lambda: "late" in seen, deadline=10)
    assert ("q", "default") in heard
    at_rest(running, asked, wait_for)  # then it sleeps


@pytest.mark.usefixtures("seen")
def test_what_was_tapped_is_claimed_before_a_look_that_is_due_but_not_twice(
    db, start, wait_for, asked, listening, monkeypatch
):
    running = start(poll_interval=60)
    listening()
    wait_for(lambda: db.history(db.put()))
    at_rest(running, asked, wait_for)
    monkeypatch.setattr(second_look_module, "NEAR", 0.0)  # a look is due whenever a tap was heard
    monkeypatch.setattr(second_look_module, "SHARE", 0)
    del asked[:]
    wait_for(lambda: db.history(db.put()))
    assert asked[0] == ("claim_lanes", "q")

    at_rest(running, asked, wait_for)
    del asked[:]
    wait_for(lambda: (db.rows("select pg_notify('postrow', 'q default')"), len(asked) >= 60)[1], what="60 questions")
    names = [name for name, _ in asked]
    claims = [len(list(group)) for name, group in itertools.groupby(names) if name == "claim_lanes"]
    assert max(claims) <= 2  # a look that found something, and the next tap
