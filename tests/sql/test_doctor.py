"""Each check of postrow.doctor(): what makes it fire, on a real server, and what does not."""

import re
from datetime import timedelta
from functools import partial
from uuid import uuid4

import psycopg
import pytest
from clock import run_ahead

CHECKS = (
    *(
        "copy",
        "consumers",
        "backlog",
        "targets",
        "pauses",
        "groups",
        "schedules",
        "leases",
        "history",
        "snapshot",
        "vacuum",
        "taps",
    ),
    *("freeze", "indexes", "privileges", "clocks"),
)


@pytest.fixture
def check(pg):
    """What one check says."""

    def check(name):
        (row,) = [row for row in pg.rows("doctor") if row.name == name]
        assert (row.advice is None) == (row.level == "ok")
        return row

    return check


def beat(pg, name="w1", queues=("q",), **options):
    pg.rows("beat", id=uuid4(), name=name, host="web-1", pid=1, queues=list(queues), version="0", **options)


def test_a_healthy_database_has_every_check_and_all_are_fine(pg):
    rows = pg.rows("doctor")

    assert [row.name for row in rows] == list(CHECKS)
    assert {row.name: row for row in rows if row.level != "ok" or row.advice is not None} == {}
    assert all(row.detail for row in rows)


def test_it_works_in_a_transaction_that_may_only_read(pg):
    pg.query("set transaction read only")

    assert len(pg.rows("doctor")) == len(CHECKS)


# messages


@pytest.mark.parametrize(("seconds", "level"), [(50, "ok"), (70, "warning"), (500, "warning"), (700, "problem")])
def test_ready_messages_without_a_worker_are_graded_by_their_age(pg, clock, check, seconds, level):
    pg.put("emails")
    clock.advance(seconds)

    assert check("consumers").level == level
    assert check("backlog").level == "ok"


def test_it_says_which_queues_nobody_consumes_and_for_how_long(pg, clock, check):
    pg.put("emails", tenant="acme")
    pg.put("emails", tenant="umbrella")
    clock.advance(3600)
    pg.put("reports")
    clock.advance(120)

    assert check("consumers").detail == "ready messages, and no living worker: emails (2 tenants, 1 h), reports (2 min)"
    assert "postrow worker MODULE:APP" in check("consumers").advice


def test_a_worker_that_lives_is_a_consumer_and_one_that_is_silent_is_none(pg, clock, check):
    pg.put("q")
    clock.advance(300)
    beat(pg)
    assert check("consumers").level == "ok"

    clock.advance(61)
    assert check("consumers").level == "warning"


def test_a_worker_that_has_the_queue_for_another_tenant_is_no_consumer(pg, clock, check):
    pg.rows("register_consumer", queue="q", handler="h", tenant="acme")
    pg.put("q", tenant="acme")
    clock.advance(300)
    beat(pg)
    assert check("consumers").level == "ok"

    pg.put("q", tenant="umbrella")
    clock.advance(300)
    beat(pg)
    assert check("consumers").detail == "ready messages, and no living worker: q (5 min)"


def test_a_tenants_own_consumer_is_served_by_workers_of_its_own(pg, clock, check):
    pg.rows("register_consumer", queue="q", handler="h")
    pg.rows("register_consumer", queue="q", handler="theirs", tenant="acme")
    pg.put("q", tenant="acme")
    clock.advance(300)
    beat(pg, "fleet", tenants=["*"])
    assert check("consumers").detail == "ready messages, and no living worker: q (5 min)"
    assert [(row.tenant, row.workers) for row in pg.rows("status")] == [("acme", 0)]

    beat(pg, "theirs", queues=["q", "q", "r"], tenants=["beta", "acme", "*"])
    assert check("consumers").level == "ok"
    assert [(row.tenant, row.workers) for row in pg.rows("status")] == [("acme", 1)]

    pg.put("q", tenant="umbrella")
    clock.advance(61)
    beat(pg, "theirs", queues=["q", "r"], tenants=["acme", "*"])
    assert check("consumers").detail == "ready messages, and no living worker: q (1 min)"


def test_a_worker_that_does_not_say_whose_its_queues_are_serves_all(pg, clock, check):
    pg.rows("register_consumer", queue="q", handler="h", tenant="acme")
    pg.put("q", tenant="acme")
    clock.advance(300)
    beat(pg)
    assert check("consumers").level == "ok"


