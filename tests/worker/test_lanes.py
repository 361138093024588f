"""What a worker remembers of lanes: priorities in turn, and what is ready and yet not to be had."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from postrow.models import Lane, LaneEdge
from postrow.worker import lanes as lanes_module
from postrow.worker import look_back as look_back_module
from postrow.worker.lanes import AGING, CLAIMED_IN, DEEP_EVERY, LOCKED_MOST, MOST_LANES, WHOLE_EVERY, Lanes

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def monotonic(monkeypatch):
    """The clock of the lanes, which stands still; a test moves its `now`."""
    clock = SimpleNamespace(now=1000.0)
    clock.monotonic = lambda: clock.now
    for module in (lanes_module, look_back_module):
        monkeypatch.setattr(module, "time", clock)
    return clock


def looked_back(lanes, found, took, back=None):
    """A discovery beside the claims, of one page that took so many seconds, has ended; `back`: it had begun before."""
    back = back or lanes.look_back()
    back.read(len(found), took)
    lanes.saw_back(found, took)
    lanes.looked_back(back)


def seen(*lanes):
    found = Lanes()
    found.looked([Lane(tenant, priority, ready=True, due_in=0.0) for tenant, priority in lanes], 0.0)
    return found


def claim(lanes, limit, **waiting):
    """One claim of lanes of priority 0 with so many messages: what each tenant gave."""
    chosen, per_lane = lanes.choose(limit)
    edges, left = [], limit
    for tenant, priority, _ in chosen:
        taken = min(waiting[tenant], per_lane, left)
        edges.append(LaneEdge(tenant, priority, NOW if left else None, taken))
        left -= taken
    lanes.claimed(edges, dict.fromkeys((tenant, priority) for tenant, priority, _ in chosen), 0.001)
    return {edge.tenant: edge.taken for edge in edges}


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
    lanes.choose(10)
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


def test_without_lanes_there_is_nothing_to_choose():
    assert Lanes().choose(100)[0] == []


def test_what_lanes_with_few_messages_leave_goes_to_those_with_a_backlog():
    lanes = seen(("big", 0), ("large", 0), ("quiet", 0), ("still", 0))
    assert claim(lanes, 100, big=1000, large=1000, quiet=1, still=1) == {"big": 25, "large": 25, "quiet": 1, "still": 1}
    assert lanes.more
    assert claim(lanes, 100, big=1000, large=1000, quiet=1, still=1) == {"big": 49, "large": 49, "quiet": 1, "still": 1}


def test_a_lane_with_a_backlog_comes_after_those_with_few_messages():
    lanes = seen(*[(f"quiet{n}", 0) for n in range(20)], ("big", 0))
    quiet = dict.fromkeys((f"quiet{n}" for n in range(20)), 1)
    for _ in range(10):
        claim(lanes, 100, big=1000, **quiet)
        assert lanes.choose(100)[0][-1][0] == "big"


def test_a_lane_with_a_backlog_is_not_starved_by_very_many_with_few_messages():
    quiet = dict.fromkeys((f"quiet{n}" for n in range(MOST_LANES)), 1)
    lanes = seen(*[(tenant, 0) for tenant in quiet], ("big", 0))
    claim(lanes, 500, big=1000, **quiet)  # who has few is known now
    assert any("big" in claim(lanes, 500, big=1000, **quiet) for _ in range(3))


def test_a_backlog_of_a_lower_priority_fills_what_the_first_leaves():
    lanes = seen(("acme", 0), ("beta", 0), ("acme", 9))
    lanes.choose(100)
    edges = [LaneEdge("acme", 0, NOW, 3), LaneEdge("beta", 0, NOW, 3), LaneEdge("acme", 9, NOW, 50)]
    lanes.claimed(edges, {("acme", 0): None, ("beta", 0): None, ("acme", 9): None}, 0.001)
    assert lanes.choose(100)[1] == 94


def test_a_tap_while_a_discovery_runs_still_holds():
    lanes = seen(("acme", 0), ("beta", 0))
    claim(lanes, 100, acme=1, beta=1)
    lanes.tapped("acme")  # its commit is not in what the discovery saw
    lanes.looked([Lane("beta", 0, ready=True, due_in=0.0)], 1.0)
    assert {key[0] for key in lanes.choose(100)[0]} == {"acme", "beta"}


def test_a_tap_while_a_discovery_is_on_its_way_there_or_back_still_holds():
    lanes = seen(("acme", 0), ("beta", 0))
    claim(lanes, 100, acme=1, beta=1)
    lanes.tapped("acme")
    lanes.looked([Lane("beta", 0, ready=True, due_in=0.0)], 0.0, on_the_way=1.0)
    assert {key[0] for key in lanes.choose(100)[0]} == {"acme", "beta"}


def test_a_tap_of_an_unknown_tenant_while_a_discovery_runs_asks_for_another():
    lanes = seen(("acme", 0))
    lanes.tapped("new")
    lanes.looked([Lane("acme", 0, ready=True, due_in=0.0)], 1.0)
    assert lanes.wants_look
    lanes.looked([Lane("acme", 0, ready=True, due_in=0.0)], 0.0)
    assert not lanes.wants_look


def test_a_tap_while_a_claim_runs_that_gives_nothing_still_holds():
    lanes = seen(("acme", 0), ("beta", 0))
    lanes.choose(100)
    lanes.tapped("acme")
    edges = [LaneEdge("acme", 0, NOW, 0), LaneEdge("beta", 0, NOW, 0)]
    lanes.claimed(edges, {("acme", 0): None, ("beta", 0): None}, 0.001)
    assert [key[0] for key in lanes.choose(100)[0]] == ["acme"]


@pytest.mark.parametrize(("workers", "wait"), [(1, 0.25), (10, 2.0), (64, 9.98)])
def test_the_discoveries_of_all_workers_together_take_a_twentieth_of_the_time(monotonic, workers, wait):
    lanes = Lanes()
    lanes.fleet = workers
    lanes.looked([Lane("acme", 0, ready=True, due_in=0.0)], 0.01)
    monotonic.now += wait - 0.001
    assert not lanes.wants_look
    monotonic.now += 0.002
    assert lanes.wants_look
    lanes.forget()
    assert lanes.fleet == workers


@pytest.mark.parametrize(("on_the_way", "wait"), [(0.001, 0.25), (0.1, 2.0), (3.0, 4.0)])
def test_discoveries_of_a_far_database_take_a_twentieth_of_this_workers_time(monotonic, on_the_way, wait):
    lanes = marked("acme")
    lanes.fleet = 10
    monotonic.now += 100
    lanes.looked([Lane("acme", 0, ready=True, due_in=0.0)], 0.0, on_the_way=on_the_way)
    assert not lanes.marks
    monotonic.now += wait - 0.001
    assert not lanes.wants_look
    monotonic.now += 0.002
    assert lanes.wants_look


@pytest.mark.parametrize("took", [0.0, 0.001, 0.05, 0.4, 1.0, 3.0])
def test_the_next_discovery_and_the_claim_that_it_leads_to_end_within_ten_seconds(monkeypatch, took):
    """It is due in twenty times what the last one took, a twentieth of the time; but late messages come first."""
    now = [1000.0]
    monkeypatch.setattr(lanes_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    lanes = Lanes()
    lanes.looked([Lane("acme", 0, ready=True, due_in=0.0)], took)
    while not lanes.wants_look:
        now[0] += 0.01
    waited = now[0] - 1000
    assert waited + 2 * took <= DEEP_EVERY + 0.01
    assert waited >= min(20 * took, DEEP_EVERY - 2 * took) - 0.01
    assert waited >= min(0.25, DEEP_EVERY) - 0.01


def slow(lanes, frontier, **options):
    """A claim of lane (acme, 0) that was slow and gave `frontier`: where it began."""
    ((tenant, priority, after),), _ = lanes.choose(10)
    lanes.claimed([LaneEdge(tenant, priority, frontier, 1)], {(tenant, priority): after}, 1.0, **options)
    return after


def test_watermarks_are_used_from_the_third_slow_claim_on_and_assigned_by_each():
    lanes = seen(("acme", 0))
    slow(lanes, NOW, grouped=False)  # what is slow is judged by the best so far, which this one is
    lanes._best = 0.0
    marks = [NOW + timedelta(seconds=n) for n in (3, 1, 2)]
    began = [slow(lanes, mark) for mark in marks]
    assert began == [None, None, marks[1]]  # it may go back
    assert slow(lanes, NOW) == marks[2]


def marked(*tenants):
    """Lanes of which each has had three slow claims, and a watermark at NOW."""
    lanes = seen(*((tenant, 0) for tenant in tenants))
    lanes._best = 0.0
    for _ in range(3):
        chosen, _ = lanes.choose(100)
        edges = [LaneEdge(tenant, priority, NOW, 1) for tenant, priority, _ in chosen]
        lanes.claimed(edges, {lane[:2]: lane[2] for lane in chosen}, 1.0)
    assert {lane[2] for lane in lanes.choose(100)[0]} == {NOW}
    return lanes


def first(tenant, seconds, *, ready=True):
    """A lane as a discovery saw it, whose first message is due so many seconds after NOW."""
    return Lane(tenant, 0, ready=ready, due_in=0.0, due_at=NOW + timedelta(seconds=seconds))


@pytest.mark.parametrize(("due", "anew"), [(-5, True), (-0.001, True), (0, False), (1, False), (None, False)])
def test_a_lane_whose_first_message_is_due_before_its_watermark_is_claimed_from_there_once(due, anew):
    lanes = marked("acme")
    due_at = None if due is None else NOW + timedelta(seconds=due)
    lanes.looked([Lane("acme", 0, ready=True, due_in=0.0, due_at=due_at)], 0.0)
    assert slow(lanes, NOW) == (due_at if anew else NOW)
    assert slow(lanes, NOW) == NOW


def test_what_is_late_is_asked_for_until_a_claim_has_reached_the_lane():
    lanes = marked("acme")
    lanes.looked([first("acme", -9), first("big", -9)], 0.0)
    for _ in range(3):  # those of another lane fill the claims
        chosen, _ = lanes.choose(10)
        asked = {key[:2]: key[2] for key in chosen}
        assert asked["acme", 0] == NOW - timedelta(seconds=9)
        edges = {"acme": LaneEdge("acme", 0, asked["acme", 0], 0), "big": LaneEdge("big", 0, NOW, 10)}
        lanes.claimed([edges["big"], edges["acme"]], asked, 1.0)


SLOW = 1.0  # seconds of a discovery, of which each lane had much to walk


def test_after_a_slow_discovery_the_next_begin_at_the_watermarks_and_claims_go_on_beside_those_that_do_not():
    lanes = marked("acme", "beta")
    lanes.looked([first("acme", 1)], 0.0)
    assert (lanes.marks, lanes.wants_look_back) == ([], False)
    lanes.looked([first("acme", 1)], SLOW)
    assert sorted(lanes.marks) == [("acme", 0, NOW), ("beta", 0, NOW)]


def test_a_look_back_that_may_not_begin_keeps_nobody_awake(monotonic):
    lanes = marked("acme")
    lanes.looked([first("acme", 1), Lane("acme", 1, ready=False, due_in=20.0)], SLOW)
    monotonic.now += DEEP_EVERY
    assert (lanes.wants_look_back, lanes.due_in, lanes.message_due_in) == (True, 0.0, 10.0)


@pytest.mark.parametrize("took", [0.05, 0.4, 1.0, 3.0])
def test_looks_back_take_a_twentieth_of_the_time_and_end_within_ten_seconds_with_the_claim(monotonic, took):
    lanes = marked("acme")
    lanes.looked([first("acme", 1)], took)
    for asked in (True, False, True):
        ended = monotonic.now
        if asked:
            lanes.look_again()
        while not lanes.wants_look_back:
            assert lanes.due_in <= DEEP_EVERY
            monotonic.now += 0.01
        waited = monotonic.now - ended
        assert waited >= min(20 * took if asked else DEEP_EVERY, DEEP_EVERY - CLAIMED_IN - 2 * took) - 0.02
        assert waited + 2 * took <= DEEP_EVERY - CLAIMED_IN + 0.02
        back = lanes.look_back()
        assert not lanes.wants_look_back
        monotonic.now += took
        looked_back(lanes, [first("acme", 1)], took, back)


def test_a_look_back_is_heeded_where_claims_and_other_discoveries_cannot_have_seen_the_same():
    lanes = marked("acme", "beta", "carl")
    lanes.looked([], SLOW)
    lanes.tapped("acme")
    looked_back(lanes, [first("beta", -5), first("carl", 1), first("dora", 1)], SLOW)
    chosen = {tenant: after for tenant, _, after in lanes.choose(100)[0]}
    assert chosen == {"acme": NOW, "beta": NOW - timedelta(seconds=5), "dora": None}


def test_what_a_look_back_found_late_a_discovery_does_not_drop_before_it_is_claimed():
    lanes = marked("acme", "beta")
    lanes.looked([], SLOW)
    looked_back(lanes, [first("acme", -5)], SLOW)
    assert sorted(lanes.marks) == [("acme", 0, NOW - timedelta(seconds=5)), ("beta", 0, NOW)]


@pytest.mark.parametrize("began", [NOW, None], ids=["at the watermark", "at the beginning"])
def test_a_claim_that_was_under_way_when_a_look_back_found_what_is_late_has_not_seen_it(monotonic, began):
    lanes = marked("acme")
    lanes.looked([first("acme", 1)], SLOW)
    if began is None:
        monotonic.now += DEEP_EVERY
    assert lanes.choose(10)[0] == [("acme", 0, began)]
    monotonic.now += 0.1
    looked_back(lanes, [first("acme", -5)], 0.05)
    lanes.claimed([LaneEdge("acme", 0, NOW, 1)], {("acme", 0): began}, 1.0)
    assert lanes.choose(10)[0] == [("acme", 0, NOW - timedelta(seconds=5))]


def test_a_discovery_that_was_under_way_when_a_look_back_found_what_is_late_does_not_drop_it(monotonic):
    lanes = marked("acme", "beta")
    lanes.looked([], SLOW)
    monotonic.now += 0.1  # it begins, at the watermarks
    looked_back(lanes, [first("acme", -5)], 0.15)
    monotonic.now += 0.1
    lanes.looked([first("beta", 1)], 0.1, deep=False)
    assert sorted(lanes.choose(10)[0]) == [("acme", 0, NOW - timedelta(seconds=5)), ("beta", 0, NOW)]


def test_nor_does_a_claim_at_the_watermark_that_gave_nothing(monotonic):
    lanes = marked("acme", "beta")
    lanes.looked([first("acme", 1), first("beta", 1)], SLOW)
    monotonic.now += 1
    asked = {lane[:2]: lane[2] for lane in lanes.choose(10)[0]}
    monotonic.now += 0.1
    looked_back(lanes, [first("acme", -5)], 0.05)
    lanes.claimed([LaneEdge("acme", 0, NOW, 0), LaneEdge("beta", 0, NOW, 1)], asked, 1.0)
    assert sorted(lanes.choose(10)[0]) == [("acme", 0, NOW - timedelta(seconds=5)), ("beta", 0, NOW)]


def test_claims_need_not_begin_at_the_beginning_while_slow_discoveries_do(monotonic):
    lanes = marked("acme")
    lanes.looked([first("acme", 1)], SLOW)
    for _ in range(3):
        monotonic.now += DEEP_EVERY - 3
        assert slow(lanes, NOW) == NOW
        back = lanes.look_back()
        monotonic.now += 2
        assert slow(lanes, NOW) == NOW
        looked_back(lanes, [first("acme", 1)], 2.0, back)
    monotonic.now += DEEP_EVERY
    assert slow(lanes, NOW) is None  # none has come


def test_when_a_look_back_was_quick_claims_and_discoveries_begin_at_the_beginning_again(monotonic):
    lanes = marked("acme")
    lanes.looked([first("acme", 1)], SLOW)
    monotonic.now += DEEP_EVERY
    looked_back(lanes, [first("acme", 1)], 0.001)
    assert lanes.marks == []
    assert not lanes.wants_look_back
    assert slow(lanes, NOW) is None


@pytest.mark.parametrize("a_lane", [0.002, 0.006, 0.01])
def test_a_slow_look_back_is_spread_over_seconds_and_shows_each_lane_again_within_ten_with_the_claim(monotonic, a_lane):
    """Of 200 lanes, each of which takes so long."""
    names = [f"t{n:03}" for n in range(200)]
    lanes = marked(*names)
    seen_at = dict.fromkeys(names, monotonic.now)
    monotonic.now += 200 * a_lane
    lanes.looked([first(name, 1) for name in names], 200 * a_lane)
    for turn in range(5):
        lanes.look_again()
        while not lanes.wants_look_back:
            monotonic.now += 0.01
        back, began, read, rests = lanes.look_back(), monotonic.now, [], 0.0
        for after, to in back.stretches():
            monotonic.now += rests
            page = [name for name in names if (after is None or name > after) and (to is None or name <= to)]
            snapshot, took = monotonic.now, len(page) * a_lane
            monotonic.now += took
            lanes.saw_back([first(name, 1) for name in page[::7]], took)
            rests = back.read(len(page[::7]), took)
            for name in page:
                assert monotonic.now - seen_at[name] <= DEEP_EVERY - CLAIMED_IN / 4 * (turn > 1)
                seen_at[name] = snapshot
            read += page
            if turn > 1 and a_lane == 0.002:
                assert rests == pytest.approx(3 * took)  # a quarter of the time
        lanes.looked_back(back)
        assert read == names
        if turn > 1:
            assert back.longest <= 0.04
            assert monotonic.now - began <= max(6, 200 * a_lane) + 0.1
    assert lanes.marks


def test_quick_pages_grow_and_are_not_slow(monotonic):
    lanes = marked("acme", *(f"t{n:03}" for n in range(200)))
    lanes.looked([], 2.0)
    back = lanes.look_back()
    pages = [back.read(1, 0.001) for _ in back.stretches()]
    assert pages == [0.002] * 7  # 3 tenants, 6, 12 ...
    lanes.looked_back(back)
    assert lanes.marks == []


def test_pages_are_all_there_is_whatever_tenants_are_known():
    for known in ([], ["m"], ["a", "m"], ["a", "b", "m", "z"]):
        back = look_back_module.LookBack(known, 60.0)
        pages = []
        for page in back.stretches():
            back.read(0, 1.0)
            pages.append(page)
        ends = sorted(known)[:-1]
        assert pages == list(zip([None, *ends], [*ends, None], strict=True))


def test_discoveries_from_the_watermarks_leave_other_lanes_out_but_for_one_a_second(monotonic):
    lanes = marked("acme", "beta")
    assert lanes.wants_whole_look, "from the beginnings"
    lanes.looked([], 0.1)
    lanes.look_again(whole=False)
    assert not lanes.wants_whole_look
    monotonic.now += WHOLE_EVERY
    assert lanes.wants_whole_look
    lanes.looked([], 0.01, deep=False)
    assert not lanes.wants_whole_look

    lanes.look_again()
    assert lanes.wants_whole_look, "asked for"
    monotonic.now += 0.01
    lanes.looked([], 0.01, deep=False)
    assert lanes.wants_whole_look, "asked for as one began"
    monotonic.now += 0.02
    lanes.looked([], 0.01, deep=False)
    assert not lanes.wants_whole_look
    lanes.tapped("new")
    assert lanes.wants_whole_look, "a tenant that is not known"


def test_a_discovery_without_other_lanes_says_nothing_of_them(monotonic):
    lanes = marked("acme", "beta")
    lanes.looked([first("acme", 1), Lane("later", 0, ready=False, due_in=5.0), first("new", 0)], 0.1)
    monotonic.now += 0.1
    lanes.looked([first("beta", 1)], 0.01, deep=False, whole=False)
    assert {lane[0] for lane in lanes.choose(10)[0]} == {"beta", "new"}
    assert lanes.due_in == pytest.approx(4.9)
    monotonic.now += 4.95
    assert lanes.wants_whole_look, "what was scheduled is due"


def test_after_a_look_back_that_failed_the_next_is_between_claims():
    lanes = marked("acme")
    lanes.looked([first("acme", 1)], SLOW)
    lanes.look_back()
    lanes.look_back_failed()
    assert lanes.wants_look
    assert lanes.marks == []


def test_a_reconnect_forgets_watermarks():
    lanes = seen(("acme", 0))
    lanes._best = 0.0
    for _ in range(3):
        slow(lanes, NOW)
    lanes.forget()
    lanes.looked([Lane("acme", 0, ready=True, due_in=0.0)], 0.0)
    assert slow(lanes, NOW) is None
