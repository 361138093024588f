"""Workers that claim from their watermarks: what is committed, resumed or given back behind one is handled at once.

Each claim counts as slow here, so that watermarks are used whenever there are any; a look from the beginning just
because ten seconds have passed does not come at all, and the poll comes after a minute. tests/races has the same claim
by claim, test_late_commits.py a real worker under a real load.
"""

import math
import threading
import time
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest

from postrow import App, Rate, migrate
from postrow.embedded import Server
from postrow.testing import clock
from postrow.worker import claimer as claimer_module
from postrow.worker import lanes as lanes_module

pytestmark = pytest.mark.slow

AT_ONCE = 5.0  # seconds: far from a poll interval, and enough for a busy machine


@pytest.fixture(autouse=True)
def claims(monkeypatch):
    """Where claims began, each a dict by lane; None: at the beginning."""
    monkeypatch.setattr(lanes_module, "SLOW", -1.0)
    monkeypatch.setattr(lanes_module, "DEEP_EVERY", 1e9)
    began, original = [], lanes_module.Lanes.claimed

    def noted(self, edges, asked, *args, **options):
        began.append(asked)
        original(self, edges, asked, *args, **options)

    monkeypatch.setattr(lanes_module.Lanes, "claimed", noted)
    return began


@pytest.fixture
def seen(app):
    """The payloads that the handler of queue q has had, in order."""
    payloads = []

    @app.queue("q").consumer(concurrency=50, name="handler")
    async def handle(message):
        payloads.append(message.payload)

    return payloads


@pytest.fixture
def busy(start, db, wait_for, claims):
    """Starts a worker, and gives it four messages: it claims from a watermark, which lies after all that was there."""

    def begin(**options):
        after = db.value("select clock_timestamp()")
        running = start(poll_interval=60, **options)
        for n in range(4):
            if n == 3:  # a watermark trails by 0.2 s
                wait_for(lambda: db.value("select clock_timestamp() - %s > interval '0.25 s'", [after]))
            id_ = db.put(payload=f"first {n}")
            wait_for(lambda id_=id_: db.history(id_))

        def from_a_watermark():
            if (mark := claims[-1].get(("default", 0))) and mark > after:
                return True
            # A machine that stood still for a moment: a look was due before the next claim, and there was nothing.
            db.rows("select pg_notify('postrow', 'q default')")
            return False

        wait_for(from_a_watermark, what="a claim from a watermark")
        return running

    return begin


def test_a_late_commit_is_handled_at_once_by_a_worker_that_sleeps(db, busy, wait_for, seen, sessions_on):
    late = sessions_on(db.dsn)
    late.execute("select postrow.enqueue('q', '\"late\"')")
    busy()
    late.commit()
    wait_for(lambda: "late" in seen, deadline=AT_ONCE)


def test_a_late_commit_of_very_many_is_drained_beside_others(db, busy, wait_for, seen, sessions_on):
    late = sessions_on(db.dsn)
    late.execute(
        "select count(*) from postrow.enqueue_many('q', (select jsonb_agg(jsonb_build_object('payload', n)) "
        "from generate_series(1, 5000) n))"
    )
    busy()
    late.commit()
    for n in range(50):
        db.put(payload=f"newer {n}")
    wait_for(lambda: db.live() == 0)
    assert len(seen) == len(set(seen)) == 4 + 5000 + 50


@pytest.fixture
def asleep(monkeypatch, wait_for):
    """Waits until the worker has asked for nothing for half a second."""
    answered_at, original = [math.inf], claimer_module.execute_async

    async def noted(conn, op, **options):
        answered_at[0] = math.inf
        try:
            return await original(conn, op, **options)
        finally:
            answered_at[0] = time.monotonic()

    monkeypatch.setattr(claimer_module, "execute_async", noted)
    return lambda: wait_for(lambda: time.monotonic() - answered_at[0] > 0.5, what="the claimer to sleep")


@contextmanager
def paused(db, what):
    arguments = ", ".join(f"{name} => %({name})s" for name in what)
    db.rows(f"select postrow.pause({arguments})", what)
    yield
    db.rows(f"select postrow.resume({arguments})", what)


