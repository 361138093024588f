"""What a worker remembers of lanes: priorities in turn, and what is ready and yet not to be had."""

from datetime import UTC, datetime

from postrow.models import Lane, LaneEdge
from postrow.worker.lanes import AGING, LOCKED_MOST, Lanes

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def seen(*lanes):
    found = Lanes()
    found.looked([Lane(tenant, priority, ready=True, due_in=0.0) for tenant, priority in lanes], 0.0)
    return found


def test_one_claim_of_twenty_begins_with_the_last_priority():
    lanes = seen(("acme", 0), ("acme", 5), ("beta", 5), ("acme", 9))
    firsts = [lanes.choose(100)[0][0][1] for _ in range(5 * AGING)]
    assert (firsts.count(9), firsts.count(5), firsts.count(0)) == (5, 0, 5 * AGING - 5)


def test_a_single_priority_has_no_turns():
    lanes = seen(("acme", 0), ("beta", 0))
    assert {lanes.choose(100)[0][0][1] for _ in range(3 * AGING)} == {0}
    assert lanes.choose(100)[1] == 50


def test_what_is_ready_and_not_to_be_had_is_asked_for_less_and_less():
    lanes = seen(("acme", 0))
    waits = []
    for _ in range(12):
        lanes.choose(10)
        lanes.claimed([LaneEdge("acme", 0, NOW, 0)], {("acme", 0): None}, 0.001)
        waits.append(round(lanes.due_in, 2))
        lanes.looked([Lane("acme", 0, ready=True, due_in=0.0)], 0.0)
    assert waits[0] == 0
    assert waits[1] < 0.02 < waits[5]
    assert waits == sorted(waits)
    assert waits[-1] == LOCKED_MOST
    lanes.tapped("acme")
    lanes.claimed([LaneEdge("acme", 0, NOW, 0)], {("acme", 0): None}, 0.001)
    assert lanes.due_in == 0


def test_a_lane_that_a_full_claim_did_not_reach_stays_ready():
    lanes = seen(("acme", 0), ("acme", 9))
    for _ in range(AGING - 1):
        chosen, _ = lanes.choose(10)
        assert [key[1] for key in chosen] == [0, 9]
        lanes.claimed([LaneEdge("acme", 0, NOW, 10), LaneEdge("acme", 9, None, 0)], {k[:2]: k[2] for k in chosen}, 0.01)
    chosen, _ = lanes.choose(10)
    assert [key[1] for key in chosen] == [9, 0]


def test_a_lane_that_was_reached_and_gave_nothing_is_not_asked_again():
    lanes = seen(("acme", 0), ("acme", 9))
    lanes.choose(10)
    edges = [LaneEdge("acme", 0, NOW, 3), LaneEdge("acme", 9, NOW, 0)]
    lanes.claimed(edges, {("acme", 0): None, ("acme", 9): None}, 0.01)
    assert [key[1] for key in lanes.choose(10)[0]] == [0]
