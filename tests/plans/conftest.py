"""Large tables, loaded once, and what a call reads in them. Counted, never timed.

Four databases, with autovacuum off, so that no statistics come by themselves:

- `full`: 300,000 ready messages in one lane, 300,000 scheduled ones before 5,000 ready ones of the next priority,
  1,000 lanes, 30,000 claimed messages. Its statistics are those of the empty tables that it had before, and so are
  the plans of one of its sessions.
- `refilled`: the same messages, after a vacuum that found the table empty and left its pages: the planner believes in
  one row, however many pages there are, and however new its plan is.
- `emptied`: 2,000 messages, with the statistics and the pages of the 300,000 that were there.
- `sparse`: statistics that are true, 300,000 scheduled messages over 1,000 lanes, and ten ready ones.
"""

import os
import uuid
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pytest

from postrow.ops import fleet

MANY = int(os.environ.get("POSTROW_TEST_MANY", "300_000"))  # tests of mutations do with fewer
PATIENCE = MANY // 30_000  # seconds
LANES = 1_000
OURS = "select oid::regclass::text from pg_class where relnamespace = 'postrow'::regnamespace and relkind = 'r'"
# Rows that sequential scans read and entries that index scans gave, in this transaction, in our tables.
READ = """
    select coalesce(sum(pg_stat_get_xact_tuples_returned(oid)), 0)::int from pg_class
    where relnamespace = 'postrow'::regnamespace and relkind in ('r', 'i')
"""
# Every hot function, and those inside of them, on empty tables. {three}: tenants, ids and tokens of no message.
CALLS = (
    "claim('cold', 50, tenant => 't', worker => 'w')",
    "claim('cold', 50)",
    "pick('cold', 't', 0::smallint, null, null, 50, now(), false)",
    "pick('cold', 't', 0::smallint, 'w', null, 50, now(), false)",
    "mark(array_fill(1, array[50]), {tenants}, {ids}, {tids}, null, null, null, '1 h', 'w', gen_random_uuid(), now())",
    "claim_lanes('cold', '{{t}}', '{{0}}', '{{null}}', 50, 50, worker => 'w')",
    "lanes('cold', worker => 'w')",
    "lanes_ahead('cold', '{{t}}', '{{0}}', '{{null}}', worker => 'w')",
    "lanes_ahead('cold', '{{t}}', '{{0}}', '{{null}}', worker => 'w')",
    *(f"sweep('{step}', 1)" for step in fleet.SWEEP_STEPS if step != "history"),
    "release_claim(gen_random_uuid())",
    "ack({three})",
    "ack({three}, wait => false)",
    "ack_at({three}, {tids})",
    "fail({three}, {texts})",
    "bury({three}, {texts})",
    "release({three})",
    "extend({three}, '1 minute')",
    "retry_or_kill({tenants}, {ids}, {texts}, null, null, null, 'attempts', now())",
    "kill({tenants}, {ids}, {texts}, array_fill('[]'::jsonb, array[50]), now())",
)
TIDS = "array_fill('(0,1)'::tid, array[50])"
TENANTS = "array_fill('t'::text, array[50])"
IDS = "array(select gen_random_uuid() from generate_series(1, 50))"


@dataclass(frozen=True, slots=True)
class Work:
    """What one call did: rows that it gave, rows and index entries of ours that it read, pages that it touched."""

    given: int
    rows: int
    pages: int

    def assert_in_proportion(self, messages, *, lanes=0):
        """Bounds at about one and a half times what was measured under Postgres 15 and 18."""
        assert self.rows <= 10 * messages + 3 * lanes + 1_000, self
        assert self.pages <= 40 * messages + 10 * lanes + 500, self