@pytest.mark.parametrize(
    "what", [{"queue": "q"}, {"tenant": "default"}, {"queue": "q", "tenant": "default"}], ids="+".join
)
def test_a_backlog_of_a_pause_is_handled_at_once_when_it_is_resumed(db, busy, wait_for, seen, sessions_on, what):
    late = sessions_on(db.dsn)
    late.execute("select postrow.enqueue('q', '\"late\"')")
    busy()
    with paused(db, what):
        for n in range(20):
            db.put(payload=f"one by one {n}")
        db.put_many(range(480))
        late.commit()
        db.put(payload="elsewhere", tenant="acme", queue="q" if "tenant" in what else "other")
        assert len(seen) <= 5
    wait_for(lambda: len(seen) >= 505, deadline=AT_ONCE)
    wait_for(lambda: db.value("select count(*) from postrow.message where queue = 'q'") == 0)
    assert "late" in seen


TAKEN_AWAY = {
    "registered anew": "register_consumer('q', 'handler')",
    "unregistered": "unregister_consumer('q')",
    "the tenant has its own": "register_consumer('q', 'handler', tenant => 'default')",
}


@pytest.mark.parametrize("option", ["rate", "tenant_rate"])
@pytest.mark.parametrize("how", TAKEN_AWAY)
def test_a_backlog_of_a_rate_is_handled_at_once_when_the_rate_is_taken_away(
    app, db, busy, wait_for, monkeypatch, option, how, asleep
):
    """By another start of the application, or an administrator; the next token would come in an hour."""
    seen = []

    @app.queue("q").consumer(concurrency=50, name="handler", **{option: Rate(10, per=36_000)})
    async def handle(message):
        seen.append(message.payload)

    monkeypatch.setattr(lanes_module, "HELD_MOST", 1e9)  # by the tap alone
    busy()
    db.put_many(range(500))
    wait_for(lambda: db.done() == 10)
    asleep()
    db.rows(f"select postrow.{TAKEN_AWAY[how]}")
    wait_for(lambda: len(seen) == 504, deadline=AT_ONCE)


def test_a_rate_that_was_taken_away_without_a_tap_is_noticed_soon(app, db, busy, wait_for, asleep):
    seen = []

    @app.queue("q").consumer(concurrency=50, name="handler", rate=Rate(10, per=36_000))
    async def handle(message):
        seen.append(message.payload)

    busy()
    db.put_many(range(500))
    wait_for(lambda: db.done() == 10)
    asleep()
    db.rows("set postrow.tap = off")
    db.rows("select postrow.register_consumer('q', 'handler')")
    wait_for(lambda: len(seen) == 504, deadline=lanes_module.HELD_MOST + AT_ONCE)


def test_a_rate_is_used_up_without_a_poll_and_skips_nothing(app, db, busy, wait_for):
    seen = []

    @app.queue("q").consumer(concurrency=50, name="handler", rate=Rate(5, per=0.1))
    async def handle(message):
        seen.append(message.payload)

    busy()
    db.put_many(range(100))
    wait_for(lambda: len(seen) == 104, deadline=2 + AT_ONCE)


def test_what_another_worker_gives_back_is_handled_at_once(db, busy, wait_for, seen, functions_on):
    other = functions_on(db.conn)
    db.put(payload="given back")
    rows = other.take(worker="other", lease=timedelta(minutes=10))
    busy()
    other.settle("release", rows)
    wait_for(lambda: "given back" in seen, deadline=AT_ONCE)


@pytest.mark.parametrize("ago", ["0 s", "0.5 s", "1 hour", "10000 days"])
def test_what_is_enqueued_for_the_past_is_handled_at_once(db, busy, wait_for, seen, ago):
    busy()
    db.rows("select postrow.enqueue('q', '\"past\"', available_at => clock_timestamp() - %s::interval)", [ago])
    wait_for(lambda: "past" in seen, deadline=AT_ONCE)


@pytest.mark.session("it looks for the sessions of a worker's parts")
def test_a_new_connection_begins_at_the_beginning_and_listens_again(db, busy, wait_for, seen, claims, sessions_on):
    late = sessions_on(db.dsn)
    late.execute("select postrow.enqueue('q', '\"late\"')")
    busy()
    for part in ("claimer", "listener", ""):
        before, pids = len(claims), db.backends(part)
        db.terminate(part)
        db.put(payload=f"after {part}")
        wait_for(lambda part=part: f"after {part}" in seen)
        wait_for(lambda part=part, pids=pids: (new := db.backends(part)) and not set(new) & set(pids))
        if part != "listener":
            assert {("default", 0): None} in claims[before:]
        if part == "claimer":
            late.commit()
            wait_for(lambda: "late" in seen, deadline=AT_ONCE)


