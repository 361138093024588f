"""Who may call what: every function of the schema, for every role of ours, by really calling it."""

from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

ROLES = ("postrow_producer", "postrow_worker", "postrow_admin", "postrow_reader")
PRODUCER, WORKER, ADMIN, READER = ROLES
ID = UUID(int=7)
FENCE = {"tenants": ["default"], "ids": [ID], "tokens": [ID]}

PUBLIC_API = {  # function: (roles, a call of it)
    "enqueue": ({PRODUCER, WORKER, ADMIN}, {"queue": "q", "payload": 1}),
    "enqueue_many": ({PRODUCER, WORKER, ADMIN}, {"queue": "q", "messages": [{"payload": 1, "id": str(ID)}]}),
    "enqueue_lines": ({PRODUCER, WORKER, ADMIN}, {"queue": "q", "payloads": "1"}),
    "publish": ({PRODUCER, WORKER, ADMIN}, {"topic": "t", "payload": 1}),
    "subscribe": ({WORKER, ADMIN}, {"pattern": "t.#", "queue": "q"}),
    "unsubscribe": ({ADMIN}, {"pattern": "t.#", "queue": "q"}),
    "put_schedule": (
        {WORKER, ADMIN},
        {"name": "n", "queue": "q", "payload": 1, "kind": "every", "spec": "60", "next_at": None},
    ),
    "due_schedules": ({WORKER, ADMIN}, {}),
    "fire": ({WORKER, ADMIN}, {"name": "n", "times": [], "next_at": None}),
    "drop_schedule": ({ADMIN}, {"name": "n"}),
    "pause_schedule": ({ADMIN}, {"name": "n", "paused": True}),
    "schedules": ({WORKER, ADMIN, READER}, {}),
    "next_schedule": ({WORKER, ADMIN, READER}, {}),
    "pause": ({ADMIN}, {"queue": "q"}),
    "resume": ({ADMIN}, {"queue": "q"}),
    "purge": ({ADMIN}, {"queue": "q"}),
    "pauses": ({WORKER, ADMIN, READER}, {}),
    "subscriptions": ({WORKER, ADMIN, READER}, {"topic": "t"}),
    "once": ({PRODUCER, WORKER, ADMIN}, {"key": "k"}),
    "free_groups": ({WORKER, ADMIN}, {"queues": ["q"], "tenants": ["default"], "keys": ["g"]}),
    "claim": ({WORKER, ADMIN}, {"queue": "q", "limit": 5, "worker": "w1"}),
    "claim_lanes": (
        {WORKER, ADMIN},
        {"queue": "q", "tenants": ["default"], "priorities": [0], "afters": [None], "per_lane": 5, "limit": 5},
    ),
    "claim_turn": ({WORKER, ADMIN}, {"queue": "q"}),
    "lanes": ({WORKER, ADMIN}, {"queue": "q", "worker": "w1"}),
    "lanes_ahead": (
        {WORKER, ADMIN},
        {"queue": "q", "tenants": ["default"], "priorities": [0], "afters": [None], "worker": "w1"},
    ),
    "taps_kept_back": ({WORKER, ADMIN}, {"queue": "q"}),
    "release_claim": ({WORKER, ADMIN}, {"token": ID}),
    "ack": ({WORKER, ADMIN}, FENCE),
    "ack_at": ({WORKER, ADMIN}, {**FENCE, "places": ["(0,1)"]}),
    "fail": ({WORKER, ADMIN}, {**FENCE, "errors": ["x"]}),
    "release": ({WORKER, ADMIN}, FENCE),
    "bury": ({WORKER, ADMIN}, {**FENCE, "reasons": ["x"]}),
    "extend": ({WORKER, ADMIN}, {**FENCE, "lease": timedelta(seconds=5)}),
    "register_consumer": ({WORKER, ADMIN}, {"queue": "q", "handler": "h"}),
    "beat": (
        {WORKER, ADMIN},
        {"id": ID, "name": "w1", "host": "h", "pid": 1, "queues": ["q"], "version": "1"},
    ),
    "leave": ({WORKER, ADMIN}, {"id": ID}),
    "refuse_copy": ({WORKER, ADMIN}, {}),
    "copied_from": ({WORKER, ADMIN, READER}, {}),
    "adopt": ({ADMIN}, {}),
    "doctor": ({WORKER, ADMIN, READER}, {}),
    "sweep": ({WORKER, ADMIN}, {}),
    "sweep_turn": ({WORKER, ADMIN}, {"worker": ID}),
    "depth": ({WORKER, ADMIN, READER}, {"queue": "q"}),
    "depth_pending": ({WORKER, ADMIN, READER}, {"queue": "q"}),
    "next_due": ({WORKER, ADMIN, READER}, {"queue": "q"}),
    "consumers": ({WORKER, ADMIN, READER}, {"queue": "q"}),
    "status": ({WORKER, ADMIN, READER}, {}),
    "consumer_of": ({ADMIN, READER}, {"queue": "q", "tenant": "default"}),
    "setting": ({ADMIN, READER}, {"name": "history_days"}),
    "show": ({ADMIN, READER}, {"id": ID}),
    "peek": ({ADMIN, READER}, {"queue": "q"}),
    "redrive": ({ADMIN}, {"id": ID, "tenant": "default"}),
    "resolve": ({ADMIN}, {"id": ID, "tenant": "default", "resolution": "ignored", "reason": "x"}),
    "configure": ({ADMIN}, {"name": "history_days", "value": "7"}),
    "unregister_consumer": ({ADMIN}, {"queue": "q"}),
    "clock": (set(ROLES), {}),
    "schema_version": (set(ROLES), {}),
}
TABLES = (
    *("message", "history", "dead_letter", "seen", "subscription", "pause", "schedule", "consumer", "bucket"),
    *("worker", "home", "setting", "migration", "function_file"),
)
CELLS = ("sweeper", *(f"tap_{n}" for n in range(32)))  # sequences that are memory cells, of nobody's concern
DONE = {"00000", "PW009"}  # allowed; and no such dead letter
READS_NO_TABLE = {"clock", "schema_version"}
READS_AS_THE_CALLER = {"consumer_of", "setting"}  # for roles that may read the tables


