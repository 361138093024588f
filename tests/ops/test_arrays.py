"""Binary arrays, against psycopg's own dumpers and a real server."""

import json
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import tuple_row

from postrow.drivers.psycopg3 import OwnConnection, execute, execute_async
from postrow.models import Claimed, moment
from postrow.ops import Op, arrays, claims
from postrow.ops.op import single

TEXTS = [
    [],
    ["one"],
    ["a", "b", "a", "a"],
    [""],
    ["Grüße", "日本語", "🐘", "e\u0301"],
    ["quote'", 'double"', "back\\slash", "brace{}", "comma,", "null", "NULL", " blank ", "\t\n"],
    ["x" * 200, "y" * 70_000],
    [f"t{n % 7}" for n in range(500)],
]
UUIDS = [[], [UUID(int=0)], [UUID(int=2**128 - 1), UUID(int=1)], [UUID(int=n * 3**75) for n in range(500)]]
TIDS = [[], ["(0,1)"], ["(0,0)", "(4294967295,65535)", "(65536,256)"], [f"({n},{n % 300})" for n in range(500)]]


@pytest.fixture
def back(conn):
    """Sends a value as a worker does, and gives what the server says that it is, as text."""

    def back(value, type_):
        sql = f"select u::text from unnest($1::{type_}[]) with ordinality u(u, n) order by n"
        return execute(conn, Op(sql, (value,), lambda rows: [row[0] for row in rows], raw=True))

    return back


def dumped(values):
    """What psycopg makes of a list, in binary."""
    dumper = psycopg.adapt.Transformer().get_dumper(values, psycopg.adapt.PyFormat.BINARY)
    return bytes(dumper.dump(values))


@pytest.mark.parametrize("values", TEXTS, ids=len)
def test_texts_arrive_as_they_are(back, values):
    assert back(arrays.texts(values), "text") == values


@pytest.mark.parametrize("values", UUIDS, ids=len)
def test_uuids_arrive_as_they_are(back, values):
    assert back(arrays.uuids([value.bytes for value in values]), "uuid") == [str(value) for value in values]


def tid(text):
    block, offset = map(int, text.strip("()").split(","))
    return block.to_bytes(4, "big") + offset.to_bytes(2, "big")


@pytest.mark.parametrize("values", TIDS, ids=len)
def test_tids_arrive_as_they_are(back, values):
    assert back(arrays.tids([tid(value) for value in values]), "tid") == values


NUMBERS = [[], [0], [-32768, 32767, 5], list(range(-128, 128))]
MOMENTS = [
    [],
    [None],
    [
        datetime(2026, 12, 31, 23, 59, 59, 999_999, UTC),
        None,
        datetime(2026, 1, 1, tzinfo=timezone(-timedelta(hours=7))),
    ],
    [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)],
]


@pytest.mark.parametrize("values", NUMBERS, ids=len)
def test_numbers_arrive_as_they_are(back, values):
    assert back(arrays.numbers(values), "smallint") == [str(value) for value in values]


@pytest.mark.parametrize("values", MOMENTS, ids=len)
def test_moments_arrive_as_they_are(conn, values):
    sent = conn.execute("select %s::timestamptz[]", [values]).fetchone()[0]
    assert execute(conn, Op("select $1::timestamptz[]", (arrays.moments(values),), single)) == sent == values


@pytest.mark.parametrize("values", [values for values in TEXTS if values], ids=len)
def test_texts_are_the_bytes_that_psycopg_makes(values):
    assert bytes(arrays.texts(values)) == dumped(values)


@pytest.mark.parametrize("values", [values for values in UUIDS if values], ids=len)
def test_uuids_are_the_bytes_that_psycopg_makes(values):
    assert bytes(arrays.uuids([value.bytes for value in values])) == dumped(values)


SENT = "select array_send(%s::text[]::{}[])"


@pytest.mark.parametrize("values", TEXTS, ids=len)
def test_texts_are_the_bytes_that_the_server_makes(conn, values):
    assert bytes(arrays.texts(values)) == conn.execute(SENT.format("text"), [values]).fetchone()[0]