def test_what_is_scheduled_or_claimed_needs_no_consumer(pg, clock, check):
    pg.put("later", delay=timedelta(hours=1))
    pg.put("taken")
    pg.take(queue="taken", lease=timedelta(hours=1))
    clock.advance(700)

    assert check("consumers").level == "ok"


def test_lists_of_names_are_cut_after_the_first_ten(pg, clock, check):
    for n in range(12):
        pg.put(f"queue-{n:02}")
    clock.advance(90)
    found = check("consumers").detail

    assert found.endswith("queue-09 (1 min) and 2 more")
    assert "queue-10" not in found


def test_the_longest_names_make_no_endless_sentence(pg, clock, check):
    for n in range(30):
        pg.put(f"{n:02}" + "x" * 198)
    clock.advance(90)

    assert len(check("consumers").detail) < 2_500


def test_workers_that_do_not_keep_up_are_a_warning(pg, clock, check):
    pg.put("q")
    clock.advance(590)
    beat(pg)
    assert check("backlog").level == "ok"

    clock.advance(20)
    assert check("backlog").level == "warning"
    assert check("backlog").detail == "workers are behind, the oldest ready message of q (10 min)"


def test_a_message_for_a_worker_that_was_never_seen_is_found(pg, clock, check):
    pg.put("q", target="w7")
    clock.advance(50)
    assert check("targets").level == "ok"

    clock.advance(20)
    assert check("targets").level == "warning"
    assert check("targets").detail == "messages for a worker that is gone: q for w7 (1 min, never seen)"

    clock.advance(600)
    assert check("targets").level == "problem"
    assert "target_for" in check("targets").advice
    assert check("consumers").level == "ok"


def test_a_message_for_a_worker_that_lives_waits_for_it_and_one_that_will_be_freed_is_no_problem(pg, clock, check):
    pg.put("q", target="w1")
    pg.put("q", target="w2", target_for=timedelta(hours=1))
    clock.advance(700)
    beat(pg, "w1")

    assert check("targets").level == "warning"
    assert check("targets").detail == "messages for a worker that is gone: q for w2 (11 min, never seen)"


def test_a_message_for_a_worker_that_lives_and_does_not_handle_its_queue_is_found(pg, clock, check):
    pg.put("reports", target="w1")
    pg.put("q", target="w1")
    clock.advance(700)
    beat(pg, "w1", queues=["q"])

    assert check("targets").level == "problem"
    assert check("targets").detail == (
        "messages for a worker that is gone: reports for w1 (11 min, does not handle that queue)"
    )


def test_a_message_that_will_be_freed_does_not_hide_one_behind_it_that_will_not(pg, clock, check):
    pg.put("q", target="w1", target_for=timedelta(hours=1))
    clock.advance(1)
    pg.put("q", target="w1", priority=1)
    clock.advance(700)

    assert check("targets").level == "problem"
    assert check("targets").detail == "messages for a worker that is gone: q for w1 (11 min, never seen)"


def test_it_says_when_a_target_was_last_seen(pg, clock, check):
    beat(pg, "w1")
    pg.put("q", target="w1")
    clock.advance(7300)

    assert check("targets").detail == "messages for a worker that is gone: q for w1 (2 h, last seen 2 h ago)"


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ({"queue": "q"}, "q, paused 11 min ago by postrow: their mail server is down (11 min)"),
        ({"tenant": "default"}, "tenant default, paused 11 min ago by postrow: their mail server is down (11 min)"),
        (
            {"queue": "q", "tenant": "default"},
            "q of tenant default, paused 11 min ago by postrow: their mail server is down (11 min)",
        ),
    ],
)
def test_messages_behind_a_pause_are_a_warning_after_ten_minutes_and_need_no_consumer(pg, clock, check, what, named):
    pg.query("set application_name = ''")
    pg.put("q")
    pg.rows("pause", **what, reason="their mail server is down")
    clock.advance(590)
    assert check("pauses").level == "ok"

    clock.advance(80)
    assert check("pauses").level == "warning"
    assert check("pauses").detail == f"ready messages wait for a pause to end: {named}"
    assert check("consumers").level == "ok"


