from datetime import UTC, datetime, timedelta
from uuid import RFC_4122, UUID, uuid4

import pytest


def moment_of(id_):
    """The milliseconds in a UUIDv7."""
    return datetime.fromtimestamp((id_.int >> 80) / 1000, UTC)


def test_an_id_is_a_uuid_of_version_7_with_the_moment_in_it(pg):
    (row,) = pg.query("select clock_timestamp() as before, postrow.uuid7() as id, clock_timestamp() as after")

    assert (row.id.version, row.id.variant) == (7, RFC_4122)
    assert row.before - timedelta(milliseconds=1) <= moment_of(row.id) <= row.after + timedelta(milliseconds=1)


def test_ids_of_one_transaction_come_in_order(pg):
    ids = [row.id for row in pg.query("select postrow.uuid7() as id from generate_series(1, 500)")]

    # the polyfill's order is by the microsecond: two ids of the same one may stand either way
    clocks = [id_.int >> 64 for id_ in ids]
    assert clocks == sorted(clocks)
    assert len(set(ids)) == 500


def at(pg, microseconds, random=None):
    return pg.value("uuid7_at", us=microseconds, random=random or uuid4())


@pytest.mark.parametrize(
    "random", [UUID("00000000-0000-4000-8000-000000000000"), UUID("ffffffff-ffff-4fff-bfff-ffffffffffff"), uuid4()]
)
def test_the_polyfill_has_the_layout_of_the_rfc(pg, random):
    id_ = at(pg, 1_645_557_742_000_000, random)  # the example of RFC 9562, appendix A.6: 017F22E2-79B0-7...

    assert (id_.int >> 80, id_.version) == (0x017F22E279B0, 7)
    assert id_.int & (2**62 - 1) == random.int & (2**62 - 1)


def test_the_polyfill_keeps_the_variant_of_a_random_uuid(pg):
    assert at(pg, 1_645_557_742_000_000).variant == RFC_4122


def test_microseconds_in_order_give_ids_in_order(pg):
    start = 1_764_000_000_999_000
    rows = pg.query(
        "select n, postrow.uuid7_at(%s + n, %s) as id from generate_series(0, 2999) n order by n", [start, uuid4()]
    )
    ids = [row.id for row in rows]

    assert ids == sorted(ids)
    assert len(set(ids)) == 3_000
    assert {id_.version for id_ in ids} == {7}


def test_postgres_orders_ids_as_python_does(pg):
    pg.query("create temporary table made as select postrow.uuid7() as id from generate_series(1, 50)")
    ids = [row.id for row in pg.query("select id from pg_temp.made order by id")]

    assert ids == sorted(ids)


@pytest.mark.parametrize("moment", [datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)])
def test_the_polyfill_holds_for_every_moment_of_four_digits(pg, moment):
    microseconds = int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 1_000_000
    id_ = at(pg, microseconds)

    assert (id_.version, moment_of(id_)) == (7, moment)


def test_ids_of_a_list_and_ids_alone_come_in_the_order_of_their_calls(pg):
    first = pg.put()
    listed = [row.id for row in pg.rows("enqueue_many", queue="q", messages=[{"payload": 1}] * 5)]
    pg.query("select pg_sleep(0.001)")  # a list's ids run ahead of the clock by a microsecond each
    last = pg.put()

    assert [first, *listed, last] == sorted([first, *listed, last])
