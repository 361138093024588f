"""The page /metrics of a worker that runs."""

import asyncio
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest
from pgbouncer import POOLED
from prometheus_client.parser import text_string_to_metric_families

import postrow
from postrow.models import QueueDepth
from postrow.worker import depths
from postrow.worker.metrics import MOST_QUEUES, Counts, Labels, State
from postrow.worker.prometheus import Page

pytestmark = pytest.mark.slow

HERE = ("127.0.0.1", 0)


class Asked:
    """What one ask gave: value(name, label=...) of a sample, None when there is none."""

    def __init__(self, running, *, accept=""):
        url = f"http://127.0.0.1:{running.worker.health_port}/metrics"
        request = urllib.request.Request(url, headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=10) as response:
            self.kind = response.headers["Content-Type"]
            self.text = response.read().decode()
        families = [] if accept else text_string_to_metric_families(self.text)
        self.samples = [sample for family in families for sample in family.samples]

    def value(self, name, **labels):
        found = [s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()]
        assert len(found) <= 1, found
        return found[0] if found else None


@pytest.fixture
def metrics(start, wait_for):
    """Starts a worker with a page of metrics; metrics.until(condition) asks until that holds, and then once more.

    The figures of one page are not of one moment: where the last of them is there, an earlier one may be older.
    """

    class Metrics:
        def start(self, **options):
            self.running = start(health=HERE, **options)
            wait_for(lambda: self.running.worker._parts is not None, what="the worker")
            return self.running

        def ask(self, **options):
            return Asked(self.running, **options)

        def until(self, condition):
            wait_for(lambda: condition(self.ask()), what="the metric")
            return self.ask()

    return Metrics()


def test_what_became_of_messages_is_counted_by_queue_and_outcome(metrics, app, db, soon):
    @app.queue("q").consumer(retry=soon, max_attempts=2)
    async def handle(message):
        match message.payload:
            case "fail":
                raise ValueError
            case "bury":
                raise postrow.Bury("never")
            case "snooze" if message.attempt == 1 and not message.failures and message.enqueued_at == message.due_at:
                raise postrow.Snooze(0.01)

    @app.queue("other-queue").consumer()
    def sync(message):
        time.sleep(0.06)

    db.put_many(["done", "done", "fail", "bury", "snooze"])
    db.put("other-queue")
    metrics.start()
    outcomes = {"done": 3, "failed": 2, "released": 1, "buried": 1, "lost": 0}
    asked = metrics.until(
        lambda a: (
            all(a.value("postrow_outcomes_total", queue="q", outcome=o) == n for o, n in outcomes.items())
            and a.value("postrow_outcomes_total", queue="other-queue", outcome="done") == 1
        )
    )
    assert asked.value("postrow_claimed_messages_total", queue="q") == 7
    assert asked.value("postrow_claim_seconds_count", queue="q") >= 2
    assert asked.value("postrow_handler_seconds_count", queue="q", outcome="failed") == 2
    assert asked.value("postrow_time_in_queue_seconds_count", queue="q") == 7
    of_sync = {"queue": "other-queue", "outcome": "done"}
    assert asked.value("postrow_handler_seconds_bucket", le="0.05", **of_sync) == 0
    assert asked.value("postrow_handler_seconds_bucket", le="+Inf", **of_sync) == 1
    assert 0.06 <= asked.value("postrow_handler_seconds_sum", **of_sync) < 5
    assert asked.value("postrow_worker_info", worker="w1", version=postrow.__version__) == 1


def test_time_in_queue_begins_when_a_message_was_due_by_the_databases_clock(metrics, app, db):
    @app.queue("q").consumer()
    async def handle(message):
        pass

    id_ = db.put()
    db.rows("update postrow.message set available_at = postrow.clock() - interval '100 s' where id = %s", [id_])
    metrics.start()
    asked = metrics.until(lambda a: a.value("postrow_time_in_queue_seconds_count", queue="q") == 1)
    assert 100 <= asked.value("postrow_time_in_queue_seconds_sum", queue="q") < 110


def test_a_message_of_a_group_waits_until_its_own_handler_starts(metrics, app, db):
    @app.queue("q").consumer()
    async def handle(message):
        await asyncio.sleep(0.2)

    db.put_many([1, 2], group_key="g")
    metrics.start()
    asked = metrics.until(lambda a: a.value("postrow_time_in_queue_seconds_count", queue="q") == 2)
    assert asked.value("postrow_time_in_queue_seconds_sum", queue="q") >= 0.2


def test_a_claim_after_a_tap_is_timed_from_the_tap(metrics, app, db):
    @app.queue("q").consumer()
    async def handle(message):
        pass

    metrics.start(poll_interval=60)
    # the first may be found by a look of the worker that begins, before their taps are heard
    asked = metrics.until(lambda a: db.put() and a.value("postrow_tap_to_claim_seconds_count", queue="q") >= 2)
    count = asked.value("postrow_tap_to_claim_seconds_count", queue="q")
    assert 0 < asked.value("postrow_tap_to_claim_seconds_sum", queue="q") < count