def test_a_pause_that_nothing_waits_behind_is_fine(pg, clock, check):
    pg.rows("pause", queue="q")
    pg.put("other")
    clock.advance(3600)

    assert check("pauses").level == "ok"


@pytest.mark.parametrize(("seconds", "level"), [(590, "ok"), (610, "warning"), (86_410, "problem")])
def test_groups_behind_a_dead_letter_are_graded_by_its_age(pg, clock, check, seconds, level):
    pg.rows("register_consumer", queue="q", handler="h", on_dead="block")
    for tenant, key in [("acme", "a"), ("acme", "b"), ("acme", "alone"), ("default", "c")]:
        pg.put(tenant=tenant, group_key=key)
    pg.settle("bury", pg.take(10), reasons=["no"] * 4)
    for tenant, key in [("acme", "a"), ("acme", "b"), ("default", "c")]:
        pg.put(tenant=tenant, group_key=key)
    clock.advance(seconds)

    found = check("groups")
    assert found.level == level
    if level != "ok":
        assert re.fullmatch(
            r"groups wait behind a dead letter: q of tenant acme \(2 groups, (10 min|1 d)\), q \(1 group, \1\)",
            found.detail,
        )
        assert "postrow dead list" in found.advice
    for row in pg.query("select id, tenant from postrow.dead_letter"):
        pg.rows("resolve", id=row.id, tenant=row.tenant, resolution="handled", reason="by hand")
    assert check("groups").level == "ok"


def test_a_dead_letter_that_its_group_goes_on_past_is_fine(pg, clock, check):
    pg.rows("register_consumer", queue="q", handler="h")
    pg.rows("register_consumer", queue="other", handler="h", on_dead="block")
    pg.put(group_key="a")
    pg.settle("bury", pg.take(), reasons=["no"])
    pg.put(group_key="a")
    pg.put("other")
    pg.settle("bury", pg.take(queue="other"), reasons=["no"])
    pg.put("other")
    clock.advance(7200)

    assert check("groups").level == "ok"


@pytest.mark.parametrize(("seconds", "level"), [(50, "ok"), (70, "warning"), (700, "problem")])
def test_leases_that_nobody_took_back_are_graded_by_their_age(pg, clock, check, seconds, level):
    pg.put("q")
    pg.put("q")
    pg.take(2, lease=timedelta(seconds=30))
    clock.advance(30 + seconds)

    assert check("leases").level == level
    assert ("taken back: 2, the first " in check("leases").detail) == (level != "ok")


@pytest.mark.parametrize(("seconds", "level"), [(50, "ok"), (70, "warning"), (700, "problem")])
def test_schedules_that_nobody_fires_are_graded_by_their_age(pg, clock, check, seconds, level):
    due = {"queue": "q", "payload": "1", "kind": "every", "spec": "60", "next_at": clock.now}
    pg.row("put_schedule", name="nightly", **due)
    pg.row("put_schedule", name="hourly", tenant="acme", **due)
    pg.row("put_schedule", name="paused", **due)
    pg.row("pause_schedule", name="paused", paused=True)
    clock.advance(seconds)

    assert check("schedules").level == level
    if level != "ok":
        assert re.match(
            r"schedules that are late: hourly of tenant acme \(1+ min\), nightly \(1+ min\)$", check("schedules").detail
        )


def test_a_lease_that_holds_is_fine(pg, clock, check):
    pg.put("q")
    pg.take(lease=timedelta(hours=1))
    clock.advance(700)

    assert check("leases").level == "ok"


def test_a_missing_day_of_the_history_is_found(pg, clock, check):
    for _ in range(7):
        clock.advance(86_400)
        if check("history").level != "ok":
            break
    day = clock.now.date()
    assert check("history").level == "warning"
    assert check("history").detail == f"there is no partition for {day + timedelta(days=1)}"

    clock.advance(86_400)
    assert check("history").level == "problem"
    assert "postrow sweep" in check("history").advice

    while pg.row("sweep", step="history").done:
        pass
    assert check("history").level == "ok"


