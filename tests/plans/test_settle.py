"""ack, fail, bury, release, extend and the sweep of leases read as much as they settle, whatever the statistics say."""

import uuid

import pytest

pytestmark = pytest.mark.plan

THREE = "%(tenants)s, %(ids)s, %(tokens)s"
SETTLES = {
    "ack": f"ack({THREE})",
    "ack without waiting": f"ack({THREE}, wait => false)",
    "fail": f"fail({THREE}, %(tenants)s)",
    "bury": f"bury({THREE}, %(tenants)s)",
    "release": f"release({THREE})",
    "extend": f"extend({THREE}, '1 day')",
}
AT_PLACES = f"ack_at({THREE}, %(places)s)"
every_settlement = pytest.mark.parametrize("call", SETTLES.values(), ids=SETTLES)


@every_settlement
def test_a_settlement_of_a_batch(full, call):
    work = full.measure(call, full.claimed(100))
    assert work.given == 100
    work.assert_in_proportion(100)


@every_settlement
def test_a_settlement_of_a_batch_with_a_stale_one_in_it(full, call):
    held = full.claimed(100)
    held["tokens"][50] = uuid.uuid4()
    work = full.measure(call, held)
    assert work.given == 100
    work.assert_in_proportion(100)


@every_settlement
def test_a_settlement_with_the_statistics_of_a_table_that_was_full(emptied, call):
    work = emptied.measure(call, emptied.claimed(50))
    assert work.given == 50
    work.assert_in_proportion(50)


def test_an_ack_of_a_batch_by_its_places(full):
    work = full.measure(AT_PLACES, full.claimed(100))
    assert work.given == 0, "all were accepted"
    work.assert_in_proportion(100)


@pytest.mark.parametrize("elsewhere", ["(0,1)", "(4000000,1)"])
def test_an_ack_by_places_of_a_batch_that_has_moved(full, elsewhere):
    held = full.claimed(100)
    work = full.measure(AT_PLACES, held | {"places": [elsewhere] * 100})
    assert work.given == 0
    work.assert_in_proportion(100)


def test_an_ack_by_places_with_a_stale_one_in_it(full):
    held = full.claimed(100)
    held["tokens"][50] = uuid.uuid4()
    work = full.measure(AT_PLACES, held)
    assert work.given == 1
    work.assert_in_proportion(100)


def test_an_ack_by_places_with_the_statistics_of_a_table_that_was_full(emptied):
    work = emptied.measure(AT_PLACES, emptied.claimed(50))
    assert work.given == 0
    work.assert_in_proportion(50)


def test_the_sweep_of_leases(full):
    work = full.measure("sweep('leases', 100)")
    work.assert_in_proportion(100)
    assert work.rows > 100, "it found what it should sweep"


STEPS = ["leases", "expired", "targets", "groups", "dead", "seen", "workers"]  # history reads the catalog


@pytest.mark.parametrize("step", STEPS[1:])
def test_a_step_of_the_sweep_that_finds_nothing_reads_next_to_nothing(full, emptied, step):
    for plans in (full, emptied):
        plans.measure(f"sweep('{step}', 100)").assert_in_proportion(0)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_the_sweep_reads_no_dead_rows_twice(dead_rows, step):
    """A look at leases from the beginning does, so it is not the first."""
    dead_rows.measure(f"sweep('{step}', 100)")
    dead_rows.measure(f"sweep('{step}', 100)").assert_in_proportion(0)


def test_the_sweep_of_leases_with_the_statistics_of_a_table_that_was_full(emptied):
    work = emptied.measure("sweep('leases', 50)")
    work.assert_in_proportion(50)
    assert work.rows > 50