def test_a_lost_lease_is_counted_when_it_is_noticed(metrics, app, db, reached, until):
    at, go_on = reached(), threading.Event()

    @app.queue("q").consumer(lease=0.5)
    def handle(message):
        at.come()
        go_on.wait(20)

    id_ = db.put()
    metrics.start(sweep=False)
    at.wait()
    db.take_away(id_)
    asked = metrics.until(lambda a: a.value("postrow_leases_lost_total", queue="q") == 1)
    assert asked.value("postrow_outcomes_total", queue="q", outcome="lost") == 0
    assert asked.value("postrow_held_messages") == 1
    assert asked.value("postrow_handlers_running", queue="q") == 1
    go_on.set()
    asked = metrics.until(lambda a: a.value("postrow_outcomes_total", queue="q", outcome="lost") == 1)
    assert asked.value("postrow_leases_lost_total", queue="q") == 1
    assert asked.value("postrow_held_messages") == 0


def test_an_outcome_that_is_refused_is_a_lost_lease(metrics, app, db, reached):
    at, go_on = reached(), threading.Event()

    @app.queue("q").consumer(lease=300)
    def handle(message):
        at.come()
        go_on.wait(20)

    id_ = db.put()
    metrics.start(sweep=False)
    at.wait()
    db.take_away(id_)
    go_on.set()
    asked = metrics.until(lambda a: a.value("postrow_outcomes_total", queue="q", outcome="lost") == 1)
    assert asked.value("postrow_leases_lost_total", queue="q") == 1


def test_what_the_sweep_finds_is_counted_by_step(metrics, app, db, soon):
    @app.queue("q").consumer(retry=soon)
    async def handle(message):
        pass

    db.put()
    db.rows("select * from postrow.claim('q', 1, worker => 'dead', lease => '1 ms')")
    metrics.start()
    metrics.until(lambda a: a.value("postrow_sweep_findings_total", step="leases") == 1)


def test_depths_are_those_of_the_database_by_state(metrics, app, db, wait_for):
    @app.queue("q").consumer()
    async def handle(message):
        raise postrow.Bury("never")

    db.put("a", tenant="t1")
    db.put("a", tenant="t2")
    db.put("a", delay="1 hour")
    metrics.start()
    wait_for(lambda: db.rows("select 1 from postrow.worker"), what="the sign of life")
    id_ = db.put()
    wait_for(lambda: db.dead(id_), what="the dead letter")  # what is asked now is found by the first look
    db.rows("update postrow.message set available_at = postrow.clock() - interval '50 s' where tenant = 't1'")
    metrics.until(lambda a: a.value("postrow_outcomes_total", queue="q", outcome="buried") == 1)
    asked = metrics.until(lambda a: a.value("postrow_messages", queue="q", state="dead") == 1)
    of_a = {
        state: asked.value("postrow_messages", queue="a", state=state) for state in ("ready", "scheduled", "claimed")
    }
    assert of_a == {"ready": 2, "scheduled": 1, "claimed": 0}
    assert 50 <= asked.value("postrow_oldest_ready_seconds", queue="a") < 60
    assert asked.value("postrow_oldest_ready_seconds", queue="q") == 0
    assert asked.value("postrow_queue_workers", queue="a") == 0
    assert asked.value("postrow_queue_workers", queue="q") == 1


def test_what_is_paused_has_no_oldest_age(metrics, app, db):
    @app.queue("q").consumer()
    async def handle(message):
        pass

    db.put("a")
    db.rows("select postrow.pause('a', reason => 'a test')")
    metrics.start()
    asked = metrics.until(lambda a: a.value("postrow_messages", queue="a", state="ready") == 1)
    assert asked.value("postrow_oldest_ready_seconds", queue="a") == 0


def test_the_database_is_not_asked_at_each_ask(metrics, app, db, monkeypatch):
    @app.queue("q").consumer()
    async def handle(message):
        pass

    monkeypatch.setattr(depths, "EVERY", 600.0)
    metrics.start()
    before = metrics.until(lambda a: a.value("postrow_depth_age_seconds") is not None)
    db.put("a")
    for _ in range(20):
        asked = metrics.ask()
    assert asked.value("postrow_messages", queue="a", state="ready") is None
    assert asked.value("postrow_depth_age_seconds") > before.value("postrow_depth_age_seconds")
    assert POOLED or db.backends("metrics") == []  # and holds no connection meanwhile


def test_the_page_comes_while_the_database_keeps_its_depths_to_itself(metrics, app, db, sessions_on):
    @app.queue("q").consumer()
    async def handle(message):
        pass

    locker = sessions_on(db.dsn)
    metrics.start()
    locker.execute("lock table postrow.dead_letter in access exclusive mode")
    began = time.monotonic()
    asked = metrics.ask()
    assert time.monotonic() - began < 4
    assert asked.value("postrow_concurrency") == 10
    assert asked.value("postrow_depth_age_seconds") is None
    locker.rollback()
    metrics.until(lambda a: a.value("postrow_depth_age_seconds") is not None)


