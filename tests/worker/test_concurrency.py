"""How many handlers run at once, how much is claimed ahead, and whose messages a handler gets."""

import asyncio
import threading
import time
from types import SimpleNamespace

import psycopg
import pytest

import postrow
from postrow.errors import BadArgumentError, ConsumerConflictError
from postrow.models import Lane
from postrow.worker import Worker
from postrow.worker import claimer as claimer_module
from postrow.worker import feed as feed_module
from postrow.worker import heartbeat as heartbeat_module
from postrow.worker.claimer import Claimer
from postrow.worker.connections import Weather


class Gate:
    """Handlers go in and wait until it opens; it knows the most that were in at once."""

    def __init__(self, until):
        self.until = until
        self._lock = threading.Lock()
        self.opened = threading.Event()
        self.inside = self.most = self.passed = 0

    def enter(self):
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)

    def leave(self):
        with self._lock:
            self.inside -= 1
            self.passed += 1

    def pass_sync(self, _message):
        self.enter()
        self.opened.wait(20)
        self.leave()

    async def pass_async(self, _message):
        self.enter()
        await self.until(self.opened)
        self.leave()


@pytest.fixture
def gate(until):
    it = Gate(until)
    yield it
    it.opened.set()


@pytest.fixture(params=["pass_async", "pass_sync"])
def through(request, gate):
    """The gate as a handler: an async one, or a sync one."""
    return getattr(gate, request.param)


def claimed(db):
    return db.value("select count(*) from postrow.message where claim_token is not null")


def looked_again(db, wait_for):
    """The worker's claimer has been to the database once more."""
    before = db.value("select clock_timestamp()")
    wait_for(
        lambda: db.value(
            "select max(query_start) > %s and bool_and(state = 'idle') from pg_stat_activity "
            "where application_name = 'postrow claimer'",
            [before],
        )
    )


def test_a_queue_runs_as_many_as_its_concurrency_and_claims_no_more(app, db, start, wait_for, gate, through):
    app.queue("q").consumer(concurrency=3, name="handler")(through)
    db.put_many(range(20))
    start()
    wait_for(lambda: gate.inside == 3)
    assert claimed(db) == 3
    db.put("q", 21)
    assert db.value("select count(*) from postrow.message where attempt > 0") == 3
    gate.opened.set()
    wait_for(lambda: db.live() == 0)
    assert (gate.most, gate.passed) == (3, 21)


def test_a_process_runs_as_many_as_its_own_concurrency(app, db, start, wait_for, gate, through):
    for name in ("a", "b", "c"):
        app.queue(name).consumer(concurrency=4, name="handler")(through)
        db.put_many(range(8), queue=name)
    start(concurrency=5)
    wait_for(lambda: gate.inside == 5)
    assert claimed(db) == 5
    gate.opened.set()
    wait_for(lambda: db.live() == 0)
    assert (gate.most, gate.passed) == (5, 24)


def test_a_full_queue_does_not_hold_up_another(app, db, start, wait_for, gate):
    app.queue("full").consumer(concurrency=2, name="stuck")(gate.pass_async)

    @app.queue("other").consumer()
    async def quick(_message):
        pass

    db.put_many(range(10), queue="full")
    start(poll_interval=60)
    wait_for(lambda: gate.inside == 2)
    db.put_many(range(30), queue="other")
    wait_for(lambda: db.done() == 30)
    assert gate.inside == 2


def test_only_the_named_queues_are_served(app, db, start, wait_for):
    for name in ("a", "b"):

        @app.queue(name).consumer(name="handler")
        async def handle(_message):
            pass

    left, done = db.put("b"), db.put("a")
    start(queues=["a"])
    wait_for(lambda: db.history(done))
    assert db.message(left).attempt == 0
    assert db.rows("select queue from postrow.consumer") == [("a",)]


def test_a_tenants_own_consumer_gets_its_messages_and_the_other_all_the_rest(app, db, start, wait_for):
    seen = {"all": [], "acme": []}

    @app.queue("q").consumer(name="all")
    async def for_all(message):
        seen["all"].append(message.tenant)

    @app.queue("q").consumer(name="acme", tenant="acme")
    async def for_acme(message):
        seen["acme"].append(message.tenant)

    start(poll_interval=60)
    for _ in range(5):
        for tenant in ("acme", "zeta", "default", "beta"):
            db.put(tenant=tenant)
    wait_for(lambda: db.live() == 0)
    assert seen["acme"] == ["acme"] * 5
    assert sorted(seen["all"]) == ["beta"] * 5 + ["default"] * 5 + ["zeta"] * 5
    assert db.rows("select queues, tenants from postrow.worker") == [(["q", "q"], ["*", "acme"])]