@pytest.mark.parametrize("values", UUIDS, ids=len)
def test_uuids_are_the_bytes_that_the_server_makes(conn, values):
    made = arrays.uuids([value.bytes for value in values])
    assert bytes(made) == conn.execute(SENT.format("uuid"), [[str(value) for value in values]]).fetchone()[0]


@pytest.mark.parametrize("values", TIDS, ids=len)
def test_tids_are_the_bytes_that_the_server_makes(conn, values):
    made = arrays.tids([tid(value) for value in values])
    assert bytes(made) == conn.execute(SENT.format("tid"), [values]).fetchone()[0]


def test_a_server_that_is_told_nothing_finds_their_types(conn):
    values = (arrays.texts(["t"]), arrays.uuids([uuid4().bytes]), arrays.tids([tid("(0,1)")]))
    sql = "select pg_typeof($1)::text, pg_typeof($2)::text, pg_typeof($3)::text"
    assert execute(conn, Op(sql, values, list, raw=True)) == [("text[]", "uuid[]", "tid[]")]


def test_ids_of_another_length_are_refused_by_the_server_and_never_taken_for_others(conn):
    for wrong in ([b"short"], [uuid4().bytes, uuid4().bytes[:15]], [b"x" * 17]):
        with pytest.raises(psycopg.DataError), conn.transaction():
            execute(conn, Op("select $1::uuid[]", (arrays.uuids(wrong),), list, raw=True))


# the ops that use them

LANE = [("default", 0, None)]


def claim(lanes=LANE, **options):
    return claims.claim_lanes(
        "q", lanes, per_lane=10, limit=10, lease=timedelta(seconds=60), worker="w1", token=uuid4(), max_bytes=None,
        **options,
    )  # fmt: skip


@pytest.fixture(params=["sync", "async", "own"])
async def perform(request, committed):
    """Runs an op on a connection of a worker's kind: sync, async, or one that keeps its cursors."""
    if request.param == "sync":
        with psycopg.connect(committed, autocommit=True) as conn:

            async def perform(op):
                return execute(conn, op)

            yield perform
    else:
        kind = OwnConnection if request.param == "own" else psycopg.AsyncConnection
        async with await kind.connect(committed, autocommit=True) as conn:

            async def perform(op):
                return await execute_async(conn, op)

            yield perform


async def test_a_claims_rows_are_raw_and_an_ack_at_takes_them(perform, actors):
    test = actors("test")
    sent = [test.put(payload={"n": n}) for n in range(3)]
    op = claim()
    found = await perform(op)

    assert [row.id for row in found.messages] == sent
    for row in found.messages:
        assert isinstance(row, Claimed)
        kept = test.find("message", row.id)
        assert (row.key, json.loads(row.payload)) == (kept.id.bytes, kept.payload)
        assert row.due_at == moment(row.enqueued) == kept.enqueued_at
        assert moment(row.claimed) == kept.claimed_at
        assert test.query("select ctid from postrow.message where id = %s", [row.id]) == [
            (f"({int.from_bytes(row.place[:4], 'big')},{int.from_bytes(row.place[4:], 'big')})",)
        ]
    token = op.params[8]
    stale = await perform(claims.ack_at(found.messages[:1], [uuid4()]))
    assert stale == {("default", sent[0]): "stale"}
    assert await perform(claims.ack_at(found.messages, [token] * 3)) == {}
    assert await perform(claims.ack_at([], [])) == {}
    assert await perform(claims.ack_at(found.messages[2:], [token])) == {("default", sent[2]): "unknown"}


async def test_a_claim_that_gives_nothing_says_how_far_it_saw(perform):
    found = await perform(claim([("default", 0, None), ("acme", 1, None)]))

    assert found.messages == []
    assert [(edge.tenant, edge.priority, edge.taken, edge.wait) for edge in found.edges] == [
        ("default", 0, 0, None),
        ("acme", 1, 0, None),
    ]
    assert all(edge.frontier.tzinfo is not None for edge in found.edges)
    assert found.took >= 0


async def test_what_the_connection_reads_itself_is_not_changed(committed):
    with psycopg.connect(committed, autocommit=True, row_factory=tuple_row) as conn:
        execute(conn, claim())
        kinds = conn.execute("select gen_random_uuid(), now()", binary=True).fetchone()
        assert isinstance(kinds[0], UUID)
        assert hasattr(kinds[1], "tzinfo")