@pytest.fixture
def stranger(pg):
    """A role that may do no more than see the schema."""
    pg.query("create role stranger")
    pg.query("grant usage on schema postrow to stranger")
    return "stranger"


def as_role(pg, role):
    pg.query(f"set local role {role}")


@pytest.mark.parametrize(
    ("function", "role"), [(function, role) for function, (roles, _) in PUBLIC_API.items() for role in roles]
)
def test_the_role_may_call_it(pg, function, role):
    as_role(pg, role)

    assert pg.sqlstate(function, **PUBLIC_API[function][1]) in DONE


@pytest.mark.parametrize(
    ("function", "role"),
    [(name, role) for name, (roles, _) in PUBLIC_API.items() for role in (*ROLES, "stranger") if role not in roles],
)
def test_another_role_may_not_call_it(pg, stranger, function, role):
    as_role(pg, role)

    assert pg.refused(function, **PUBLIC_API[function][1]).sqlstate == "42501"


def test_every_function_of_the_schema_is_either_listed_here_or_nobodys(pg, stranger):
    granted = {}
    for row in pg.query(
        "select p.proname as name, r.role, pg_catalog.has_function_privilege(r.role, p.oid, 'execute') as may "
        "from pg_catalog.pg_proc p cross join pg_catalog.unnest(%s::text[]) r(role) "
        "where p.pronamespace = 'postrow'::pg_catalog.regnamespace",
        [[*ROLES, stranger]],
    ):
        granted.setdefault(row.name, set()).update({row.role} if row.may else set())

    assert {name: roles for name, roles in granted.items() if roles} == {
        name: roles for name, (roles, _) in PUBLIC_API.items()
    }


def test_no_function_has_two_forms(pg):
    # an overload would make a call with names and defaults ambiguous
    twice = pg.query(
        "select proname from pg_catalog.pg_proc where pronamespace = 'postrow'::pg_catalog.regnamespace "
        "group by proname having count(*) > 1"
    )
    assert twice == []