def test_the_page_comes_while_a_handler_blocks_the_loop(metrics, app, db, reached):
    at, go_on = reached(), threading.Event()

    @app.queue("q").consumer()
    async def handle(message):
        at.come()
        go_on.wait(20)  # what must not be done

    db.put()
    db.put("a")
    metrics.start()
    at.wait()
    asked = metrics.until(lambda a: a.value("postrow_loop_blocked_seconds") > 0)
    assert asked.value("postrow_messages", queue="a", state="ready") == 1
    go_on.set()


@pytest.mark.session("PgBouncer lets statements wait in an outage")
def test_an_outage_shows_by_part(metrics, app, db, impatient):
    @app.queue("q").consumer()
    async def handle(message):
        pass

    metrics.start()
    metrics.until(lambda a: a.value("postrow_database_up", part="claimer") == 1)
    with db.away():
        asked = metrics.until(lambda a: a.value("postrow_database_up", part="claimer") == 0)
        assert asked.value("postrow_worker_ready") == 0
    metrics.until(lambda a: a.value("postrow_worker_ready") == 1)


def test_a_worker_that_waits_for_its_database_at_the_start_says_so(app, db, start_on, wait_for, impatient):
    @app.queue("q").consumer()
    async def handle(message):
        pass

    with db.away():
        running = start_on(app, health=HERE)
        wait_for(lambda: running.worker.health_port, what="the page")
        wait_for(lambda: Asked(running).value("postrow_database_up", part="start") == 0, what="the metric")
    wait_for(lambda: Asked(running).value("postrow_worker_ready") == 1, what="the database")


def test_workers_of_one_process_count_apart(app, db, start, wait_for):
    @app.queue("q").consumer()
    async def handle(message):
        pass

    first, second = start(name="first", health=HERE), start(name="second", health=HERE)
    db.put_many(range(20))

    def done(running):
        return Asked(running).value("postrow_outcomes_total", queue="q", outcome="done") or 0

    wait_for(lambda: first.worker.health_port and second.worker.health_port, what="the pages")
    wait_for(lambda: done(first) + done(second) == 20, what="the messages")
    assert Asked(first).value("postrow_worker_info", worker="second") is None


def test_openmetrics_is_served_to_who_asks_for_it(metrics, app):
    @app.queue("q").consumer()
    async def handle(message):
        pass

    metrics.start()
    asked = metrics.ask(accept="application/openmetrics-text; version=1.0.0")
    assert asked.kind.startswith("application/openmetrics-text")
    assert asked.text.endswith("# EOF\n")


def test_without_the_library_the_page_names_the_extra(app, start, wait_for, monkeypatch):
    @app.queue("q").consumer()
    async def handle(message):
        pass

    monkeypatch.delitem(sys.modules, "postrow.worker.prometheus", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    running = start(health=HERE)
    wait_for(lambda: running.worker.health_port, what="the page")
    with pytest.raises(urllib.error.HTTPError) as refused:
        Asked(running)
    with refused.value as answer:
        assert answer.code == 404
        assert "pip install 'postrow[metrics]'" in answer.read().decode()
    with urllib.request.urlopen(f"http://127.0.0.1:{running.worker.health_port}/live", timeout=10) as live:
        assert live.status == 200


def test_a_page_that_cannot_be_made_is_an_error_of_that_page_alone(metrics, app, lines):
    @app.queue("q").consumer()
    async def handle(message):
        pass

    running = metrics.start()
    running.worker._state = lambda _weather: 1 / 0
    with pytest.raises(urllib.error.HTTPError) as refused:
        metrics.ask()
    refused.value.close()
    assert refused.value.code == 500
    assert lines("the page /metrics could not be made")


def test_a_worker_without_a_port_loads_no_library():
    code = (
        "import sys, postrow; from postrow.worker import Worker; app = postrow.App('postgresql://x')\n"
        "@app.queue('q').consumer()\ndef handle(message): pass\nWorker(app)\n"
        "print(*(name for name in ('prometheus_client', 'opentelemetry') if name in sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == []


def test_names_beyond_the_bound_are_counted_together():
    labels = Labels(["mine"])
    given = [labels.of(f"q{n}") for n in range(MOST_QUEUES + 50)]
    assert len(set(given)) == MOST_QUEUES  # with `other`, in place of `mine`
    assert given[-1] == "other"
    assert labels.of("mine") == "mine"


def test_depths_of_very_many_queues_have_a_bounded_number_of_labels():
    class Found:
        def now(self):
            return [QueueDepth(f"q{n}", 1, 0, 0, 2, float(n), 0) for n in range(1000)], 0.0

    state = State({}, 1, 0, 0, {}, 0.0, ready=True)
    page = Page(Counts([]), state=lambda: state, depths=Found, worker="w", version="0")
    families = {family.name: family for family in page.registry.collect()}
    ready = {s.labels["queue"]: s.value for s in families["postrow_messages"].samples if s.labels["state"] == "ready"}
    assert len(ready) == MOST_QUEUES + 1
    assert ready["other"] == 1000 - MOST_QUEUES
    ages = {s.labels["queue"]: s.value for s in families["postrow_oldest_ready_seconds"].samples}
    assert ages["other"] == 999
