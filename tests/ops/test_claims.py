"""What a worker's questions give, as the server answers them."""

import pytest

from postrow.drivers.psycopg3 import execute
from postrow.ops import claims


@pytest.fixture
def slow(conn):
    """The database takes 50 ms to look at its clock, which each discovery does."""
    conn.execute(
        "create or replace function postrow.clock() returns timestamptz language plpgsql volatile as "
        "'begin perform pg_catalog.pg_sleep(0.05); return pg_catalog.clock_timestamp(); end'"
    )


@pytest.mark.parametrize("part", [{}, {"marks": True}], ids=["from the beginnings", "from watermarks"])
@pytest.mark.usefixtures("slow")
def test_a_discovery_says_how_long_the_server_took_also_where_it_finds_nothing(conn, part):
    if part:
        (now,) = conn.execute("select pg_catalog.clock_timestamp()").fetchone()
        part = {"marks": [("acme", 0, now)]}
    found = execute(conn, claims.lanes("q", worker="w1", **part))
    assert found.lanes == []
    assert found.took >= 0.05


def test_a_discovery_gives_each_lane(conn):
    for tenant, priority in (("acme", 0), ("acme", 5), ("beta", 0)):
        conn.execute("select postrow.enqueue('q', '1', tenant => %s, priority => %s)", [tenant, priority])
    found = execute(conn, claims.lanes("q", worker="w1"))
    assert [(lane.tenant, lane.priority, lane.ready) for lane in found.lanes] == [
        ("acme", 0, True), ("acme", 5, True), ("beta", 0, True),
    ]  # fmt: skip
    assert all(lane.due_in <= 0 and lane.due_at is not None for lane in found.lanes)