def test_a_worker_with_only_a_tenants_consumer_leaves_the_others_alone(app, db, start, wait_for):
    @app.queue("q").consumer(name="acme", tenant="acme")
    async def for_acme(_message):
        pass

    other, own = db.put(tenant="zeta"), db.put(tenant="acme")
    start()
    wait_for(lambda: db.history(own))
    looked_again(db, wait_for)
    assert db.message(other).attempt == 0


def test_a_tenants_consumer_gets_no_message_of_another_that_is_targeted_at_its_worker(app, db, start, wait_for):
    seen = {"all": [], "acme": []}

    @app.queue("q").consumer(name="all")
    async def for_all(message):
        seen["all"].append(message.tenant)

    @app.queue("q").consumer(name="acme", tenant="acme")
    async def for_acme(message):
        seen["acme"].append(message.tenant)

    for _ in range(5):
        for tenant in ("acme", "zeta"):
            db.put(tenant=tenant, target="w1")
    start()
    wait_for(lambda: db.live() == 0)
    assert seen == {"all": ["zeta"] * 5, "acme": ["acme"] * 5}


def test_a_worker_with_only_a_tenants_consumer_leaves_messages_of_others_that_are_targeted_at_it(
    app, db, start, wait_for
):
    @app.queue("q").consumer(name="acme", tenant="acme")
    async def for_acme(_message):
        pass

    other, own = db.put(tenant="zeta", target="w1"), db.put(tenant="acme", target="w1")
    start()
    wait_for(lambda: db.history(own))
    looked_again(db, wait_for)
    assert db.message(other) is not None


def test_a_targeted_message_goes_to_the_worker_of_that_name_only(app, db, start, wait_for):
    @app.queue("q").consumer()
    async def handle(_message):
        pass

    start(name="w1")
    second = db.put(target="w2")
    first = db.put(target="w1")
    anybody = db.put()
    wait_for(lambda: db.history(first) and db.history(anybody))
    looked_again(db, wait_for)
    assert db.message(second).attempt == 0
    start(name="w2")
    wait_for(lambda: db.history(second))
    assert db.history(second).claimed_by == "w2"


def test_another_handler_for_a_queue_that_has_one_is_refused_at_the_start(app, db, start):
    db.rows("select postrow.register_consumer('q', 'the_present_one')")

    @app.queue("q").consumer()
    async def another(_message):
        pass

    error = start().end()
    assert isinstance(error, ConsumerConflictError)
    assert "the_present_one" in str(error)
    db.rows("select postrow.register_consumer('q', 'another', replace => true)")


def test_replicas_of_one_handler_share_its_messages_and_run_each_once(app, db, start, wait_for, until):
    ran, opened = [], threading.Event()

    @app.queue("q").consumer(concurrency=5)
    async def handle(message):
        ran.append(message.payload)
        await until(opened)
        await asyncio.sleep(0.002)

    for n in range(3):
        start(name=f"w{n}")
    db.put_many(range(300))
    at_work = "select count(distinct claimed_by) from postrow.message where claim_token is not null"
    wait_for(lambda: db.value(at_work) == 3, what="each to have some")
    opened.set()
    wait_for(lambda: db.done() == 300)
    assert sorted(ran) == list(range(300))
    assert db.value("select count(distinct claimed_by) from postrow.history") == 3


def test_a_worker_says_that_it_lives_and_takes_its_leave(app, db, start, wait_for):
    @app.queue("q").consumer()
    async def handle(_message):
        pass

    running = start(name="laptop-7")
    row = wait_for(lambda: db.rows("select name, queues, version from postrow.worker"))[0]
    assert (row.name, row.queues, row.version) == ("laptop-7", ["q"], postrow.__version__)
    running.stop()
    assert db.rows("select 1 from postrow.worker") == []


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"queues": ["nope"]}, "nope"),
        ({"queues": []}, "empty"),
        ({"transport": "pigeon"}, "pigeon"),
        ({"poll_interval": 0}, "poll_interval"),
        ({"grace": -1}, "grace"),
        ({"concurrency": 0}, "concurrency"),
    ],
)
def test_a_value_outside_its_range_is_refused_before_anything_starts(app, options, word):
    @app.queue("q").consumer()
    async def handle(_message):
        pass

    with pytest.raises(BadArgumentError, match=word):
        Worker(app, **options)