def test_what_is_granted_runs_as_the_owner_unless_it_reads_nothing_of_ours(pg):
    rows = pg.query(
        "select proname from pg_catalog.pg_proc where pronamespace = 'postrow'::pg_catalog.regnamespace "
        "and proname = any (%s) and not prosecdef",
        [list(PUBLIC_API)],
    )

    assert {row.proname for row in rows} == READS_NO_TABLE | READS_AS_THE_CALLER


def test_a_function_that_runs_as_the_owner_finds_names_in_pg_catalog_first_and_temporary_ones_last(pg):
    # an empty search_path is not enough: temporary types would come before those of pg_catalog
    rows = pg.query(
        "select proname, proconfig from pg_catalog.pg_proc "
        "where pronamespace = 'postrow'::pg_catalog.regnamespace and prosecdef"
    )

    assert len(rows) > 20
    assert [row.proname for row in rows if "search_path=pg_catalog, pg_temp" not in (row.proconfig or [])] == []


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("role", [PRODUCER, WORKER, "stranger"])
def test_producers_and_workers_read_no_table(pg, stranger, role, table):
    as_role(pg, role)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        pg.query(f"select from postrow.{table}")


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("role", [ADMIN, READER])
def test_admins_and_readers_read_every_table_and_write_none(pg, role, table):
    as_role(pg, role)
    pg.query(f"select from postrow.{table} limit 1")
    for statement in (f"delete from postrow.{table}", f"truncate postrow.{table}", f"drop table postrow.{table}"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege), pg.conn.transaction():
            pg.query(statement)


def test_the_list_of_tables_is_whole(pg):
    rows = pg.query(
        "select c.relname from pg_catalog.pg_class c where c.relnamespace = 'postrow'::pg_catalog.regnamespace "
        "and c.relkind in ('r', 'p', 'v', 'm', 'S') and not c.relispartition"
    )

    assert {row.relname for row in rows} == {*TABLES, *CELLS}


@pytest.mark.parametrize("role", ROLES)
def test_no_role_reads_or_sets_a_memory_cell(pg, role):
    pg.query(f"set local role {role}")
    for cell in ("sweeper", "tap_7"):
        for statement in (f"select last_value from postrow.{cell}", f"select setval('postrow.{cell}', 1)"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), pg.conn.transaction():
                pg.query(statement)


def test_a_role_without_a_grant_does_not_even_see_the_schema(pg):
    pg.query("create role outsider")
    as_role(pg, "outsider")
    error = pg.refused("schema_version")

    assert error.sqlstate == "42501"
    assert "schema postrow" in str(error)


def test_no_role_may_create_in_the_schema(pg, stranger):
    rows = pg.query(
        "select r.role from pg_catalog.unnest(%s::text[]) r(role) "
        "where pg_catalog.has_schema_privilege(r.role, 'postrow', 'create')",
        [[*ROLES, stranger]],
    )
    assert rows == []


def test_a_worker_makes_partitions_through_the_sweep(pg, clock):
    clock.advance(86_400)
    pg.query("grant select on postrow.test_clock to public")
    as_role(pg, WORKER)

    assert pg.row("sweep", step="history").done == 1


def test_who_enqueued_is_who_called_not_the_owner(pg):
    # session_user: neither `set role` nor running as the owner hides the one who logged in
    as_role(pg, PRODUCER)
    sent = pg.put()
    pg.query("reset role")

    assert pg.find("message", sent).enqueued_by.split("@")[0] == "postrow"


# A caller who prepares the ground: everything that a name could be taken for has a twin that raises.

