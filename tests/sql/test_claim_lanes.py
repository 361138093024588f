from datetime import timedelta
from uuid import uuid4

import pytest

TRAIL = timedelta(seconds=0.2)


def seconds(number):
    return timedelta(seconds=number)


@pytest.fixture
def fill(pg, clock):
    """Fills lanes: fill(a=3) puts three messages for tenant a, a second apart, all due by the clock's new moment."""

    def _fill(**counts):
        sent = {}
        start = clock.now
        for tenant, count in counts.items():
            sent[tenant] = []
            for n in range(count):
                clock.set(start + seconds(n))
                sent[tenant].append(pg.put(tenant=tenant))
        clock.set(start + seconds(100))
        return sent

    return _fill


def claim(pg, tenants, *, per_lane=10, limit=100, afters=None, priorities=None, **options):
    return pg.rows(
        "claim_lanes",
        queue="q",
        tenants=tenants,
        priorities=priorities or [0] * len(tenants),
        afters=afters or [None] * len(tenants),
        per_lane=per_lane,
        limit=limit,
        **options,
    )


def shape(rows):
    return [(row.lane, row.tenant, row.id) for row in rows]


def frontiers(rows):
    """Lane -> its frontier; all rows of a lane have to say the same."""
    found = {}
    for row in rows:
        assert found.setdefault(row.lane, row.frontier) == row.frontier
    return found


def test_a_row_for_each_message_and_one_without_id_for_each_lane_that_gave_none(pg, fill):
    sent = fill(a=2, c=1)
    rows = claim(pg, ["a", "b", "c"])

    assert shape(rows)[2:] == [(3, "c", sent["c"][0]), (2, "b", None)]
    assert sorted(shape(rows)[:2]) == sorted((1, "a", id_) for id_ in sent["a"])  # due at the same moment
    assert all(row.queue == "q" and row.priority == 0 for row in rows)
    empty = rows[3]
    assert (empty.claim_token, empty.payload, empty.due_at, empty.attempt) == (None,) * 4


def test_what_it_gives_is_claimed_under_one_token(pg, fill, clock):
    sent = fill(a=1, b=1)
    mine = uuid4()
    rows = claim(pg, ["a", "b"], lease=seconds(9), worker="w1", token=mine)

    assert {row.claim_token for row in rows} == {mine}
    for tenant in ("a", "b"):
        row = pg.find("message", sent[tenant][0])
        assert (row.claim_token, row.claimed_by, row.attempt) == (mine, "w1", 1)
        assert (row.claimed_at, row.available_at) == (clock.now, clock.now + seconds(9))
    assert shape(claim(pg, ["a", "b"])) == [(1, "a", None), (2, "b", None)]


def test_lanes_are_positions_in_the_order_given(pg, fill):
    sent = fill(a=1, b=1)

    assert shape(claim(pg, ["b", "a"])) == [(1, "b", sent["b"][0]), (2, "a", sent["a"][0])]


def test_a_lane_is_a_tenant_and_a_priority(pg):
    urgent, normal = pg.put(priority=-1), pg.put()
    pg.put(priority=7)
    rows = claim(pg, ["default", "default"], priorities=[0, -1])

    assert [(row.lane, row.priority, row.id) for row in rows] == [(1, 0, normal), (2, -1, urgent)]


def test_other_queues_and_targeted_messages_are_not_of_the_lane(pg):
    pg.put(queue="other")
    pg.put(target="w1")

    assert shape(claim(pg, ["default"])) == [(1, "default", None)]


def test_no_lane_gives_more_than_per_lane(pg, fill):
    fill(a=5, b=1)
    rows = claim(pg, ["a", "b"], per_lane=2)

    assert [row.lane for row in rows] == [1, 1, 2]


def test_a_lane_that_was_seen_whole_has_the_moment_of_the_claim_as_its_frontier(pg, fill, clock):
    fill(a=2)
    pg.put(tenant="c", delay=seconds(60))

    assert frontiers(claim(pg, ["a", "b", "c"])) == dict.fromkeys((1, 2, 3), clock.now - TRAIL)


