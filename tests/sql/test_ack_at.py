"""`ack_at`: an ack by the place where a claim left each message. It only hurries the ack: the fence is the token."""

from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
from settling import ack_at, claimed, lists

NOWHERE = "(4000000,1)"  # beyond the table's end


def place_of(pg, id_):
    (row,) = pg.query("select ctid from postrow.message where id = %s", [id_])
    return row.ctid


def test_a_claim_says_where_it_left_each_message(pg):
    for row in claimed(pg, 3):
        assert row.place == place_of(pg, row.id)


def test_claim_lanes_and_a_limited_claim_say_it_too(pg):
    pg.put()
    (row,) = pg.rows(
        "claim_lanes", queue="q", tenants=["default"], priorities=[0], afters=[None], per_lane=5, limit=5
    )  # fmt: skip
    assert row.place == place_of(pg, row.id)
    pg.rows("register_consumer", queue="q", handler="h", max_in_flight=5)
    pg.put()
    (row,) = pg.take()
    assert row.place == place_of(pg, row.id)


def test_what_is_accepted_is_not_said_and_is_in_history(pg):
    rows = claimed(pg, 3)

    assert pg.rows("ack_at", **lists(rows)) == []
    assert pg.query("select id from postrow.message") == []
    assert all(pg.find("history", row.id).outcome == "done" for row in rows)


def test_history_has_what_ack_writes_there(pg, clock):
    pg.put(queue="a", payload={"a": 1}, headers={"h": 2}, subject="s", max_attempts=9)
    pg.put(queue="b", payload={"a": 1}, headers={"h": 2}, subject="s", max_attempts=9)
    (one,), (other,) = pg.take(queue="a", worker="w1"), pg.take(queue="b", worker="w1")
    clock.advance(2)
    ack_at(pg, [one])
    pg.settle("ack", [other])

    by_place, by_key = (pg.find("history", row.id)._asdict() for row in (one, other))
    for name in ("id", "queue", "enqueued_at", "started_at"):
        assert by_place.pop(name) is not None
        assert by_key.pop(name) is not None
    assert by_place == by_key


def test_another_token_is_stale_and_changes_nothing(pg):
    (row,) = claimed(pg)
    before = pg.find("message", row.id)

    assert ack_at(pg, [row._replace(claim_token=uuid4())]) == ["stale"]
    assert pg.find("message", row.id) == before


def test_a_free_message_is_stale_and_stays_as_it_is(pg):
    (row,) = claimed(pg)
    pg.settle("release", [row])
    before = pg.find("message", row.id)

    assert ack_at(pg, [row._replace(place=place_of(pg, row.id))]) == ["stale"]
    assert pg.find("message", row.id) == before


def test_a_message_that_was_claimed_again_at_the_place_that_it_has_now_is_stale(pg):
    (old,) = claimed(pg)
    pg.settle("release", [old])
    (new,) = pg.take()

    assert ack_at(pg, [old._replace(place=new.place)]) == ["stale"]
    assert ack_at(pg, [new]) == ["accepted"]


def test_a_message_whose_lease_was_renewed_has_moved_and_is_accepted(pg):
    (row,) = claimed(pg)
    pg.settle("extend", [row], lease=timedelta(seconds=60))
    assert place_of(pg, row.id) != row.place

    assert ack_at(pg, [row]) == ["accepted"]
    assert pg.find("history", row.id)


def test_those_that_moved_and_those_that_did_not_are_acknowledged_together(pg):
    rows = claimed(pg, 6)
    pg.settle("extend", rows[1::2], lease=timedelta(seconds=60))

    assert ack_at(pg, rows) == ["accepted"] * 6
    assert all(pg.find("history", row.id) for row in rows)