HOSTILE = """
create schema hostile;
create function hostile.evil() returns boolean language plpgsql as
    $$ begin raise exception 'hijacked: ran as %', current_user; end $$;
create function hostile.clock_timestamp() returns timestamptz language sql as
    'select hostile.evil()::text::timestamptz';
create function hostile.now() returns timestamptz language sql as 'select hostile.evil()::text::timestamptz';
create function hostile.gen_random_uuid() returns uuid language sql as 'select hostile.evil()::text::uuid';
create function hostile.format(text, variadic text[]) returns text language sql as 'select hostile.evil()::text';
create function hostile.length(text) returns int language sql as 'select hostile.evil()::int';
create function hostile.jsonb_typeof(jsonb) returns text language sql as 'select hostile.evil()::text';
create function hostile.cardinality(anyarray) returns int language sql as 'select hostile.evil()::int';
create function hostile.current_setting(text, boolean) returns text language sql as 'select hostile.evil()::text';
create function hostile.same(text, text) returns boolean language sql as 'select hostile.evil()';
create function hostile.same(uuid, uuid) returns boolean language sql as 'select hostile.evil()';
create function hostile.same(timestamptz, timestamptz) returns boolean language sql as 'select hostile.evil()';
create operator hostile.= (leftarg = text, rightarg = text, function = hostile.same);
create operator hostile.= (leftarg = uuid, rightarg = uuid, function = hostile.same);
create operator hostile.<= (leftarg = timestamptz, rightarg = timestamptz, function = hostile.same);
create domain hostile.int as pg_catalog.int4 check (hostile.evil());
create table hostile.message (like postrow.message);
create table hostile.consumer (like postrow.consumer);
create temporary table message (like postrow.message);
create temporary table consumer (like postrow.consumer);
create temporary table seen (like postrow.seen);
"""
TYPES = ("text", "uuid", "jsonb", "timestamptz", "date", "regclass", "regprocedure", "int4", "int8", "bool")


@pytest.fixture
def hostile(shared_dsn, functions_on):
    """A session of its own, since functions are compiled once a session, whose caller has laid traps."""
    with psycopg.connect(shared_dsn) as conn:
        pg = functions_on(conn)
        pg.query(HOSTILE)
        for name in TYPES:
            pg.query(f"create domain pg_temp.{name} as pg_catalog.{name} check (hostile.evil())")
        pg.query("create role mallory")
        pg.query("grant usage on schema hostile to mallory, " + ", ".join(ROLES))
        pg.query("grant " + ", ".join(ROLES) + " to mallory")
        pg.query("set local search_path = hostile, pg_temp, pg_catalog")
        pg.query("set local role mallory")
        yield pg
        conn.rollback()


def test_the_traps_of_the_hostile_session_are_set(hostile):
    with pytest.raises(psycopg.Error, match="hijacked: ran as mallory"), hostile.conn.transaction():
        hostile.query("select 'x'::text")
    with pytest.raises(psycopg.Error, match="hijacked: ran as mallory"), hostile.conn.transaction():
        hostile.query("select clock_timestamp()")


@pytest.mark.parametrize("function", sorted(set(PUBLIC_API) - READS_AS_THE_CALLER))
def test_no_function_runs_what_a_hostile_caller_has_laid_in_its_way(hostile, function):
    assert hostile.sqlstate(function, **PUBLIC_API[function][1]) in DONE


def test_a_message_lives_its_life_in_a_hostile_session(hostile):
    hostile.rows("register_consumer", queue="q", handler="h", max_attempts=2)
    mine = hostile.put(id=ID, subject="s", headers={"h": 1}, target="w1", target_for=timedelta(seconds=9))
    assert hostile.row("enqueue", queue="q", payload=1, id=ID).deduplicated
    rows = hostile.take(worker="w1")
    assert [row.id for row in rows] == [mine]
    assert hostile.settle("extend", rows, lease=timedelta(seconds=9)) == ["accepted"]
    assert hostile.settle("fail", rows, errors=["x"], retry_at=["2000-01-01"]) == ["accepted"]
    assert hostile.settle("bury", hostile.take(worker="w1"), reasons=["x"]) == ["accepted"]
    again = hostile.value("redrive", id=mine, tenant="default")
    rows = hostile.take()
    assert [row.id for row in rows] == [again]
    assert hostile.settle("ack", rows) == ["accepted"]
    assert hostile.row("show", id=again)[0]["state"] == "done"
    assert len(hostile.rows("sweep")) == 8