def test_a_lane_that_gave_per_lane_has_its_last_message_as_its_frontier(pg, fill, clock):
    fill(a=3, b=2)
    start = clock.now - seconds(100)

    assert frontiers(claim(pg, ["a", "b"], per_lane=2)) == {
        1: start + seconds(1) - TRAIL,
        2: start + seconds(1) - TRAIL,
    }


def test_when_the_limit_is_used_up_later_lanes_keep_their_own_after(pg, fill, clock):
    sent = fill(a=2, b=3, c=2, d=1)
    start = clock.now - seconds(100)
    afters = [None, None, start - seconds(7), None]
    rows = claim(pg, ["a", "b", "c", "d"], limit=4, afters=afters)

    assert [(row.lane, row.id) for row in rows] == [
        (1, sent["a"][0]),
        (1, sent["a"][1]),
        (2, sent["b"][0]),
        (2, sent["b"][1]),
        (3, None),
        (4, None),
    ]
    assert frontiers(rows) == {
        1: clock.now - TRAIL,  # seen whole
        2: start + seconds(1) - TRAIL,  # cut off by the limit: the last that it gave
        3: start - seconds(7),  # never looked at: its own
        4: None,
    }


def test_when_the_limit_ends_with_a_lane_that_lane_is_not_taken_for_seen_whole(pg, fill, clock):
    fill(a=2, b=1)
    start = clock.now - seconds(100)

    assert frontiers(claim(pg, ["a", "b"], limit=2)) == {1: start + seconds(1) - TRAIL, 2: None}


def test_a_claim_starts_each_lane_at_its_own_after_and_includes_it(pg, fill, clock):
    sent = fill(a=3, b=3)
    start = clock.now - seconds(100)
    rows = claim(pg, ["a", "b"], afters=[start + seconds(1), start + seconds(2)])

    assert [row.id for row in rows] == [*sent["a"][1:], sent["b"][2]]


def test_a_frontier_is_assigned_and_may_go_back(pg, fill, clock):
    fill(a=1)
    ahead = clock.now + seconds(3600)  # the clock was stepped back since
    rows = claim(pg, ["a"], afters=[ahead])

    assert shape(rows) == [(1, "a", None)]
    assert frontiers(rows) == {1: clock.now - TRAIL}


def test_messages_of_one_moment_all_come_though_a_batch_ends_among_them(pg, clock):
    sent = {pg.put() for _ in range(5)}  # the clock stands still: one available_at
    clock.advance(1)
    after, got = None, set()
    for _ in range(3):
        rows = claim(pg, ["default"], per_lane=2, afters=[after])
        got |= {row.id for row in rows}
        after = rows[0].frontier

    assert got == sent


def test_messages_for_the_worker_come_first_as_lane_0_without_a_frontier(pg, fill, clock):
    sent = fill(a=1)
    mine = pg.put(tenant="z", priority=9, target="w1")
    rows = claim(pg, ["a", "z"], worker="w1")

    assert shape(rows) == [(0, "z", mine), (1, "a", sent["a"][0]), (2, "z", None)]
    assert frontiers(rows) == {0: None, 1: clock.now - TRAIL, 2: clock.now - TRAIL}
    assert (rows[0].target, rows[0].claim_token) == ("w1", rows[1].claim_token)


def test_targeted_messages_use_the_limit_and_leave_the_lanes_their_after(pg, fill, clock):
    fill(a=2)
    after = clock.now - seconds(500)
    for _ in range(3):
        pg.put(tenant="a", target="w1")

    rows = claim(pg, ["a"], worker="w1", limit=2, afters=[after])
    assert [(row.lane, row.id is None) for row in rows] == [(0, False), (0, False), (1, True)]
    assert frontiers(rows) == {0: None, 1: after}
    rows = claim(pg, ["a"], worker="w1", limit=2)
    assert [(row.lane, row.id is None) for row in rows] == [(0, False), (1, False)]


def test_targeted_messages_come_only_of_the_tenants_of_the_lanes(pg):
    mine = pg.put(tenant="a", priority=3, target="w1")
    pg.put(tenant="b", target="w1")

    assert shape(claim(pg, ["a"], worker="w1")) == [(0, "a", mine), (1, "a", None)]
    assert claim(pg, [], worker="w1") == []