def test_each_message_of_a_batch_has_its_own_outcome(pg):
    gone, stale, moved, good = claimed(pg, 4)
    pg.settle("ack", [gone])
    pg.settle("extend", [moved], lease=timedelta(seconds=60))

    outcomes = ack_at(pg, [gone, stale._replace(claim_token=uuid4()), moved, good])
    assert outcomes == ["unknown", "stale", "accepted", "accepted"]
    assert pg.find("message", stale.id).claim_token == stale.claim_token


@pytest.mark.parametrize("settled", ["ack", "bury"])
def test_a_settled_message_is_unknown(pg, settled):
    (row,) = claimed(pg)
    pg.settle(settled, [row], **({"reasons": ["x"]} if settled == "bury" else {}))

    assert ack_at(pg, [row]) == ["unknown"]


def test_another_tenants_message_is_unknown_whatever_the_place(pg):
    (row,) = claimed(pg)

    assert ack_at(pg, [row._replace(tenant="other")]) == ["unknown"]
    assert pg.find("message", row.id).claim_token == row.claim_token


def test_one_id_in_two_tenants_is_two_messages_at_two_places(pg):
    same = uuid4()
    for tenant in ("a", "b"):
        pg.put(tenant=tenant, id=same)
    one, other = pg.take(2)

    assert ack_at(pg, [one._replace(place=other.place)]) == ["accepted"]
    (left,) = pg.query("select tenant from postrow.message")
    assert left.tenant == other.tenant


def test_the_place_of_another_message_does_no_harm(pg):
    mine, other = claimed(pg, 2)

    assert ack_at(pg, [mine._replace(place=other.place)]) == ["accepted"]
    assert pg.find("history", mine.id)
    assert pg.find("message", other.id).claim_token == other.claim_token


def test_two_messages_with_each_others_places_are_both_accepted(pg):
    one, other = claimed(pg, 2)

    assert ack_at(pg, [one._replace(place=other.place), other._replace(place=one.place)]) == ["accepted"] * 2


@pytest.mark.parametrize("place", [NOWHERE, "(0,0)", "(0,65535)", "(4294967295,65535)", None])
def test_a_place_where_nothing_is_does_no_harm(pg, place):
    (row,) = claimed(pg)

    assert ack_at(pg, [row._replace(place=place)]) == ["accepted"]
    assert ack_at(pg, [row._replace(place=place)]) == ["unknown"]


def test_no_messages_is_nothing(pg):
    assert ack_at(pg, []) == []


@pytest.mark.parametrize("short", ["tenants", "ids", "tokens", "places"])
@pytest.mark.parametrize("to", [0, 1])
def test_lists_of_different_lengths_are_refused_as_ack_refuses_them(pg, short, to):
    given = lists(claimed(pg, 2))
    given[short] = given[short][:to]
    error = pg.refused("ack_at", **given)

    assert error.sqlstate == "PW003"
    assert "one length" in str(error)


@pytest.mark.parametrize("null", ["tenants", "ids", "tokens"])
def test_a_null_in_a_list_or_for_one_is_refused(pg, null):
    given = lists(claimed(pg))
    inside = pg.refused("ack_at", **{**given, null: [None]})
    whole = pg.refused("ack_at", **{**given, null: None})

    assert (inside.sqlstate, whole.sqlstate) == ("PW003", "PW003")


def test_no_places_at_all_are_refused(pg):
    assert pg.refused("ack_at", **{**lists(claimed(pg)), "places": None}).sqlstate == "PW003"


def test_a_null_token_is_not_that_of_a_message_that_nobody_holds(pg):
    free = pg.put()
    error = pg.refused("ack_at", tenants=["default"], ids=[free], tokens=[None], places=[place_of(pg, free)])

    assert error.sqlstate == "PW003"
    assert pg.find("message", free)


