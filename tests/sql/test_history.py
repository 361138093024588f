"""The history's partitions, and above all: whoever reads history, the sweep goes on and acks go on."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from clock import run_ahead

DAY = timedelta(days=1)


def day_of(moment):
    return moment.astimezone(UTC).date()


def named(day):
    return f"history_{day:%Y%m%d}"


def partitions(pg):
    """The days that have a partition, in order."""
    rows = pg.query(
        "select c.relname from pg_catalog.pg_inherits i join pg_catalog.pg_class c on c.oid = i.inhrelid "
        "where i.inhparent = 'postrow.history'::pg_catalog.regclass and c.relname <> 'history_default' order by 1"
    )
    assert all(re.fullmatch("history_[0-9]{8}", row.relname) for row in rows)
    return [datetime.strptime(row.relname[8:], "%Y%m%d").replace(tzinfo=UTC).date() for row in rows]


def sweep(pg):
    found = pg.row("sweep", step="history")
    assert found.more == (found.done > 0)
    return found.done


def sweep_all(pg):
    """Sweep until nothing is left; how many calls did something."""
    calls = 0
    while sweep(pg):
        calls += 1
        assert calls < 100
    return calls


def ack_one(pg):
    sent = pg.put()
    assert pg.settle("ack", pg.take()) == ["accepted"]
    return sent


def where_is(pg, message_id):
    rows = pg.query(
        "select tableoid::pg_catalog.regclass::text as name from postrow.history where id = %s", [message_id]
    )
    return [row.name.removeprefix("postrow.") for row in rows]


def test_there_is_a_partition_for_each_day_of_a_week_ahead(pg, clock):
    sweep_all(pg)
    today = day_of(clock.now)

    assert set(partitions(pg)) >= {today + n * DAY for n in range(8)}
    assert sweep(pg) == 0


def test_an_ack_stands_in_the_partition_of_its_day(pg, clock):
    sent = ack_one(pg)

    assert where_is(pg, sent) == [named(day_of(clock.now))]


def test_one_call_makes_one_day(pg, clock):
    sweep_all(pg)
    before = partitions(pg)
    clock.advance(3 * 86_400)

    for number in (1, 2, 3):
        assert sweep(pg) == 1
        assert partitions(pg) == [*before, *(before[-1] + n * DAY for n in range(1, number + 1))]
    assert sweep(pg) == 0


def test_a_day_is_a_day_of_utc_whatever_the_session_believes(pg, clock):
    sweep_all(pg)
    last = partitions(pg)[-1]
    pg.query("set local timezone = 'Pacific/Kiritimati'")  # 14 hours ahead: another date for most of the day
    pg.query("set local datestyle = 'SQL, DMY'")
    clock.advance(86_400)
    assert sweep(pg) == 1
    pg.query("set local timezone = 'UTC'")
    pg.query("set local datestyle = 'ISO'")

    new = last + DAY
    (row,) = pg.query(
        "select pg_catalog.pg_get_expr(relpartbound, oid) as bounds from pg_catalog.pg_class "
        "where oid = %s::pg_catalog.regclass",
        [f"postrow.{named(new)}"],
    )
    assert row.bounds == f"FOR VALUES FROM ('{new} 00:00:00+00') TO ('{new + DAY} 00:00:00+00')"


def test_rows_that_no_day_took_are_moved_to_days_of_their_own(pg, clock):
    sent = []
    clock.set(datetime(2040, 1, 1, 23, 59, 59, tzinfo=UTC))
    for _ in range(2):
        sent.append(ack_one(pg))
        clock.advance(2)
    assert [where_is(pg, id_) for id_ in sent] == [["history_default"]] * 2

    sweep_all(pg)
    assert [where_is(pg, id_) for id_ in sent] == [["history_20400101"], ["history_20400102"]]


def finish(pg, moment, count, step="1 s"):
    """Rows as acks leave them, from a moment on."""
    pg.query(
        "insert into postrow.history (tenant, id, queue, priority, payload, enqueued_at, finished_at, attempt, hops, "
        "outcome) select 't', pg_catalog.gen_random_uuid(), 'q', 0, '1', pg_catalog.now(), "
        "%s::timestamptz + (g - 1) * %s::interval, 1, 0, 'done' from pg_catalog.generate_series(1, %s) g",
        [moment, step, count],
    )


def spread(pg):
    """How many rows stand in each partition."""
    counted = (
        "select tableoid::pg_catalog.regclass::text as name, count(*) as n from postrow.history group by 1 order by 1"
    )
    return [(row.name.removeprefix("postrow.history_"), row.n) for row in pg.query(counted)]


def moves(pg):
    """What each call of a sweep that moves 100 rows at most leaves in the default partition."""
    left = []
    while pg.row("sweep", step="history", limit=1).done:
        left.append(dict(spread(pg)).get("default", 0))
        assert len(left) < 100
    return left


def test_a_day_with_many_rows_in_the_default_partition_is_moved_in_parts(pg, clock):
    pg.rows("configure", name="history_days", value="36500")
    sweep_all(pg)
    finish(pg, datetime(2010, 1, 1, 5, tzinfo=UTC), 250)
    finish(pg, datetime(2010, 1, 2, tzinfo=UTC), 100)
    assert moves(pg) == [250, 150, 100, 0]
    assert spread(pg) == [
        ("20100101_050000000000", 100),
        ("20100101_050140000000", 100),
        ("20100101_050320000000", 50),
        ("20100102", 100),
    ]
    pg.rows("configure", name="history_days", value="1")
    assert sweep_all(pg) == 4
    assert spread(pg) == []


def test_rows_of_one_moment_are_moved_together_and_come_between_parts_that_are_there(pg, clock):
    pg.rows("configure", name="history_days", value="36500")
    sweep_all(pg)
    noon = datetime(2010, 1, 1, 12, tzinfo=UTC)
    finish(pg, noon, 150, step="0 s")
    assert moves(pg) == [0]
    assert spread(pg) == [("20100101_120000000000", 150)]
    for moment in (noon - timedelta(hours=1), noon + timedelta(microseconds=1), noon + timedelta(hours=1)):
        finish(pg, moment, 1)
    assert moves(pg) == [2, 0]
    assert spread(pg) == [
        ("20100101_110000000000", 1),
        ("20100101_120000000000", 150),
        ("20100101_120000000001", 2),
    ]


def test_a_day_that_is_not_over_waits_with_many_rows_and_the_others_go_on(pg, clock):
    clock.set(datetime(2040, 1, 1, 12, tzinfo=UTC))
    finish(pg, clock.now, 101)
    assert moves(pg) == [101] * 7 + [101] * 8, "days ahead, and old ones"
    clock.advance(86_400)
    assert moves(pg)[-2:] == [1, 0]
    assert [n for _, n in spread(pg)] == [100, 1]


def test_a_partition_is_dropped_when_all_of_its_days_are_over(pg, clock):
    sweep_all(pg)
    first = partitions(pg)[0]
    midnight = datetime(first.year, first.month, first.day, tzinfo=UTC)
    clock.set(midnight + timedelta(hours=12))
    sent = ack_one(pg)
    pg.rows("configure", name="history_days", value="2")

    clock.set(midnight + 3 * DAY - timedelta(seconds=1))
    sweep_all(pg)
    assert where_is(pg, sent) == [named(first)]  # two whole days after the end of it
    clock.advance(1)
    assert sweep_all(pg) > 0
    assert first not in partitions(pg)
    assert where_is(pg, sent) == []


def test_one_call_drops_one_partition_the_oldest(pg, clock):
    sweep_all(pg)
    clock.advance(20 * 86_400)
    while partitions(pg)[-1] < day_of(clock.now) + 7 * DAY:
        assert sweep(pg) == 1
    days = partitions(pg)
    old = [day for day in days if day + 8 * DAY <= day_of(clock.now)]
    assert len(old) > 1

    for number, _ in enumerate(old, start=1):
        assert sweep(pg) == 1
        assert partitions(pg) == days[number:]
    assert sweep(pg) == 0


def test_after_a_long_sleep_the_history_is_as_after_a_short_one(pg, clock):
    sent = ack_one(pg)
    clock.advance(400 * 86_400)
    late = ack_one(pg)
    sweep_all(pg)
    today = day_of(clock.now)

    assert partitions(pg) == [today + n * DAY for n in range(8)]
    assert (where_is(pg, sent), where_is(pg, late)) == ([], [named(today)])


@pytest.mark.parametrize("value", ["1", "7", "36500"])
def test_history_days_is_a_setting(pg, value):
    pg.rows("configure", name="history_days", value=value)

    assert pg.value("setting", name="history_days") == value


@pytest.mark.parametrize("value", ["0", "-1", "36501", "100000", "7.5", "", " 7", "7 days", "x", None])
def test_history_days_outside_its_range_is_refused(pg, value):
    assert pg.refused("configure", name="history_days", value=value).sqlstate == "PW003"
    assert pg.value("setting", name="history_days") == "7"


@pytest.mark.parametrize("name", ["", "history_day", None])
def test_an_unknown_setting_is_refused_with_the_known_ones(pg, name):
    error = pg.refused("configure", name=name, value="7")

    assert error.sqlstate == "PW003"
    assert "history_days" in error.diag.message_hint


# With a reader open. Limits on each statement, not a stopwatch, say that nothing waited: the sweep gives up after
# 50 ms, and an ack does not wait at all.


@pytest.mark.parametrize("mode", ["", "isolation level repeatable read read only"], ids=["rc", "dump"])
def test_while_a_reader_is_open_no_partition_is_made_and_sweep_and_acks_go_on(own_actors, mode):
    worker, reader = own_actors("worker"), own_actors("reader")
    sweep_all(worker)
    ack_one(worker)
    before = partitions(worker)
    run_ahead(worker.conn, "1 day")
    reader.begin(mode)
    assert reader.query("select count(*) as n from postrow.history")[0].n == 1
    worker.query("set statement_timeout = '2s'")

    for _ in range(3):
        assert sweep(worker) == 0
        worker.impatient()
        ack_one(worker)
        worker.query("reset lock_timeout")
    assert [row.step for row in worker.rows("sweep")] == [
        "leases",
        "expired",
        "targets",
        "groups",
        "seen",
        "history",
        "dead",
        "workers",
    ]
    assert partitions(worker) == before

    reader.commit()
    assert sweep(worker) == 1
    assert partitions(worker) == [*before, before[-1] + DAY]


def test_while_a_reader_is_open_no_partition_is_dropped_and_sweep_and_acks_go_on(own_actors):
    worker, reader = own_actors("worker"), own_actors("reader")
    run_ahead(worker.conn, "10 days")
    while partitions(worker)[-1] < day_of(datetime.now(UTC) + 17 * DAY):
        assert sweep(worker) == 1
    days = partitions(worker)
    reader.begin()
    reader.query("select count(*) from postrow.history")
    worker.query("set statement_timeout = '2s'")

    for _ in range(3):
        assert sweep(worker) == 0
        worker.impatient()
        ack_one(worker)
        worker.query("reset lock_timeout")
    assert partitions(worker) == days

    reader.commit()
    assert sweep(worker) == 1
    assert partitions(worker) == days[1:]


def test_an_ack_that_comes_between_look_and_lock_is_no_error_and_the_days_ahead_are_there(own_actors):
    worker, handler = own_actors("worker"), own_actors("handler")
    run_ahead(worker.conn, "30 days")
    ack_one(worker)  # today's rows stand in the default partition
    for _ in range(7):
        assert sweep(worker) == 1
    today = day_of(datetime.now(UTC) + 30 * DAY)
    assert partitions(worker)[-7:] == [today + n * DAY for n in range(1, 8)]
    worker.query("alter function postrow.sweep_history set lock_timeout = '5s'")  # a test may take its time
    handler.query(
        "create function postrow.wait_here() returns trigger language plpgsql as "
        "'begin perform pg_advisory_xact_lock(77); return null; end'"
    )
    handler.query(
        "create trigger waits before delete on postrow.history_default "
        "for each statement execute function postrow.wait_here()"
    )
    handler.query("select pg_advisory_lock(77)")
    moving = worker.start("sweep", step="history").wait_until_blocked()
    ack_one(handler)
    handler.query("select pg_advisory_unlock(77)")
    assert [row.done for row in moving.result()] == [0]
    assert sweep(worker) == 1
    assert today in partitions(worker)
    assert worker.query("select count(*) as n from postrow.history")[0].n == 2


def test_while_a_reader_is_open_the_default_keeps_its_rows_and_loses_none(own_actors):
    worker, reader = own_actors("worker"), own_actors("reader")
    run_ahead(worker.conn, "30 days")
    sent = [ack_one(worker) for _ in range(3)]
    for _ in range(7):
        assert sweep(worker) == 1  # the days ahead
    reader.begin()
    assert reader.query("select count(*) as n from postrow.history")[0].n == 3
    worker.query("set statement_timeout = '2s'")

    worker.begin()
    assert sweep(worker) == 0
    counted = "select n_tup_del as n from pg_stat_xact_user_tables where relname = 'history_default'"
    assert worker.query(counted)[0].n == 0, "no row was moved in vain"
    worker.commit()
    assert [where_is(worker, id_) for id_ in sent] == [["history_default"]] * 3
    sent.append(ack_one(worker))
    reader.commit()
    sweep_all(worker)
    assert "history_default" not in {where_is(worker, id_)[0] for id_ in sent}
