from datetime import timedelta
from uuid import UUID, uuid4

import pytest


def test_each_message_has_its_position_and_ids_in_order(pg):
    sent = pg.rows("enqueue_many", queue="q", messages=[{"payload": n} for n in range(1, 101)])

    assert [row.n for row in sent] == list(range(1, 101))
    assert [row.id for row in sent] == sorted(row.id for row in sent)
    assert not any(row.deduplicated for row in sent)
    stored = pg.query("select id, payload from postrow.message order by id")
    assert [(row.id, row.payload) for row in stored] == [(row.id, row.n) for row in sent]


def test_each_message_has_its_own_moment(pg, clock):
    pg.rows("enqueue_many", queue="q", messages=[{"payload": 1}] * 3)

    stamps = pg.query("select enqueued_at, available_at from postrow.message order by id")
    assert [row.enqueued_at - clock.now for row in stamps] == [timedelta(microseconds=n) for n in (1, 2, 3)]
    assert all(row.available_at == row.enqueued_at for row in stamps)


def test_own_options_win_over_the_defaults_of_the_call(pg):
    own = {
        "payload": 2,
        "tenant": "own",
        "priority": 9,
        "max_attempts": 9,
        "subject": "own:1",
        "headers": {"own": 1},
        "target": "own",
        "target_for": "2 hours",
        "expires_at": "2999-01-01T00:00:00Z",
    }
    first, second = pg.rows(
        "enqueue_many",
        queue="q",
        messages=[{"payload": 1}, own],
        tenant="all",
        priority=1,
        max_attempts=1,
        subject="all:1",
        headers={"all": 1},
        target="all",
        target_for=timedelta(hours=1),
    )

    row = pg.find("message", first.id)
    assert (row.tenant, row.priority, row.max_attempts, row.subject) == ("all", 1, 1, "all:1")
    assert (row.headers, row.target, row.expires_at) == ({"all": 1}, "all", None)
    assert row.target_until - row.available_at == timedelta(hours=1)
    row = pg.find("message", second.id)
    assert (row.tenant, row.priority, row.max_attempts, row.subject) == ("own", 9, 9, "own:1")
    assert (row.headers, row.target, row.expires_at.year) == ({"own": 1}, "own", 2999)
    assert row.target_until - row.available_at == timedelta(hours=2)


def test_an_own_null_takes_a_default_away(pg):
    (sent,) = pg.rows(
        "enqueue_many",
        queue="q",
        messages=[{"payload": 1, "subject": None, "delay": None, "headers": None, "max_attempts": None, "id": None}],
        subject="all",
        delay=timedelta(hours=1),
        headers={"all": 1},
        max_attempts=2,
    )

    row = pg.find("message", sent.id)
    assert (row.subject, row.headers, row.max_attempts) == (None, None, None)
    assert row.available_at == row.enqueued_at


@pytest.mark.parametrize("own", [{"delay": "30 s"}, {"available_at": "2000-01-01T00:00:00Z"}])
def test_an_own_due_time_replaces_both_kinds_of_default(pg, own):
    (sent,) = pg.rows("enqueue_many", queue="q", messages=[{"payload": 1, **own}], delay=timedelta(hours=1))

    row = pg.find("message", sent.id)
    assert row.available_at - row.enqueued_at == timedelta(seconds=30 if "delay" in own else 0)


def test_no_messages_is_nothing(pg):
    assert pg.rows("enqueue_many", queue="q", messages=[]) == []


@pytest.mark.parametrize("payload", [None, 0, False, "", [], {}])
def test_a_falsy_payload_is_a_payload(pg, payload):
    (sent,) = pg.rows("enqueue_many", queue="q", messages=[{"payload": payload}])

    assert pg.find("message", sent.id).payload == payload


@pytest.mark.parametrize("messages", [None, {}, {"payload": 1}, "x", 1])
def test_messages_have_to_be_an_array(pg, messages):
    error = pg.refused("enqueue_many", queue="q", messages=messages)

    assert error.sqlstate == "PW003"
    assert "JSON array" in str(error)


