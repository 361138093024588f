"""Large tables, loaded once, and what a call reads in them. Counted, never timed.

Two databases, both with autovacuum off, so that no statistics come by themselves:

- `full`: 300,000 ready messages, 300,000 scheduled ones before 200 ready ones of the next priority, 1,000 lanes. Its
  statistics are those of the empty tables it had before, and so are the plans of the session `full.aged`.
- `emptied`: a few messages, with the statistics and the pages of a table of 300,000.
"""

import uuid
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pytest

MANY = 300_000
LANES = 1_000
OUR_TABLES = "select oid::regclass::text from pg_class where relnamespace = 'postrow'::regnamespace and relkind = 'r'"
ENTRIES = """
    select coalesce(sum(pg_stat_get_xact_tuples_returned(c.oid)), 0)::int
    from pg_class c where c.relnamespace = 'postrow'::regnamespace and c.relkind in ('r', 'i')
"""

# One session calls each function more than five times: from the sixth on Postgres may keep one plan for all values.
WARM_UP = (
    "select * from postrow.claim('cold', 100, tenant => 't', worker => 'w')",
    "select * from postrow.claim('cold', 100)",
    "select * from postrow.claim_lanes('cold', '{t}', '{0}', '{null}', 100, 100, worker => 'w')",
    "select * from postrow.lanes('cold', worker => 'w')",
    "select * from postrow.ack('{t}', array[gen_random_uuid()], array[gen_random_uuid()])",
    "select * from postrow.ack('{t}', array[gen_random_uuid()], array[gen_random_uuid()], wait => false)",
    "select * from postrow.fail('{t}', array[gen_random_uuid()], array[gen_random_uuid()], '{e}')",
    "select * from postrow.bury('{t}', array[gen_random_uuid()], array[gen_random_uuid()], '{e}')",
    "select * from postrow.release('{t}', array[gen_random_uuid()], array[gen_random_uuid()])",
    "select * from postrow.extend('{t}', array[gen_random_uuid()], array[gen_random_uuid()], '1 minute')",
    "select * from postrow.sweep('leases')",
)

# The whole life of one message, so that the statements behind the fence have been planned too.
WARM_LIFE = (
    "select postrow.enqueue('warm', '{}', tenant => 't')",
    "select postrow.enqueue('warm', '{}', tenant => 't')",
    "select postrow.{settle} from (select array_agg(tenant) as tenants, array_agg(id) as ids, "
    "array_agg(claim_token) as tokens from postrow.claim('warm', 2, tenant => 't')) c",
    "delete from postrow.message",
)
SETTLES = (
    "ack(c.tenants, c.ids, c.tokens)",
    "fail(c.tenants, c.ids, c.tokens, '{e,e}')",
    "bury(c.tenants, c.ids, c.tokens, '{e,e}')",
    "release(c.tenants, c.ids, c.tokens)",
    "extend(c.tenants, c.ids, c.tokens, '1 minute')",
)


@dataclass(frozen=True, slots=True)
class Work:
    """What one call did: rows that it gave, table and index rows of ours that it read, pages that it touched."""

    given: int
    rows: int
    buffers: int


class Plans:
    """A session whose calls are counted; everything it does is rolled back."""

    def __init__(self, conn):
        self.conn = conn

    def run(self, statement, params=None):
        cursor = self.conn.execute(statement, params)
        return cursor.fetchall() if cursor.description else []

    def measure(self, call, params=None):
        """What `select * from postrow.<call>` reads, with all that happens inside of it."""
        before = self.run(ENTRIES)[0][0]
        explained = self.run(
            f"explain (analyze, buffers, timing off, format json) select * from postrow.{call}", params
        )[0][0][0]["Plan"]
        return Work(
            given=round(explained["Actual Rows"]),
            rows=self.run(ENTRIES)[0][0] - before,
            buffers=explained["Shared Hit Blocks"] + explained["Shared Read Blocks"],
        )

    def claimed(self, queue, limit, *, tenant="t", token=None):
        """Claims, and gives the three lists that a settlement takes."""
        rows = self.run(
            "select tenant, id, claim_token from postrow.claim(%s, %s, tenant => %s, token => %s)",
            [queue, limit, tenant, token],
        )
        return {
            "tenants": [row[0] for row in rows],
            "ids": [row[1] for row in rows],
            "tokens": [row[2] for row in rows],
        }


def _make(server, template):
    name = f"plans_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(f"create database {name} template {template}")
    dsn = server.dsn(name)
    with psycopg.connect(dsn, autocommit=True) as conn:
        for (table,) in conn.execute(OUR_TABLES).fetchall():
            conn.execute(f"alter table {table} set (autovacuum_enabled = off)")
        conn.execute("vacuum analyze")
    return dsn


def load(conn, queue, count, *, tenants=1, priority=0, due="-1 hour", lease=None):
    """Messages as an enqueue would leave them, `due` from now on, a microsecond apart; claimed, if `lease` is given."""
    conn.execute(
        """
        insert into postrow.message (tenant, id, queue, priority, payload, enqueued_at, available_at,
            claim_token, claimed_at, claimed_by, attempt)
        select coalesce('t' || nullif(n %% %(tenants)s, 0), 't'), postrow.uuid7_at(s.us + n, gen_random_uuid()), %(queue)s, %(priority)s,
            '{"n": 1}', now() - interval '1 hour',
            now() + coalesce(%(lease)s, %(due)s)::interval + n * interval '1 microsecond',
            case when %(lease)s::text is not null then gen_random_uuid() end,
            case when %(lease)s::text is not null then now() end,
            case when %(lease)s::text is not null then 'w' end, (%(lease)s::text is not null)::int
        from generate_series(1, %(count)s) n,
            (select (date_part('epoch', clock_timestamp()) * 1000000)::bigint as us) s
        """,
        {"queue": queue, "count": count, "tenants": tenants, "priority": priority, "due": due, "lease": lease},
    )