def test_rows_in_the_default_partition_are_found(pg, clock, check):
    clock.advance(20 * 86_400)
    pg.put("q")
    assert pg.settle("ack", pg.take()) == ["accepted"]

    assert check("history").level == "problem"
    assert check("history").detail.endswith("; rows in the default partition: 1")


def test_rows_of_a_day_that_has_to_end_first_are_a_warning_where_somebody_sweeps(pg, clock, check):
    clock.advance(20 * 86_400)
    pg.put("q")
    assert pg.settle("ack", pg.take()) == ["accepted"]
    for _ in range(7):
        assert pg.row("sweep", step="history").done == 1

    assert check("history").level == "warning"
    assert check("history").detail == (
        f"there is no partition for {clock.now.date()}; rows in the default partition: 1"
    )
    assert "when the day is over" in check("history").advice


def test_a_worker_whose_clock_is_off_is_found(pg, clock, check):
    beat(pg, "right", clock=clock.now + timedelta(seconds=4))
    beat(pg, "silent")
    assert check("clocks").level == "ok"

    beat(pg, "w1", clock=clock.now - timedelta(minutes=3))
    beat(pg, "w2", clock=clock.now + timedelta(seconds=8))
    assert check("clocks").level == "warning"
    assert check("clocks").detail == (
        "clocks of workers that differ from the database's: w1 on web-1 (3 min behind), w2 on web-1 (8 s ahead)"
    )

    clock.advance(61)
    assert check("clocks").level == "ok"


# the schema


def test_autovacuum_that_is_off_for_a_table_is_found(pg, check):
    pg.query("alter table postrow.message set (autovacuum_enabled = off)")

    assert check("vacuum").level == "problem"
    assert check("vacuum").detail == "autovacuum is switched off for message"
    pg.query(check("vacuum").advice.partition(": ")[2])
    assert check("vacuum").level == "ok"


def test_a_missing_index_is_found(pg, check):
    pg.query("drop index postrow.message_leased")
    pg.query("update pg_catalog.pg_index set indisvalid = false where indexrelid = 'postrow.seen_until'::regclass")

    assert check("indexes").level == "problem"
    assert check("indexes").detail == "missing: message_leased; invalid: seen_until"

    pg.query("update pg_catalog.pg_index set indisvalid = true where indexrelid = 'postrow.seen_until'::regclass")
    assert check("indexes").detail == "missing: message_leased"


def test_what_is_advised_for_a_missing_index_is_possible_for_it(pg, check):
    pg.query("alter table postrow.seen drop constraint seen_pkey")
    assert "alter table postrow.seen add primary key" in check("indexes").advice
    pg.query("alter table postrow.seen add constraint seen_pkey primary key (tenant, scope, key)")
    pg.query("drop index postrow.history_subject")
    assert "concurrently" not in check("indexes").advice  # of a partitioned table


def test_the_rest_of_a_reindex_that_was_interrupted_is_to_be_dropped(database, functions_on):
    with psycopg.connect(database, autocommit=True) as conn:
        pg = functions_on(conn)
        pg.query("create index message_ready_ccnew1 on postrow.message (queue)")
        pg.query(
            "update pg_catalog.pg_index set indisvalid = false "
            "where indexrelid = 'postrow.message_ready_ccnew1'::regclass"
        )
        (found,) = [row for row in pg.rows("doctor") if row.name == "indexes"]
        assert found.detail == "invalid: message_ready_ccnew1"
        pg.query(found.advice.partition(": ")[2])
        assert {row.level for row in pg.rows("doctor") if row.name == "indexes"} == {"ok"}


def test_the_indexes_that_it_looks_for_are_those_of_the_schema(pg, check):
    there = pg.query(
        "select count(*) from pg_catalog.pg_class c where c.relnamespace = 'postrow'::regnamespace "
        "and c.relkind in ('i', 'I') and not c.relispartition"
    )

    assert check("indexes").detail == f"all {there[0].count} are there"


def test_an_invalid_index_is_found_and_made_again_as_advised(database, functions_on):
    with psycopg.connect(database, autocommit=True) as conn:
        pg = functions_on(conn)
        pg.put("twice", subject="s")
        pg.put("twice", subject="s")
        with pytest.raises(psycopg.errors.UniqueViolation):
            pg.query("create unique index concurrently message_broken on postrow.message (subject)")
        (found,) = [row for row in pg.rows("doctor") if row.name == "indexes"]
        assert (found.level, found.detail) == ("problem", "invalid: message_broken")
        pg.query("update postrow.message set subject = id::text")
        pg.query(found.advice.partition(": ")[2])
        assert {row.level for row in pg.rows("doctor") if row.name == "indexes"} == {"ok"}