class Plans:
    """A session whose calls are counted. What they change stays changed: a rollback would leave dead versions."""

    def __init__(self, dsn, *, old_plans=False):
        self.conn = psycopg.connect(dsn, autocommit=True)
        for _ in range(6 if old_plans else 0):  # from the sixth call on Postgres may keep one plan for all values
            self.warm()
        self.warm()
        self.conn.execute(f"set statement_timeout = '{PATIENCE} s'")  # the worst plans are quadratic

    def warm(self):
        """Read the catalog, so that no call that is measured does. What other sessions do may empty its cache."""
        words = {"tenants": TENANTS, "texts": TENANTS, "ids": IDS, "tids": TIDS, "three": f"{TENANTS}, {IDS}, {IDS}"}
        for call in CALLS:
            self.conn.execute(f"select * from postrow.{call.format(**words)}")
        self.conn.execute("set postrow.swept_to = ''")  # the sweep begins at the beginning
        self.conn.execute("set postrow.swept_groups = ''")
        self.cold = False

    def measure(self, call, params=None):
        """What `select * from postrow.<call>` reads, with all that happens inside of it."""
        if self.cold:
            try:
                self.warm()
            except psycopg.errors.QueryCanceled:
                pytest.fail("a call of nothing read on and on")
        with self.conn.transaction():
            before = self.conn.execute(READ).fetchone()[0]
            explain = f"explain (analyze, buffers, timing off, format json) select * from postrow.{call}"
            try:
                plan = self.conn.execute(explain, params).fetchone()[0][0]["Plan"]
            except psycopg.errors.QueryCanceled:
                pytest.fail(f"{call} read on and on")
            rows = self.conn.execute(READ).fetchone()[0] - before
        return Work(round(plan["Actual Rows"]), rows, plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    def lanes(self, queue):
        """The lanes of a queue, as claim_lanes takes them."""
        rows = self.conn.execute("select tenant, priority from postrow.lanes(%s)", [queue]).fetchall()
        return {
            "tenants": [row[0] for row in rows],
            "priorities": [row[1] for row in rows],
            "afters": [None] * len(rows),
        }

    def claimed(self, batch):
        """Claims a batch from the deep lane, and gives the lists that a settlement takes."""
        rows = self.conn.execute(
            "select tenant, id, claim_token, place from postrow.claim('deep', %s, tenant => 't', lease => '1 day')",
            [batch],
        ).fetchall()
        assert len(rows) == batch
        return dict(zip(("tenants", "ids", "tokens", "places"), map(list, zip(*rows, strict=True)), strict=True))


def load(conn, queue, count, *, tenants=1, priority=0, due="-1 hour", lease=None):
    """Messages as enqueue leaves them, due from then on, a microsecond apart; or claimed, where a lease is given."""
    conn.execute(
        """
        insert into postrow.message (tenant, id, queue, priority, payload, enqueued_at, available_at,
            claim_token, claimed_at, claimed_by, attempt)
        select coalesce('t' || nullif(n %% %(tenants)s, 0), 't'), postrow.uuid7_at(c.us + n, c.random),
            %(queue)s, %(priority)s, '{"n": 1}', now() - interval '1 hour',
            now() + coalesce(%(lease)s, %(due)s)::interval + n * interval '1 microsecond',
            c.token, case when c.token is not null then now() end, case when c.token is not null then 'w' end,
            case when c.token is null then 0 else 1 end
        from generate_series(1, %(count)s) n, (
            select (date_part('epoch', clock_timestamp()) * 1000000)::bigint as us, gen_random_uuid() as random,
                case when %(lease)s::text is not null then gen_random_uuid() end as token offset 0) c
        """,
        {"queue": queue, "count": count, "tenants": tenants, "priority": priority, "due": due, "lease": lease},
    )


def fill(conn):
    load(conn, "deep", MANY)
    load(conn, "scheduled", MANY, due="1 day")
    load(conn, "scheduled", 5_000, priority=1)
    load(conn, "wide", 10 * LANES, tenants=LANES)
    load(conn, "held", 30_000, lease="1 hour")
    load(conn, "late", 2_000, lease="-1 hour")


@contextmanager
def _database(server, template):
    name = f"plans_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(f"create database {name} template {template}")
    with psycopg.connect(server.dsn(name), autocommit=True) as conn:
        for (table,) in conn.execute(OURS).fetchall():
            conn.execute(f"alter table {table} set (autovacuum_enabled = off)")
        yield server.dsn(name), conn
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(f"drop database {name} with (force)")


@pytest.fixture(scope="session")
def _full(server, template):
    with _database(server, template) as (dsn, conn):
        conn.execute("vacuum analyze")
        aged = Plans(dsn, old_plans=True)
        fill(conn)
        yield dsn, aged
        aged.conn.close()


@pytest.fixture(scope="session")
def _refilled(server, template):
    with _database(server, template) as (dsn, conn):
        load(conn, "deep", MANY)
        conn.execute("analyze postrow.message")
        conn.execute("delete from postrow.message")
        conn.execute("vacuum (analyze, truncate off) postrow.message")
        fill(conn)
        yield dsn


@pytest.fixture(scope="session")
def _emptied(server, template):
    with _database(server, template) as (dsn, conn):
        load(conn, "deep", MANY)
        conn.execute("analyze postrow.message")
        was = "select relname, reltuples, relpages from pg_class where relnamespace = 'postrow'::regnamespace"
        before = conn.execute(was).fetchall()
        conn.execute("delete from postrow.message")
        conn.execute("vacuum (truncate off) postrow.message")
        for name, tuples, pages in before:
            conn.execute(
                "update pg_class set reltuples = %s, relpages = %s "
                "where relnamespace = 'postrow'::regnamespace and relname = %s",
                [tuples, pages, name],
            )
        load(conn, "deep", 2_000)
        load(conn, "late", 200, lease="-1 hour")
        yield dsn


@pytest.fixture(scope="session")
def _sparse(server, template):
    with _database(server, template) as (dsn, conn):
        load(conn, "wide", MANY, tenants=LANES, due="1 day")
        load(conn, "wide", 10, tenants=LANES)
        conn.execute("analyze postrow.message")
        yield dsn


@pytest.fixture(params=["old plans", "fresh session", "refilled"])
def full(request):
    """A session on the full tables: (a) whose plans were made on empty ones, (c) new, and new after a vacuum."""
    if request.param == "old plans":
        aged = request.getfixturevalue("_full")[1]
        aged.cold = True
        yield aged
        return
    fresh = Plans(
        request.getfixturevalue("_full")[0]
        if request.param == "fresh session"
        else request.getfixturevalue("_refilled")
    )
    yield fresh
    fresh.conn.close()


@pytest.fixture
def emptied(_emptied):
    """A session on (b) nearly empty tables with the statistics of full ones."""
    plans = Plans(_emptied)
    yield plans
    plans.conn.close()


@pytest.fixture
def sparse(_sparse):
    """A session on tables that were analysed as they are: many scheduled messages, few ready ones."""
    plans = Plans(_sparse)
    yield plans
    plans.conn.close()


@pytest.fixture(scope="session")
def dead_rows(server, template):
    """A session on 20,000 dead rows and nothing else, which a transaction keeps from vacuum; analyzed as empty."""
    with _database(server, template) as (dsn, conn), psycopg.connect(dsn) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from postrow.message")
        load(conn, "q", 20_000, tenants=100, due="-1 hour")
        conn.execute("update postrow.message set claim_token = gen_random_uuid(), claimed_at = now(), attempt = 1")
        conn.execute("delete from postrow.message")
        conn.execute("analyze postrow.message")
        plans = Plans(dsn)
        yield plans
        plans.conn.close()