@pytest.mark.parametrize(
    "second",
    [
        lambda row: row,
        lambda row: row._replace(place=NOWHERE),
        lambda row: row._replace(claim_token=uuid4()),
        lambda row: row._replace(place=NOWHERE, claim_token=uuid4()),
    ],
    ids=["the same", "elsewhere", "another token", "elsewhere, another token"],
)
@pytest.mark.parametrize("turned", [False, True])
def test_a_message_that_stands_twice_is_refused_as_ack_refuses_it(pg, second, turned):
    row, other = claimed(pg, 2)
    rows = [row, other, second(row)]
    error = pg.refused("ack_at", **lists(rows[::-1] if turned else rows))

    assert error.sqlstate == "PW003"
    assert "stands twice" in str(error)
    assert pg.find("history", row.id) is None
    assert pg.find("message", row.id).claim_token == row.claim_token


def test_after_the_lease_has_ended_and_before_the_sweep_it_is_accepted(pg, clock):
    rows = claimed(pg)
    clock.advance(61)

    assert ack_at(pg, rows) == ["accepted"]


def test_no_history_is_kept_where_the_consumer_says_so(pg):
    pg.rows("register_consumer", queue="q", handler="h", keep_history=False)
    quiet = claimed(pg)
    pg.put(queue="other")
    kept = pg.take(queue="other")

    assert ack_at(pg, quiet + kept) == ["accepted"] * 2
    assert pg.find("history", quiet[0].id) is None
    assert pg.find("history", kept[0].id)


def test_the_next_of_a_group_is_set_free(pg):
    first, second = pg.put(group_key="g"), pg.put(group_key="g")
    (row,) = pg.take(1)
    assert row.id == first
    assert pg.take(1) == []  # it meets the second, and sets it behind
    assert pg.find("message", second).behind

    assert ack_at(pg, [row]) == ["accepted"]
    assert not pg.find("message", second).behind
    assert [next_.id for next_ in pg.take(1)] == [second]


def test_a_large_batch_is_acknowledged_in_one_call(pg):
    pg.rows("enqueue_many", queue="q", messages=[{"payload": n, "tenant": f"t{n % 7}"} for n in range(300)])
    rows = pg.take(300)[::-1]

    assert ack_at(pg, rows) == ["accepted"] * 300


# A place is used again once vacuum has been there: these need a table of their own, and commits.


@pytest.fixture
def own(database, functions_on):
    """The SQL functions on a database of this test's own, without a transaction."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("alter table postrow.message set (autovacuum_enabled = off)")
        yield functions_on(conn)


def occupy(pg, place, *, tries=500):
    """Claims new messages until one is at this place, and gives its row."""
    for _ in range(tries):
        pg.put()
        (row,) = pg.take()
        if row.place == place:
            return row
    pytest.fail(f"no message came to be at {place}")


def test_a_message_that_took_the_place_of_one_that_is_gone_is_never_acknowledged_for_it(own):
    (old,) = claimed(own)
    assert own.settle("ack", [old]) == ["accepted"]
    own.query("vacuum postrow.message")
    new = occupy(own, old.place)

    assert ack_at(own, [old]) == ["unknown"]
    assert own.find("message", new.id).claim_token == new.claim_token
    assert own.find("history", new.id) is None
    assert ack_at(own, [new]) == ["accepted"]


def test_a_message_that_moved_is_acknowledged_when_another_has_its_place(own):
    (old,) = claimed(own)
    own.settle("extend", [old], lease=timedelta(seconds=60))
    own.query("vacuum postrow.message")
    new = occupy(own, old.place)

    assert ack_at(own, [old]) == ["accepted"]
    assert own.find("history", old.id)
    assert own.find("message", new.id).claim_token == new.claim_token


def test_a_place_beyond_the_end_of_a_table_that_vacuum_has_cut_off_is_none(own):
    (old,) = claimed(own)
    own.settle("ack", [old])
    own.query("vacuum (truncate on) postrow.message")
    assert own.query("select pg_relation_size('postrow.message') as size")[0].size == 0

    assert ack_at(own, [old]) == ["unknown"]