def test_an_app_without_handlers_has_no_worker(app):
    with pytest.raises(BadArgumentError, match="no handlers"):
        Worker(app)


def test_a_name_outside_the_grammar_is_refused_at_the_start(app):
    @app.queue("q").consumer()
    async def handle(_message):
        pass

    with pytest.raises(postrow.BadNameError, match="name 'my laptop' is not a valid name"):
        Worker(app, name="my laptop").run()


async def test_what_is_due_where_no_slot_is_free_does_not_keep_the_claimer_awake(app):
    for queue in ("full", "idle"):
        app.queue(queue).consumer(concurrency=1, name=queue)(lambda _message: None)
    consumers = Worker(app, queues=["full", "idle"]).consumers
    full = next(consumer for consumer in consumers if consumer.name == "full")
    claimer = Claimer(
        None,
        consumers,
        SimpleNamespace(running={full: 1}, total=1, waiting=0),
        SimpleNamespace(pending=0),
        Weather(),
        worker="w",
        concurrency=2,
        poll_interval=0.2,
        refused=None,
    )
    claimer._worked_at -= 1.0
    for feed in claimer._feeds:
        lanes = [Lane("default", 5, ready=False, due_in=-1.0)] if feed.consumer is full else []
        feed.lanes.looked(lanes, 0.0)
    began = time.monotonic()
    await claimer._pause(full=False)
    assert time.monotonic() - began >= 0.2


def test_the_database_claims_while_handlers_run(app, db, start, wait_for):
    """The second claim is on its way before the first handler has a turn, and this one keeps the loop to itself."""
    seen = []

    @app.queue("q").consumer(concurrency=1000)
    async def handle(message):
        if not seen:
            seen.append(message.id)
            wait_for(lambda: claimed(db) == 1000, what="the second claim")

    db.put_many(range(1000))
    start(transport="poll")  # which owes no look after a tap: in one that comes between, the handler has its turn
    wait_for(lambda: db.done() == 1000)


@pytest.mark.parametrize(("few", "turns"), [(0, {True}), (2, {False})])
def test_many_workers_claim_in_turn_and_a_few_do_not(app, db, start, wait_for, monkeypatch, few, turns):
    from postrow.worker import claimer

    monkeypatch.setattr(claimer, "FEW", few)
    asked, execute = set(), claimer.execute_async

    async def noted(conn, op, **options):
        if "postrow.claim_lanes(" in op.sql:
            asked.add(op.params[-1])
        return await execute(conn, op, **options)

    monkeypatch.setattr(claimer, "execute_async", noted)

    @app.queue("q").consumer(concurrency=100)
    async def handle(_message):
        pass

    db.put_many(range(10))
    start()
    wait_for(lambda: db.done() == 10)
    assert asked == turns


class NoThread(threading.Thread):
    """Those of handlers cannot be started, but for the first `there` of them."""

    there = 0

    def start(self):
        name, _, number = self.name.rpartition("-")
        if name == "postrow-handler" and int(number) >= self.there:
            raise RuntimeError("can't start new thread")
        super().start()


def test_sync_handlers_wait_for_the_threads_that_there_are(app, db, start, wait_for, monkeypatch):
    monkeypatch.setattr(threading, "Thread", NoThread)
    monkeypatch.setattr(NoThread, "there", 1)

    @app.queue("q").consumer(concurrency=5)
    def handle(_message):
        pass

    db.put_many(range(5))
    start()
    wait_for(lambda: db.done() == 5)


def test_without_any_thread_a_sync_handlers_messages_fail(app, db, start, wait_for, monkeypatch):
    monkeypatch.setattr(threading, "Thread", NoThread)

    @app.queue("q").consumer(concurrency=5, max_attempts=1)
    def handle(_message):
        pass

    id_ = db.put()
    running = start()
    wait_for(lambda: db.dead(id_))
    assert db.dead(id_).failures[-1]["message"] == "can't start new thread"
    running.stop()


