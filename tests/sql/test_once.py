"""The ledger of effects: true for the first, false after, until its time has passed."""

from datetime import timedelta

import pytest


def test_the_first_is_true_and_all_after_it_are_false(pg):
    assert [pg.value("once", key="evt_1") for _ in range(3)] == [True, False, False]


def test_a_key_is_one_of_its_tenant_and_scope(pg):
    assert pg.value("once", key="k")
    assert pg.value("once", key="k", scope="stripe")
    assert pg.value("once", key="k", tenant="acme")
    assert not pg.value("once", key="k", scope="stripe")


def test_a_key_of_once_is_none_of_a_message(pg):
    assert pg.value("once", key="k", scope="q")
    assert pg.row("enqueue", queue="q", payload=1, dedup_key="k").deduplicated is False


def test_after_its_time_a_key_is_new_again(pg, clock):
    assert pg.value("once", key="k", keep=timedelta(minutes=5))
    clock.advance(299)
    assert not pg.value("once", key="k")
    clock.advance(1)
    assert pg.value("once", key="k")


def test_a_key_is_kept_for_thirty_days_and_then_swept(pg, clock):
    assert pg.value("once", key="k")
    clock.advance(30 * 86_400 - 1)
    pg.rows("sweep", step="seen")
    assert not pg.value("once", key="k")
    clock.advance(1)
    pg.rows("sweep", step="seen")
    assert pg.query("select 1 from postrow.seen") == []


def test_a_rollback_frees_the_key(pg):
    pg.query("savepoint s")
    assert pg.value("once", key="k")
    pg.query("rollback to s")
    assert pg.value("once", key="k")


@pytest.mark.parametrize(
    ("arguments", "sqlstate"),
    [
        ({"key": ""}, "PW003"),
        ({"key": None}, "PW003"),
        ({"key": "x" * 501}, "PW003"),
        ({"key": "k", "scope": None}, "PW003"),
        ({"key": "k", "scope": "x" * 201}, "PW003"),
        ({"key": "k", "keep": timedelta(0)}, "PW003"),
        ({"key": "k", "keep": None}, "PW003"),
        ({"key": "k", "tenant": "no good"}, "PW002"),
    ],
)
def test_bad_arguments_are_refused(pg, arguments, sqlstate):
    assert pg.refused("once", **arguments).sqlstate == sqlstate