@pytest.mark.parametrize(
    ("bad", "sqlstate", "said"),
    [
        (1, "PW003", "message 2 is not an object with a payload"),
        (None, "PW003", "message 2 is not an object with a payload"),
        ([], "PW003", "message 2 is not an object with a payload"),
        ({}, "PW003", "message 2 is not an object with a payload"),
        ({"subject": "x"}, "PW003", "message 2 is not an object with a payload"),
        ({"payload": 1, "subject": ""}, "PW003", "subject of message 2 is an empty text"),
        ({"payload": 1, "subject": "s" * 201}, "PW003", "subject of message 2 has 201 characters"),
        ({"payload": 1, "headers": []}, "PW003", "headers of message 2"),
        ({"payload": 1, "headers": 0}, "PW003", "headers of message 2"),
        ({"payload": 1, "prioritty": 1}, "PW003", "message 2 has an unknown option 'prioritty'"),
        ({"payload": 1, "queue": "other"}, "PW003", "message 2 has an unknown option 'queue'"),
        ({"payload": 1, "": 1}, "PW003", "message 2 has an unknown option ''"),
        ({"payload": 1, "tenant": ""}, "PW002", "tenant"),
        ({"payload": 1, "tenant": None}, "PW002", "tenant is null"),
        ({"payload": 1, "tenant": "a b"}, "PW002", "tenant 'a b'"),
        ({"payload": 1, "target": ""}, "PW002", "target"),
        ({"payload": 1, "priority": None}, "PW003", "priority is null"),
        ({"payload": 1, "priority": 40_000}, "PW003", "priority is 40000"),
        ({"payload": 1, "max_attempts": 0}, "PW003", "max_attempts is 0"),
        ({"payload": 1, "max_attempts": -1}, "PW003", "max_attempts is -1"),
        ({"payload": 1, "max_attempts": 2**31}, "22003", "out of range"),
        ({"payload": 1, "max_attempts": 2.5}, "22P02", "2.5"),
        ({"payload": 1, "delay": "-1 s"}, "PW003", "delay is negative"),
        ({"payload": 1, "delay": "1 s", "available_at": "2030-01-01"}, "PW003", "both delay and available_at"),
        ({"payload": 1, "target_for": "1 s"}, "PW003", "target_for is given without target"),
        ({"payload": 1, "expires_at": "infinity"}, "PW003", "expires_at"),
        ({"payload": 1, "dedup_key": ""}, "PW003", "dedup_key of message 2"),
        ({"payload": 1, "dedup_while": "alive"}, "PW003", "dedup_key"),
        ({"payload": 1, "id": ""}, "22P02", "uuid"),
        ({"payload": 1, "id": 0}, "22P02", "uuid"),
    ],
)
def test_one_bad_message_refuses_all(pg, bad, sqlstate, said):
    error = pg.refused("enqueue_many", queue="q", messages=[{"payload": 1}, bad, {"payload": 3}])

    assert error.sqlstate == sqlstate
    assert said in str(error)
    assert pg.query("select id from postrow.message") == []


@pytest.mark.parametrize("queue", ["", "a b", None])
def test_the_queue_is_checked(pg, queue):
    assert pg.refused("enqueue_many", queue=queue, messages=[{"payload": 1}]).sqlstate == "PW002"


def test_a_bad_default_is_refused(pg):
    error = pg.refused("enqueue_many", queue="q", messages=[{"payload": 1}], priority=32768)

    assert error.sqlstate == "PW003"


def test_callers_ids_are_kept_and_come_back_in_place(pg):
    mine = [uuid4() for _ in range(3)]
    sent = pg.rows(
        "enqueue_many",
        queue="q",
        messages=[{"payload": 1, "id": str(mine[0])}, {"payload": 2}, {"payload": 3, "id": str(mine[2])}],
    )

    assert [row.n for row in sent] == [1, 2, 3]
    assert (sent[0].id, sent[2].id) == (mine[0], mine[2])
    assert sent[1].id not in mine
    assert pg.find("message", mine[2]).payload == 3


def test_an_id_that_stands_twice_is_one_message_the_first(pg):
    again = str(uuid4())
    sent = pg.rows(
        "enqueue_many", queue="q", messages=[{"payload": "first", "id": again}, {"payload": "second", "id": again}]
    )

    assert [(str(row.id), row.deduplicated) for row in sent] == [(again, False), (again, True)]
    assert pg.find("message", UUID(again)).payload == "first"


def test_one_id_in_two_tenants_is_two_messages(pg):
    same = str(uuid4())
    sent = pg.rows(
        "enqueue_many",
        queue="q",
        messages=[{"payload": 1, "id": same, "tenant": "a"}, {"payload": 2, "id": same, "tenant": "b"}],
    )

    assert [row.deduplicated for row in sent] == [False, False]
    assert pg.value("depth", queue="q") == 2


def test_ids_that_are_present_are_deduplicated_and_the_others_are_new(pg):
    present = pg.put(id=uuid4())
    new = uuid4()
    sent = pg.rows(
        "enqueue_many", queue="q", messages=[{"payload": 1, "id": str(new)}, {"payload": 2, "id": str(present)}]
    )

    assert [(row.id, row.deduplicated) for row in sent] == [(new, False), (present, True)]
    assert pg.find("message", present).payload == 1


def test_an_id_of_another_queue_refuses_all(pg):
    taken = pg.put(queue="emails", id=uuid4())
    error = pg.refused("enqueue_many", queue="q", messages=[{"payload": 1}, {"payload": 2, "id": str(taken)}])

    assert error.sqlstate == "PW006"
    assert "queue emails" in str(error)
    assert pg.value("depth", queue="q") == 0


def test_five_thousand_messages_go_in_one_call(pg):
    sent = pg.rows("enqueue_many", queue="q", messages=[{"payload": n} for n in range(5_000)])

    assert len({row.id for row in sent}) == 5_000
    assert pg.value("depth", queue="q") == 5_000