@pytest.fixture
def others(db, monkeypatch):
    """Two sessions of a fleet that have all the turns of queue q; each claim of a worker is to have one."""
    monkeypatch.setattr(claimer_module, "FEW", 0)
    monkeypatch.setattr(claimer_module, "MANY", 1)
    with psycopg.connect(db.dsn) as one, psycopg.connect(db.dsn) as two:
        for conn in (one, two):
            assert conn.execute("select postrow.claim_turn('q')").fetchone() == (True,)
        yield one, two


def test_a_worker_that_gets_no_turn_claims_nothing_and_asks_again(db, start, wait_for, seen, others, monkeypatch):
    """As in a fleet, of which two others claim."""
    turns = []
    turned = feed_module.Feed.turned

    def noted(self, *, away, fleet):
        turned(self, away=away, fleet=fleet)
        turns.append((away, self.turn_in))

    monkeypatch.setattr(feed_module.Feed, "turned", noted)
    db.put_many(range(3))
    start(poll_interval=60)
    wait_for(lambda: len(turns) >= 5)
    assert all(away for away, _ in turns)
    assert all(0 < pause <= 1.5 * feed_module.NEXT_TURN_OF_ALL for _, pause in turns)
    assert db.rows("select id from postrow.message where claim_token is not null") == []
    others[0].rollback()
    wait_for(lambda: set(seen) == {0, 1, 2})
    assert not turns[-1][0]


def test_a_worker_that_waits_for_its_turn_is_at_rest_though_it_owes_the_queue_a_look(
    db, start, wait_for, seen, others, monkeypatch
):
    """It went round and round until its turn: some thousand times a second."""
    monkeypatch.setattr(feed_module, "NEXT_TURN", 0.6)
    monkeypatch.setattr(feed_module, "NEXT_TURN_OF_ALL", 0.6)
    rounds, turns = [], []
    turned, round_ = feed_module.Feed.turned, claimer_module.Claimer._round

    def noted(self, *, away, fleet):
        turned(self, away=away, fleet=fleet)
        turns.append((away, len(rounds)))

    async def counted(self, conn):
        rounds.append(None)
        return await round_(self, conn)

    monkeypatch.setattr(feed_module.Feed, "turned", noted)
    monkeypatch.setattr(claimer_module.Claimer, "_round", counted)
    db.put_many(range(3))
    start(poll_interval=60)
    wait_for(lambda: turns)
    db.put_many(range(3))  # with a tap, after which it owes a look
    wait_for(lambda: len(turns) >= 3)
    assert all(away for away, _ in turns)
    assert turns[2][1] - turns[0][1] < 50


@pytest.mark.parametrize(("fleet", "most"), [(3, 0.06), (64, 1.28)])
def test_who_gets_no_turn_asks_later_and_later_until_it_has_one(fleet, most):
    feed = feed_module.Feed(SimpleNamespace(), 1.0)

    def pause():
        feed.turned(away=True, fleet=fleet)
        return feed.held_for

    pauses = [pause() for _ in range(12)]
    assert 0.002 < pauses[0] <= 0.0075
    assert most / 2 - 0.1 < pauses[-1] <= 1.5 * most
    feed.turned(away=False, fleet=fleet)
    assert pause() <= 0.0075


def test_a_worker_whose_handler_was_replaced_is_no_worker_of_that_queue_any_more(
    app, db, start, wait_for, seen, monkeypatch
):
    """Else nobody would be told that nothing is handled."""
    for name in ("ASK_EVERY", "ASK_IDLE_EVERY"):
        monkeypatch.setattr(claimer_module, name, 0.0)
    for name in ("BEAT_EVERY", "IDLE_BEAT_EVERY"):
        monkeypatch.setattr(heartbeat_module, name, 0.0)
    app.queue("other").consumer(name="handler")(print)
    start(poll_interval=0.05)
    queues = "select coalesce((select queues from postrow.worker), '{}')"
    wait_for(lambda: db.value(queues) == ["other", "q"])
    replace = "select count(*) from postrow.register_consumer('q', %s, replace => true)"
    (own,) = [row.handler for row in db.rows("select handler from postrow.consumer where queue = 'q'")]
    db.rows(replace, ["typo"])
    wait_for(lambda: db.value(queues) == ["other"])
    assert db.value("select max(workers) from postrow.status() where queue = 'q'") in (0, None)
    db.rows(replace, [own])
    wait_for(lambda: db.value(queues) == ["other", "q"])
    db.put(payload=1)
    wait_for(lambda: set(seen) == {1})
