"""Deduplication by a key: for a time after the enqueue, while its message waits, or while it lives."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

HOUR = timedelta(hours=1)


def put(pg, payload=1, **options):
    return pg.row("enqueue", queue=options.pop("queue", "q"), payload=payload, dedup_key="k", **options)


def test_a_key_that_waits_swallows_what_comes_after_it(pg):
    first = put(pg, "first")
    assert put(pg, "second") == (first.id, True)
    assert pg.find("message", first.id).payload == "first"
    assert pg.find("message", first.id).dedup_key == "k"
    assert pg.value("depth", queue="q") == 1


def test_a_claimed_one_runs_already_so_another_is_enqueued(pg):
    first = put(pg)
    pg.take()
    second = put(pg)
    assert (second.deduplicated, second.id != first.id) == (False, True)
    assert put(pg) == (second.id, True)
    assert pg.value("depth", queue="q") == 2


def state_scheduled(pg):
    return put(pg, delay=HOUR)


def state_retrying(pg):
    first = put(pg)
    pg.settle("fail", pg.take(), errors=["x"])
    return first


def state_released(pg):
    first = put(pg)
    pg.settle("release", pg.take())
    return first


def state_claimed(pg):
    first = put(pg)
    pg.take()
    return first


def state_done(pg):
    first = put(pg)
    pg.settle("ack", pg.take())
    return first


def state_dead(pg):
    first = put(pg)
    pg.settle("bury", pg.take(), reasons=["x"])
    return first


def state_expired(pg):
    first = put(pg, expires_at=pg.value("clock") + HOUR)
    pg.query("update postrow.message set expires_at = postrow.clock() - interval '1 s'")
    return first


def state_deleted(pg):
    first = put(pg)
    pg.query("delete from postrow.message")
    return first


STATES = [
    # state, swallowed while waiting, while alive
    (state_scheduled, True, True),
    (state_retrying, True, True),
    (state_released, True, True),
    (state_claimed, False, True),
    (state_done, False, False),
    (state_dead, False, False),
    (state_expired, False, False),
    (state_deleted, False, False),
]


@pytest.mark.parametrize(("state", "waiting", "alive"), STATES, ids=[state.__name__ for state, *_ in STATES])
def test_what_each_rule_swallows_in_each_state(pg, state, waiting, alive):
    first = state(pg)
    for rule, swallowed in (("alive", alive), ("waiting", waiting)):
        with_rule = put(pg, dedup_while=rule)
        assert with_rule.deduplicated == swallowed, rule
        assert (with_rule.id == first.id) == swallowed
        if not swallowed:
            break  # the key stands for the new one now


def test_within_its_time_a_key_swallows_whatever_became_of_its_message(pg, clock):
    first = put(pg, dedup_for=HOUR)
    clock.advance(3599)
    assert put(pg, dedup_for=HOUR) == (first.id, True)
    pg.settle("ack", pg.take())
    assert put(pg, dedup_for=timedelta(days=30)) == (first.id, True)
    clock.advance(1)
    assert put(pg, dedup_for=HOUR).deduplicated is False


def test_a_key_is_one_of_its_tenant_and_queue(pg):
    first = put(pg)
    for options in ({"queue": "r"}, {"tenant": "acme"}):
        assert put(pg, **options).deduplicated is False
    assert put(pg) == (first.id, True)


def test_the_rules_for_a_time_and_by_state_are_apart(pg):
    first, second = put(pg), put(pg, dedup_for=HOUR)
    assert second.deduplicated is False
    assert (put(pg).id, put(pg, dedup_for=HOUR).id) == (first.id, second.id)


def test_an_id_that_a_key_swallowed_stands_for_the_same_message_ever_after(pg):
    first, mine = put(pg), uuid4()
    assert put(pg, id=mine) == (first.id, True)
    pg.settle("ack", pg.take())
    assert put(pg, id=mine) == (first.id, True)


def test_an_id_that_is_there_already_leaves_the_key_alone(pg):
    mine = uuid4()
    pg.put(id=mine)
    assert put(pg, id=mine) == (mine, True)
    assert put(pg).deduplicated is False


def test_a_redriven_message_takes_its_key_along(pg):
    dead = state_dead(pg)
    again = pg.value("redrive", id=dead.id, tenant="default")
    assert pg.find("message", again).dedup_key == "k"
    assert put(pg) == (again, True)


def test_a_redriven_message_leaves_the_key_to_the_one_that_came_after_it(pg):
    dead = state_dead(pg)
    after = put(pg)
    pg.value("redrive", id=dead.id, tenant="default")
    assert put(pg) == (after.id, True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dedup_key": ""}, "empty"),
        ({"dedup_key": "x" * 501}, "500 are allowed"),
        ({"dedup_key": "k", "dedup_for": timedelta(0)}, "dedup_for"),
        ({"dedup_key": "k", "dedup_for": HOUR, "dedup_while": "alive"}, "both"),
        ({"dedup_key": "k", "dedup_while": "dead"}, "dedup_while"),
        ({"dedup_for": HOUR}, "without dedup_key"),
        ({"dedup_while": "alive"}, "without dedup_key"),
    ],
)
def test_bad_options_are_refused(pg, options, says):
    error = pg.refused("enqueue", queue="q", payload=1, **options)
    assert (error.sqlstate, says in str(error)) == ("PW003", True)
    own = {"payload": 1} | {name: str(value) for name, value in options.items()}
    error = pg.refused("enqueue_many", queue="q", messages=[{"payload": 1}, own])
    assert (error.sqlstate, says in str(error)) == ("PW003", True)


def test_a_list_with_keys_says_of_each_message_who_stands_for_it(pg):
    present = put(pg)
    mine = UUID(int=7)
    keys = ["k", "new", None, "new", "k", "other", "other"]
    messages = [{"payload": n} | ({"dedup_key": key} if key else {}) for n, key in enumerate(keys)]
    messages[5]["id"] = str(mine)
    rows = pg.rows("enqueue_many", queue="q", messages=messages, dedup_while="alive")
    assert [row.deduplicated for row in rows] == [True, False, False, True, True, False, True]
    assert {rows[0].id, rows[4].id} == {present.id}
    assert rows[3].id == rows[1].id
    assert rows[5].id == rows[6].id == mine
    stored = pg.query("select payload, dedup_key from postrow.message order by payload::text")
    assert [(row.payload, row.dedup_key) for row in stored] == [(1, "k"), (1, "new"), (2, None), (5, "other")]


def test_a_key_for_the_whole_list_is_one_message(pg):
    rows = pg.rows("enqueue_many", queue="q", messages=[{"payload": n} for n in range(3)], dedup_key="k")
    assert [row.deduplicated for row in rows] == [False, True, True]
    assert len({row.id for row in rows}) == 1


def test_an_id_of_a_list_that_a_key_swallowed_stands_for_the_same_message_ever_after(pg):
    first, mine = put(pg), uuid4()
    messages = [{"payload": 1, "dedup_key": "k", "id": str(mine)}]
    for _ in range(2):
        assert [(row.id, row.deduplicated) for row in pg.rows("enqueue_many", queue="q", messages=messages)] == [
            (first.id, True)
        ]
        pg.settle("ack", pg.take())


def test_the_sweep_keeps_a_key_while_its_message_lives(pg, clock):
    first = put(pg)
    clock.advance(8 * 86_400)
    pg.rows("sweep", step="seen")
    assert put(pg) == (first.id, True)
    pg.settle("ack", pg.take())
    clock.advance(2 * 86_400)
    pg.rows("sweep", step="seen")
    assert pg.query("select 1 from postrow.seen") == []


def test_the_sweep_takes_a_key_whose_time_has_passed_though_its_message_lives(pg, clock):
    put(pg, dedup_for=HOUR)
    clock.advance(3601)
    pg.rows("sweep", step="seen")
    assert pg.query("select 1 from postrow.seen") == []


def test_an_id_that_stands_twice_in_a_list_is_twice_the_message_that_its_key_found(pg):
    first, mine = put(pg), uuid4()
    messages = [{"payload": n, "id": str(mine), "dedup_key": "k"} for n in range(3)]
    rows = pg.rows("enqueue_many", queue="q", messages=messages)
    assert [(row.id, row.deduplicated) for row in rows] == [(first.id, True)] * 3


def test_an_id_that_stands_twice_in_a_list_is_once_the_message_that_its_key_makes(pg):
    mine = uuid4()
    messages = [{"payload": n, "id": str(mine), "dedup_key": "k"} for n in range(2)]
    messages.append({"payload": 2, "dedup_key": "k"})
    rows = pg.rows("enqueue_many", queue="q", messages=messages)
    assert [(row.id, row.deduplicated) for row in rows] == [(mine, False), (mine, True), (mine, True)]
    assert pg.value("depth", queue="q") == 1


def test_a_key_that_is_null_is_none_and_an_own_rule_replaces_that_of_all(pg):
    messages = [
        {"payload": 1, "dedup_key": None},
        {"payload": 2, "dedup_key": "k", "dedup_for": "1 hour"},
    ]
    rows = pg.rows("enqueue_many", queue="q", messages=messages, dedup_while="alive")
    assert [row.deduplicated for row in rows] == [False, False]
    assert put(pg, dedup_for=HOUR).deduplicated is True


@pytest.mark.parametrize("hops", [-1, None, 40_000])
def test_hops_outside_their_range_are_refused(pg, hops):
    assert pg.refused("enqueue", queue="q", payload=1, hops=hops).sqlstate == "PW003"
    assert pg.refused("enqueue_many", queue="q", messages=[{"payload": 1}], hops=hops).sqlstate == "PW003"
    assert pg.refused("enqueue_lines", queue="q", payloads="1", hops=hops).sqlstate == "PW003"