@pytest.mark.parametrize(
    ("statement", "lost"),
    [
        ("revoke usage on schema postrow from postrow_producer", "postrow_producer may not use the schema"),
        ("revoke all on all functions in schema postrow from postrow_worker",
         "postrow_worker may not call ack, postrow_worker may not call claim"),
        ("revoke select on postrow.message from postrow_reader", "postrow_reader may not read postrow.message"),
    ],
)  # fmt: skip
def test_privileges_that_were_lost_are_found(pg, check, statement, lost):
    pg.query(statement)

    assert check("privileges").level == "problem"
    assert check("privileges").detail == lost


def test_a_table_that_another_role_owns_is_found(pg, check):
    pg.query("create role bob")
    pg.query("alter table postrow.message owner to bob")

    assert check("privileges").level == "problem"
    assert "bob, postrow" in check("privileges").detail
    pg.query(
        check("privileges")
        .advice.partition(": ")[2]
        .partition(";")[0]
        .replace("by postrow to bob", "by bob to postrow")
    )
    assert check("privileges").level == "ok"


# the server


@pytest.fixture
def own(database, functions_on):
    """The SQL functions on a database of this test's own, and its check()."""
    with psycopg.connect(database, autocommit=True) as conn:
        pg = functions_on(conn)

        def check(name):
            (row,) = [row for row in pg.rows("doctor") if row.name == name]
            return row

        pg.dsn, pg.check, pg.forward = database, check, partial(run_ahead, conn)
        yield pg


def test_the_session_that_holds_back_vacuum_is_named(own):
    with psycopg.connect(own.dsn, application_name="nightly report") as holder:
        holder.execute("set transaction isolation level repeatable read")
        (pid,) = holder.execute("select pg_backend_pid()").fetchone()
        holder.execute("select 1  as\n  secret")
        assert own.check("snapshot").level == "ok"

        own.forward("61 s")
        found = own.check("snapshot")
        assert found.level == "warning"
        assert found.detail == (
            f"the session with pid {pid} (nightly report, role postrow) has had a transaction open for 1 min, "
            "and is idle in it: select 1 as secret"
        )

        own.forward("11 min")
        found = own.check("snapshot")
        assert found.level == "problem"
        own.query(found.advice.rpartition(": ")[2])
        with pytest.raises(psycopg.OperationalError):
            holder.execute("select 1")
    assert own.check("snapshot").level == "ok"


def test_an_open_transaction_that_has_written_holds_back_vacuum_too(own):
    with psycopg.connect(own.dsn) as holder:
        holder.execute(
            "select postrow.enqueue('q', '1')"
        )  # read committed: it has an id, and between statements no snapshot
        (pid,) = holder.execute("select pg_backend_pid()").fetchone()
        own.forward("61 s")

        assert f"pid {pid} " in own.check("snapshot").detail


def test_an_idle_transaction_without_snapshot_or_id_holds_back_nothing(own):
    with psycopg.connect(own.dsn) as idle:
        idle.execute("select 1")
        own.forward("11 min")

        assert own.check("snapshot").level == "ok"


def test_a_transaction_of_another_database_holds_back_nothing_here(own, server):
    with psycopg.connect(server.dsn()) as other:
        other.execute("select pg_current_xact_id()")
        own.forward("11 min")

        assert own.check("snapshot").level == "ok"


def test_a_prepared_transaction_that_was_forgotten_is_found(own):
    own.query("begin")
    own.query("select pg_current_xact_id()")
    own.query("prepare transaction 'order''s 17'")
    own.forward("11 min")
    try:
        found = own.check("snapshot")
        assert found.level == "problem"
        assert found.detail == "the prepared transaction 'order''s 17' of role postrow has been open for 11 min"
        assert "rollback prepared 'order''s 17';" in found.advice
    finally:
        own.query("rollback prepared 'order''s 17'")
    assert own.check("snapshot").level == "ok"


