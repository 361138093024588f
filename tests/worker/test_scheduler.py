"""Workers enqueue what is scheduled: the app's own schedules and those that were declared elsewhere; each time once."""

import datetime as dt
import itertools

import pytest

import postrow
from postrow import App
from postrow.worker import scheduler


@pytest.mark.slow
def test_two_workers_enqueue_each_time_once(app, db, start, wait_for):
    done = []

    @app.queue("ticks").consumer()
    async def tick(message):
        done.append(message.headers["scheduled_for"])

    app.schedule("each_second", queue="ticks", payload={"n": 1}, cron="* * * * * *", missed="all")
    start(name="w1")
    start(name="w2")
    wait_for(lambda: len(done) >= 3)
    db.rows("select postrow.pause_schedule('each_second', true)")
    wait_for(lambda: db.live() == 0)
    assert len(set(done)) == len(done)
    seconds = sorted(dt.datetime.fromisoformat(text) for text in done)
    assert [b - a for a, b in itertools.pairwise(seconds)] == [dt.timedelta(seconds=1)] * (len(seconds) - 1)


def test_a_schedule_is_said_at_the_start_and_changed_by_the_next_one(app, db, start, wait_for, lines):
    @app.queue("q").consumer()
    async def handle(message): ...

    app.schedule("nightly", queue="q", payload=1, cron="30 4 * * *", timezone="Europe/Berlin")
    start()
    wait_for(lambda: lines("schedule nightly (30 4 * * * Europe/Berlin) -> queue q"))
    (row,) = db.rows("select * from postrow.schedule")
    assert (row.spec, row.timezone, row.payload) == ("30 4 * * *", "Europe/Berlin", 1)
    assert row.next_at.minute == 30


def test_what_was_missed_comes_once(app, db, start, wait_for):
    done = []

    @app.queue("q").consumer()
    async def handle(message):
        done.append(message.headers["scheduled_for"])

    db.rows(
        "select postrow.put_schedule('hourly', 'q', '1', 'cron', '0 * * * *', "
        "date_trunc('hour', now()) - interval '5 hours')"
    )
    start()
    wait_for(lambda: done)
    (row,) = db.rows("select date_trunc('hour', now()) as hour, * from postrow.schedule")
    assert [dt.datetime.fromisoformat(text) for text in done] == [row.hour]
    assert row.next_at == row.hour + dt.timedelta(hours=1)


def test_a_worker_that_shall_not_enqueues_nothing(app, db, start, wait_for):
    @app.queue("q").consumer()
    async def handle(message): ...

    db.rows("select postrow.put_schedule('n', 'q', '1', 'every', '60', now())")
    start(schedule=False)
    id_ = db.put()
    wait_for(lambda: db.history(id_))
    assert db.done() == 1
    assert not db.backends("scheduler")


def test_a_schedule_that_cannot_be_read_keeps_no_other_back_and_is_said_once(app, db, start, wait_for, lines):
    done = []

    @app.queue("q").consumer()
    async def handle(message):
        done.append(message.headers["schedule"])

    def declare(name, kind, spec, seconds):
        due = f"now() - interval '{seconds} s'"
        db.rows(f"select postrow.put_schedule('{name}', 'q', '1', '{kind}', '{spec}', {due})")

    declare("broken", "cron", "99 * * * *", 30)  # SQL reads no cron
    declare("fine", "every", "1", 20)
    start()
    wait_for(lambda: done.count("fine") >= 3)
    assert "broken" not in done
    assert len(lines("schedule default / broken cannot be fired: CronSimError: ")) == 1
    db.rows("select postrow.put_schedule('broken', 'q', '1', 'every', '3600', now())")
    wait_for(lambda: "broken" in done)


def test_many_schedules_that_cannot_be_read_keep_no_other_back(app, db, start, wait_for, monkeypatch):
    """They are the first of each transaction, and stay due."""
    monkeypatch.setattr(scheduler, "AT_ONCE", 3)
    done = []

    @app.queue("q").consumer()
    async def handle(message):
        done.append(message.headers["schedule"])

    for n in range(5):
        db.rows(f"select postrow.put_schedule('broken-{n}', 'q', '1', 'cron', '99 * * * *', now() - interval '1 min')")
    db.rows("select postrow.put_schedule('fine', 'q', '1', 'every', '3600', now())")
    start()
    wait_for(lambda: done == ["fine"])


@pytest.fixture
def timed_out(db):
    """The queue whose messages take longer to enqueue than the role's statement_timeout allows."""
    db.rows(
        "create function public.time_out() returns trigger language plpgsql as "
        "'begin raise exception using errcode = ''query_canceled'', message = ''it takes too long''; end'"
    )
    db.rows(
        "create trigger time_out before insert on postrow.message for each row when (new.queue = 'slow') "
        "execute function public.time_out()"
    )
    yield "slow"
    db.rows("drop trigger time_out on postrow.message")
    db.rows("drop function public.time_out()")


def test_a_schedule_that_the_database_gives_up_keeps_no_other_back(app, db, start, wait_for, lines, timed_out):
    done = []

    @app.queue("q").consumer()
    async def handle(message):
        done.append(message.headers["schedule"])

    db.rows("select postrow.put_schedule('timed_out', %s, '1', 'every', '60', now())", [timed_out])
    db.rows("select postrow.put_schedule('fine', 'q', '1', 'every', '60', now())")
    start()
    wait_for(lambda: done == ["fine"])
    assert len(lines("schedule default / timed_out cannot be fired: QueryCanceled: it takes too long")) == 1


def test_a_schedule_of_an_app_is_checked_when_it_is_declared():
    app = App()
    typed = app.queue("typed", int)
    app.schedule("n", queue=typed, payload=7, every=60)
    for bad in (
        {"name": "n", "queue": typed, "payload": 7, "every": 60},
        {"name": "m", "queue": typed, "payload": 7},
        {"name": "m", "queue": typed, "payload": 7, "cron": "x"},
        {"name": "m", "queue": typed, "payload": 7, "every": 60, "missed": "twice"},
        {"name": "m", "queue": typed, "payload": "text", "every": 60},
    ):
        with pytest.raises((postrow.BadArgumentError, postrow.PayloadError)):
            app.schedule(bad.pop("name"), **bad)
    assert [declared.payload for declared in app.schedules.values()] == ["7"]