def test_an_expired_message_is_passed_over(pg, clock):
    pg.put(expires_at=clock.now + seconds(1))
    clock.advance(2)
    alive = pg.put()
    rows = claim(pg, ["default"])

    assert shape(rows) == [(1, "default", alive)]


def test_max_bytes_bounds_the_whole_call_and_the_frontier_stays_behind_what_was_left(pg, clock):
    sent = {}
    for tenant in ("a", "b", "c"):
        sent[tenant] = [pg.put(tenant=tenant, payload="x" * 98)]  # 100 bytes as JSON text
        clock.advance(1)
    sent["a"].append(pg.put(tenant="a", payload="x" * 98))
    after = clock.now - seconds(50)
    rows = claim(pg, ["a", "b", "c"], max_bytes=150, afters=[after] * 3)

    assert shape(rows) == [(1, "a", sent["a"][0]), (2, "b", None), (3, "c", None)]
    assert frontiers(rows) == {1: rows[0].due_at - TRAIL, 2: after, 3: after}
    rows = claim(pg, ["a", "b", "c"], max_bytes=10)  # at least one
    assert [row.id for row in rows if row.id] == [sent["a"][1]]
    rows = claim(pg, ["a", "b", "c"], max_bytes=1_000)
    assert [row.id for row in rows if row.id] == [sent["b"][0], sent["c"][0]]


def test_the_largest_limits_are_limits(pg, fill):
    fill(a=3, b=2)

    assert len(claim(pg, ["a", "b"], per_lane=2**31 - 1, limit=2**31 - 1)) == 5


@pytest.mark.parametrize("bad", [0, -1, None])
@pytest.mark.parametrize("which", ["per_lane", "limit"])
def test_a_limit_below_one_is_refused_by_name(pg, which, bad):
    arguments = {"per_lane": 1, "limit": 1, which: bad}
    error = pg.refused("claim_lanes", queue="q", tenants=["a"], priorities=[0], afters=[None], **arguments)

    assert error.sqlstate == "PW003"
    assert f"{which} is" in str(error)


@pytest.mark.parametrize(
    "lists",
    [
        {"tenants": ["a", "b"]},
        {"priorities": [0, 1]},
        {"afters": [None, None]},
        {"tenants": []},
        {"tenants": None},
        {"priorities": None},
        {"afters": None},
    ],
    ids=repr,
)
def test_lists_of_different_lengths_are_refused(pg, lists):
    arguments = {"tenants": ["a"], "priorities": [0], "afters": [None], **lists}

    assert pg.refused("claim_lanes", queue="q", per_lane=1, limit=1, **arguments).sqlstate == "PW003"


@pytest.mark.parametrize(
    ("options", "sqlstate"),
    [
        ({"lease": seconds(0)}, "PW003"),
        ({"lease": seconds(-1)}, "PW003"),
        ({"max_bytes": 0}, "PW003"),
        ({"worker": ""}, "PW002"),
    ],
    ids=repr,
)
def test_options_are_checked_as_for_claim(pg, options, sqlstate):
    error = pg.refused(
        "claim_lanes", queue="q", tenants=["a"], priorities=[0], afters=[None], per_lane=1, limit=1, **options
    )

    assert error.sqlstate == sqlstate


def test_a_lane_given_twice_gives_each_message_once(pg, fill):
    sent = fill(a=2)
    rows = claim(pg, ["a", "a"])

    assert sorted(row.id for row in rows if row.id) == sorted(sent["a"])


def test_a_thousand_lanes_come_in_one_call(pg, clock):
    tenants = [f"t{number}" for number in range(1_000)]
    pg.rows("enqueue_many", queue="q", messages=[{"payload": 1, "tenant": t} for t in tenants[::2]])
    clock.advance(1)
    rows = claim(pg, tenants, limit=1_000)

    assert [row.lane for row in rows] == [*range(1, 1_001, 2), *range(2, 1_001, 2)]
    assert [row.id is not None for row in rows] == [True] * 500 + [False] * 500
