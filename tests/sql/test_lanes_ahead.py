"""Lanes without what lies before their watermarks: a discovery that dead entries do not slow."""

import random
from datetime import timedelta

import pytest


def ahead(pg, marks, **options):
    """The lanes that are found, with marks as (tenant, priority, after)."""
    tenants, priorities, afters = (list(column) for column in zip(*marks, strict=True)) if marks else ([], [], [])
    found = pg.rows("lanes_ahead", queue="q", tenants=tenants, priorities=priorities, afters=afters, **options)
    return [tuple(row) for row in found]


@pytest.fixture
def due(pg, clock):
    """Puts a message of each of these lanes (tenant, priority), and gives when they were due; a second passes."""

    def put(*lanes):
        at = clock.now
        for tenant, priority in lanes:
            pg.put(tenant=tenant, priority=priority)
        clock.advance(1)
        return at

    return put


def test_what_lies_before_a_watermark_is_passed_by_and_what_lies_at_it_is_not(pg, clock, due):
    old = due(("a", 0), ("b", 0), ("c", 0))
    new = due(("b", 0))
    assert ahead(pg, [("a", 0, new), ("b", 0, new), ("c", 0, old)]) == [("b", 0, True, new), ("c", 0, True, old)]


def test_lanes_without_a_watermark_are_found_before_between_and_behind_those_with_one(pg, clock, due):
    old = due(*((tenant, priority) for tenant in "abcd" for priority in (-1, 0, 5)))
    found = ahead(pg, [("b", 0, clock.now), ("c", -1, clock.now), ("c", 0, clock.now)])
    assert {lane[3] for lane in found} == {old}
    assert [lane[:2] for lane in found] == [
        (tenant, priority)
        for tenant in "abcd"
        for priority in (-1, 0, 5)
        if (tenant, priority) not in {("b", 0), ("c", -1), ("c", 0)}
    ]


def test_without_others_only_lanes_with_a_watermark_are_found_and_what_is_targeted(pg, clock, due):
    old = due(*((tenant, priority) for tenant in "abcd" for priority in (-1, 0, 5)))
    pg.put(tenant="a", target="laptop")
    marks = [("b", 0, old), ("c", -1, clock.now), ("c", 0, old), ("none", 0, old)]
    found = ahead(pg, marks, worker="laptop", others=False)
    assert found == [("a", 0, True, clock.now), ("b", 0, True, old), ("c", 0, True, old)]


@pytest.mark.parametrize("after", [None, "-infinity"])
def test_without_watermarks_or_with_ones_at_the_beginning_it_finds_what_lanes_finds(pg, due, after):
    due(("a", 0), ("b", 3), ("Z_", 0), ("Z", 0), ("zz", 32_767), ("0", -32_768))
    every = [tuple(row) for row in pg.rows("lanes", queue="q")]
    assert len(every) == 6
    assert ahead(pg, []) == ahead(pg, [("a", 0, after), ("b", 3, after), ("none", 0, after)]) == every


def test_a_watermark_ahead_of_the_clock_does_not_count(pg, clock, due):
    old = due(("a", 0))
    assert ahead(pg, [("a", 0, clock.now + timedelta(minutes=1))]) == [("a", 0, True, old)]


def test_what_is_scheduled_is_told_with_when_it_is_due(pg, clock):
    pg.put(delay=timedelta(seconds=5))
    assert ahead(pg, [("default", 0, clock.now)]) == [("default", 0, False, clock.now + timedelta(seconds=5))]


def test_messages_for_the_worker_count_and_those_for_others_do_not(pg, clock):
    pg.put(tenant="a", target="laptop")
    pg.put(tenant="b", target="other")
    assert ahead(pg, [("a", 0, clock.now)], worker="laptop") == [("a", 0, True, clock.now)]
    assert ahead(pg, [("a", 0, clock.now)]) == []


def test_paused_tenants_and_queues_have_none(pg, clock, due):
    due(("a", 0), ("b", 0))
    marks = [("a", 0, clock.now - timedelta(seconds=9))]
    pg.rows("pause", tenant="a")
    assert [lane[0] for lane in ahead(pg, marks)] == ["b"]
    pg.rows("pause", queue="q")
    assert ahead(pg, marks) == []


def test_the_order_of_the_watermarks_does_not_matter(pg, clock, due):
    due(*((f"t{n}", n % 3) for n in range(30)))
    marks = [(f"t{n}", n % 3, clock.now) for n in range(0, 30, 2)]
    random.shuffle(marks)
    assert {lane[0] for lane in ahead(pg, marks)} == {f"t{n}" for n in range(1, 30, 2)}


def test_lists_of_different_lengths_are_refused(pg, clock):
    lists = {"tenants": ["a", "b"], "priorities": [0, 0], "afters": [clock.now] * 2}
    for name, values in lists.items():
        error = pg.refused("lanes_ahead", queue="q", **lists | {name: values[:1]})
        assert error.sqlstate == "PW003"
