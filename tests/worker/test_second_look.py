"""When a worker looks again after a tap."""

import itertools
import math

import pytest

from postrow.worker import second_look
from postrow.worker.second_look import FAR, NEAR, SHARE, SHARE_OF_WAY, SecondLook


class Time:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def at(monkeypatch):
    """The time, which a test moves."""
    it = Time()
    monkeypatch.setattr(second_look, "time", it)
    return it


@pytest.fixture
def look(at):
    assert at
    return SecondLook(1.0)


def times(look, at, *, kept_back=lambda: False, until=60.0):
    """The moments of all looks that are owed, from now."""
    began, found = at.now, []
    while look.due_at < began + until:
        at.now = max(at.now, look.due_at)
        found.append(round(at.now - began, 3))
        look.looks(kept_back=kept_back(), asked_at=at.now)
    return found


def test_without_a_tap_none_is_owed(look):
    assert look.due_at == math.inf


def test_after_a_tap_there_is_a_near_and_a_far_one(look, at):
    look.heard()
    assert times(look, at) == [NEAR, FAR]
    assert look.due_at == math.inf


def test_a_stream_of_taps_puts_no_near_look_off(look, at):
    found = []
    began = at.now
    for n in range(1000):
        at.now = began + n * 0.001
        look.heard()
        if look.due_at <= at.now:
            found.append(at.now)
            look.looks(kept_back=False, asked_at=at.now)
    assert 48 <= len(found) <= 56
    assert times(look, at)[-1] == FAR


@pytest.mark.parametrize("kept_back", [False, True])
def test_a_tap_that_is_heard_while_a_look_asks_for_open_transactions_is_owed_a_near_look_too(look, at, kept_back):
    look.heard()
    asked_at = at.now = look.due_at
    at.now += 0.001
    look.heard()
    heard_at = at.now
    at.now += 0.002
    look.looks(kept_back=kept_back, asked_at=asked_at)
    assert look.due_at == heard_at + NEAR


def test_while_a_transaction_that_kept_its_tap_back_is_open_the_pauses_double_up_to_the_poll_interval(look, at):
    look.heard()
    open_until = at.now + 4.0
    found = times(look, at, kept_back=lambda: at.now < open_until)
    pauses = [later - sooner for sooner, later in itertools.pairwise(found)]
    assert max(pauses) < 1.001
    assert found[-1] >= 4.0
    assert len(found) < 14


def test_the_look_after_such_a_transaction_comes_no_later_than_twice_the_time_it_was_open(look, at):
    for open_for in (0.02, 0.05, 0.1, 0.3, 0.6):
        look.heard()
        open_until = at.now + open_for
        found = times(look, at, kept_back=lambda open_until=open_until: at.now < open_until)
        assert min(moment for moment in found if moment >= open_for) <= max(2 * open_for + NEAR, FAR)
        at.now += 10


def test_slow_discoveries_make_looks_rare(look, at):
    look.heard()
    look.took(0.05)
    assert look.due_at == at.now + SHARE * 0.05


def test_looks_at_a_far_database_leave_three_quarters_of_the_connections_time(look, at):
    look.heard()
    look.took(0.0, on_the_way=0.1)
    assert look.due_at == at.now + SHARE_OF_WAY * 0.1


def test_of_many_workers_most_look_later_and_each_does(at):
    first, last = [], []
    for _ in range(200):
        look = SecondLook(1.0)
        look.fleet = 40
        look.looks(kept_back=False, asked_at=at.now)
        look.heard()
        found = times(look, at)
        first.append(found[0])
        last.append(found[-1])
    assert NEAR <= min(first) < 2 * NEAR
    assert max(first) <= 10 * NEAR + 0.001
    assert 4 * NEAR < sum(first) / 200 < 7 * NEAR
    assert min(last) >= FAR
    assert max(last) <= 10 * FAR + 0.001


def test_four_workers_look_as_soon_as_one(look, at):
    look.fleet = 4
    look.looks(kept_back=False, asked_at=at.now)
    look.heard()
    assert times(look, at) == [NEAR, FAR]


def test_many_workers_rest_for_each_other_ten_seconds_at_most(look, at):
    look.fleet = 8
    look.heard()
    look.took(0.03)
    assert look.due_at == pytest.approx(at.now + 0.03 * SHARE * 8)
    look.took(0.3)
    assert look.due_at == pytest.approx(at.now + 10)
    look.took(1.0)
    assert look.due_at == pytest.approx(at.now + SHARE)