@pytest.mark.usefixtures("impatient")
def test_when_the_server_was_restarted_all_is_handled_and_taps_are_heard_again(server, start_on, wait_for, claims):
    """While messages are committed, before and after."""
    seen, committed, ending = set(), set(), threading.Event()
    with Server(bin_dir=server.bin_dir) as own:
        migrate.apply(own.dsn())
        app = App(own.dsn())

        @app.queue("q").consumer(concurrency=50)
        async def handle(message):
            seen.add(message.payload)

        def produce():
            n = 0
            while not ending.is_set():
                try:
                    with psycopg.connect(own.dsn(), autocommit=True) as conn:
                        while not ending.wait(0.002):
                            n += 1
                            conn.execute("select postrow.enqueue('q', to_jsonb(%s::int))", [n])
                            committed.add(n)
                except psycopg.Error:
                    ending.wait(0.05)

        running = start_on(app, poll_interval=60)
        producer = threading.Thread(target=produce, daemon=True)
        producer.start()
        try:
            for _ in range(3):
                before = len(committed)
                wait_for(lambda before=before: len(committed) > before + 50 and len(seen) > before)
                assert claims[-1].get(("default", 0)) is not None
                own.kill()
                mark = len(claims)
                own.start()
                wait_for(lambda mark=mark: {("default", 0): None} in claims[mark:])
        finally:
            ending.set()
            producer.join(20)
        wait_for(lambda: committed <= seen)
        with psycopg.connect(own.dsn(), autocommit=True) as conn:
            for n in range(-1, -11, -1):  # nobody is busy now: each needs its tap
                conn.execute("select postrow.enqueue('q', to_jsonb(%s::int))", [n])
                wait_for(lambda n=n: n in seen, deadline=AT_ONCE)
        running.stop()
        app.close()


def test_after_the_clock_was_set_back_by_a_minute_workers_go_on(app, db, busy, wait_for, until):
    """With new messages at once, with what runs, and with what was due before in its time."""
    seen, inside, may_end = [], threading.Event(), threading.Event()

    @app.queue("q").consumer(concurrency=50, name="handler", lease=1)
    async def handle(message):
        seen.append(message.payload)
        if message.payload == "long":
            inside.set()
            await until(may_end)

    with clock(db.dsn, any_database=True) as moved:
        busy()
        long = db.put(payload="long")
        assert inside.wait(20)
        db.rows("set postrow.tap = off")
        db.put(payload="before", delay="0.001 s")
        moved.set(moved.now - timedelta(minutes=1))
        db.rows("reset postrow.tap")
        for n in range(10):
            db.put(payload=n)
            wait_for(lambda n=n: n in seen, deadline=AT_ONCE)
        wait_for(lambda: 0 < db.lease_left(long) <= 1, what="the lease to be renewed by the clock that is")
        moved.advance(timedelta(minutes=1))
        db.put(payload="after")
        wait_for(lambda: {"before", "after"} <= set(seen), deadline=AT_ONCE)
        may_end.set()
        wait_for(lambda: db.live() == 0)
    assert len(seen) == len(set(seen))


def test_after_the_clock_was_an_hour_ahead_workers_go_on(db, busy, wait_for, seen):
    with clock(db.dsn, any_database=True) as moved:
        busy()
        db.put(payload="scheduled", delay="30 minutes")
        for turn in range(3):
            moved.advance(timedelta(hours=1))
            for n in range(5):
                db.put(payload=f"ahead {turn} {n}")
                wait_for(lambda turn=turn, n=n: f"ahead {turn} {n}" in seen, deadline=AT_ONCE)
            moved.set(moved.now - timedelta(hours=1))
            for n in range(5):
                db.put(payload=f"back {turn} {n}")
                wait_for(lambda turn=turn, n=n: f"back {turn} {n}" in seen, deadline=AT_ONCE)
        assert "scheduled" in seen
        wait_for(lambda: db.live() == 0)
    assert len(seen) == len(set(seen))


def test_what_is_due_because_the_clock_was_set_ahead_is_found_by_the_next_poll(db, start, wait_for, seen):
    with clock(db.dsn, any_database=True) as moved:
        start(poll_interval=0.3)
        db.put(payload="scheduled", delay="30 minutes")
        db.put()
        wait_for(lambda: seen)
        moved.advance(timedelta(hours=1))
        wait_for(lambda: "scheduled" in seen, deadline=AT_ONCE)