def test_queries_are_shown_only_to_those_who_may_see_them_anyway(own):
    name = f"grafana_{uuid4().hex[:8]}"  # a role that logs in is committed, and of the whole cluster
    own.query(f"create role {name} login password 'x' in role postrow_reader")
    own.forward("61 s")
    try:
        dsn = own.dsn.replace(psycopg.conninfo.conninfo_to_dict(own.dsn)["password"], "x").replace(
            "postrow:", f"{name}:"
        )
        with psycopg.connect(own.dsn) as holder, psycopg.connect(dsn, autocommit=True) as reader:
            (pid,) = holder.execute("select pg_backend_pid(), pg_current_xact_id(), 'secret'").fetchone()[:1]
            look = "select detail from postrow.doctor() where name = 'snapshot'"
            (seen,) = reader.execute(look).fetchone()
            assert f"pid {pid} " in seen
            assert "secret" not in seen
            own.query(f"grant pg_read_all_stats to {name}")
            assert "secret" in reader.execute(look).fetchone()[0]
    finally:
        own.query(f"drop role {name}")


def leave_dead_rows(own, wait_for):
    """28,000 beside 4,000 that live."""
    own.query(
        "select count(*) from postrow.enqueue_lines('q', "
        "(select string_agg('1', E'\\n') from generate_series(1, 4000)))"
    )
    for _ in range(7):
        own.query("update postrow.message set attempt = 0")
    stats = "select n_dead_tup from pg_stat_user_tables where relid = 'postrow.message'::regclass"
    wait_for(lambda: own.query(stats)[0].n_dead_tup > 25_000, what="the statistics")


def test_dead_rows_that_no_vacuum_comes_for_are_found(own, wait_for):
    with psycopg.connect(own.dsn) as rival:
        rival.execute("lock table postrow.message in share update exclusive mode")  # autovacuum lets it be then
        leave_dead_rows(own, wait_for)
        assert own.check("vacuum").level == "ok"

        own.forward("11 min")
        found = own.check("vacuum")
        assert found.level == "warning"
        assert re.match(
            r"message has 2\d{4} dead rows beside 4000, and takes .*; no vacuum has ended in 1", found.detail
        )

        own.forward("61 min")
        found = own.check("vacuum")
        assert found.level == "problem"
    own.query(found.advice.rpartition(": ")[2])
    wait_for(lambda: own.check("vacuum").level == "ok", what="the vacuum")


def test_dead_rows_are_no_problem_where_the_statistics_have_just_begun_anew(own, wait_for):
    """After a crash no vacuum is on record, however long ago the schema was made."""
    own.query("update postrow.migration set applied_at = applied_at - interval '1 year'")
    with psycopg.connect(own.dsn) as rival:
        rival.execute("lock table postrow.message in share update exclusive mode")
        leave_dead_rows(own, wait_for)
        own.query("select pg_stat_reset_shared('bgwriter')")
        assert own.check("vacuum").level == "ok"


@pytest.mark.slow
def test_space_that_a_spike_left_is_found(own, wait_for):
    own.query("alter table postrow.message alter payload set storage plain")  # a row fills a page of the heap
    own.query(
        "select count(*) from postrow.enqueue_lines('q', "
        "(select string_agg(format('\"%s\"', repeat('x', 5000)), E'\\n') from generate_series(1, 34000)))"
    )
    stats = "select n_live_tup, n_dead_tup from pg_stat_user_tables where relid = 'postrow.message'::regclass"
    wait_for(lambda: own.query(stats)[0].n_live_tup == 34_000, what="the statistics")
    own.query("analyze postrow.message")
    own.query("select pg_stat_reset_single_table_counters('postrow.message'::regclass)")  # as a crash does
    assert own.check("vacuum").level == "ok"

    own.query("delete from postrow.message where ctid < '(33000,0)'")  # what is left stands at the end
    own.query("vacuum postrow.message")
    wait_for(lambda: own.query(stats)[0].n_live_tup < 2_000, what="the statistics")
    found = own.check("vacuum")
    assert found.level == "warning"
    assert found.detail.endswith("space that a spike has left")
    own.query(found.advice.rpartition(": ")[2].partition(";")[0])
    assert own.check("vacuum").level == "ok"
