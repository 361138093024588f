from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from settling import claimed

SETTLEMENTS = {  # each with what it needs beside the fence
    "ack": lambda n: {},
    "release": lambda n: {},
    "fail": lambda n: {"errors": ["x"] * n},
    "bury": lambda n: {"reasons": ["x"] * n},
    "extend": lambda n: {"lease": timedelta(seconds=60)},
}
ALL = pytest.mark.parametrize("function", SETTLEMENTS)


def seconds(number):
    return timedelta(seconds=number)


def settle(pg, function, rows, **options):
    return pg.settle(function, rows, **{**SETTLEMENTS[function](len(rows)), **options})


def fence(rows):
    return {
        "tenants": [row.tenant for row in rows],
        "ids": [row.id for row in rows],
        "tokens": [row.claim_token for row in rows],
    }


# the fence, for all five


@ALL
def test_the_current_token_is_accepted(pg, function):
    assert settle(pg, function, claimed(pg, 3)) == ["accepted"] * 3


@ALL
def test_another_token_is_stale_and_changes_nothing(pg, function):
    (row,) = claimed(pg)
    before = pg.find("message", row.id)

    assert settle(pg, function, [row._replace(claim_token=uuid4())]) == ["stale"]
    assert pg.find("message", row.id) == before


@ALL
def test_a_free_message_is_stale_and_stays_as_it_is(pg, function):
    (row,) = claimed(pg)
    settle(pg, "release", [row])
    before = pg.find("message", row.id)

    assert settle(pg, function, [row]) == ["stale"]
    assert pg.find("message", row.id) == before


@ALL
@pytest.mark.parametrize("settled", ["ack", "bury"])
def test_a_settled_message_is_unknown(pg, function, settled):
    (row,) = claimed(pg)
    settle(pg, settled, [row])

    assert settle(pg, function, [row]) == ["unknown"]


@ALL
def test_a_message_that_never_was_is_unknown(pg, function):
    (row,) = claimed(pg)

    assert settle(pg, function, [row._replace(id=uuid4())]) == ["unknown"]
    assert settle(pg, function, [row._replace(tenant="other")]) == ["unknown"]


@ALL
def test_each_message_of_a_batch_has_its_own_outcome(pg, function):
    good, stale, gone = claimed(pg, 3)
    settle(pg, "ack", [gone])

    assert settle(pg, function, [gone, stale._replace(claim_token=uuid4()), good]) == ["unknown", "stale", "accepted"]
    if function != "extend":
        untouched = pg.find("message", stale.id)
        assert untouched.claim_token == stale.claim_token


@ALL
def test_no_messages_is_nothing(pg, function):
    assert settle(pg, function, []) == []


@ALL
@pytest.mark.parametrize("short", ["tenants", "ids", "tokens"])
def test_lists_of_different_lengths_are_refused(pg, function, short):
    rows = claimed(pg, 2)
    lists = fence(rows)
    lists[short] = lists[short][:1]
    error = pg.refused(function, **lists, **SETTLEMENTS[function](len(lists["ids"])))

    assert error.sqlstate == "PW003"
    assert "one length" in str(error)


@ALL
@pytest.mark.parametrize("null", ["tenants", "ids", "tokens"])
def test_a_null_in_a_list_or_for_one_is_refused(pg, function, null):
    lists = fence(claimed(pg))
    inside = pg.refused(function, **{**lists, null: [None]}, **SETTLEMENTS[function](1))
    whole = pg.refused(function, **{**lists, null: None}, **SETTLEMENTS[function](1))

    assert (inside.sqlstate, whole.sqlstate) == ("PW003", "PW003")


@ALL
def test_a_message_that_stands_twice_is_refused(pg, function):
    (row,) = claimed(pg)
    error = pg.refused(function, **fence([row, row]), **SETTLEMENTS[function](2))

    assert error.sqlstate == "PW003"
    assert "stands twice" in str(error)


@ALL
def test_one_id_in_two_tenants_is_two_messages(pg, function):
    same = uuid4()
    for tenant in ("a", "b"):
        pg.put(tenant=tenant, id=same)

    assert settle(pg, function, pg.take(2)) == ["accepted", "accepted"]


@ALL
def test_after_the_lease_has_ended_and_before_the_sweep_it_is_accepted(pg, clock, function):
    rows = claimed(pg)
    clock.advance(61)

    assert settle(pg, function, rows) == ["accepted"]


@ALL
def test_a_large_batch_is_settled_in_one_call(pg, function):
    pg.rows("enqueue_many", queue="q", messages=[{"payload": n, "tenant": f"t{n % 7}"} for n in range(300)])
    rows = pg.take(300)[::-1]

    assert settle(pg, function, rows) == ["accepted"] * 300


# ack


def test_ack_moves_the_message_to_history_with_all_it_had(pg, clock):
    sent = pg.put(payload={"a": 1}, headers={"h": 2}, subject="s", priority=4, max_attempts=9, tenant="acme")
    before = pg.find("message", sent)
    clock.advance(1)
    (row,) = pg.take(worker="w1")
    clock.advance(2)
    settle(pg, "ack", [row])

    assert pg.find("message", sent) is None
    done = pg.find("history", sent)
    same = (
        "tenant",
        "queue",
        "payload",
        "headers",
        "subject",
        "priority",
        "max_attempts",
        "enqueued_at",
        "enqueued_by",
    )
    assert [getattr(done, name) for name in same] == [getattr(before, name) for name in same]
    assert (done.outcome, done.attempt, done.claimed_by) == ("done", 1, "w1")
    assert (done.started_at, done.finished_at) == (clock.now - seconds(2), clock.now)


def test_ack_keeps_the_failures_of_earlier_attempts(pg, clock):
    rows = claimed(pg)
    settle(pg, "fail", rows, errors=["once"], retry_at=[clock.now])
    settle(pg, "ack", pg.take())

    assert [f["message"] for f in pg.find("history", rows[0].id).failures] == ["once"]


def test_ack_keeps_no_history_where_the_consumer_says_so(pg):
    pg.rows("register_consumer", queue="q", handler="h", keep_history=False)
    quiet = claimed(pg)
    pg.put(queue="other")
    kept = pg.take(queue="other")
    settle(pg, "ack", quiet + kept)

    assert pg.find("history", quiet[0].id) is None
    assert pg.find("history", kept[0].id)


# release


def test_release_gives_the_message_and_its_attempt_back_to_the_front(pg, clock):
    first = pg.put()
    clock.advance(1)
    pg.put()
    (row,) = pg.take(worker="w1")
    clock.advance(1)
    settle(pg, "release", [row])

    freed = pg.find("message", first)
    assert (freed.claim_token, freed.claimed_at, freed.claimed_by, freed.attempt) == (None, None, None, 0)
    assert freed.available_at == freed.enqueued_at
    assert pg.take()[0].id == first


def test_ten_releases_in_a_row_spend_nothing(pg):
    sent = pg.put(max_attempts=1)
    for _ in range(10):
        settle(pg, "release", pg.take())

    assert pg.find("message", sent).attempt == 0
    assert pg.take()[0].attempt == 1


def test_release_keeps_target_and_failures(pg, clock):
    pg.put(target="w1")
    settle(pg, "fail", pg.take(worker="w1"), retry_at=[clock.now])
    (row,) = pg.take(worker="w1")
    settle(pg, "release", [row])

    freed = pg.find("message", row.id)
    assert (freed.target, len(freed.failures), freed.attempt) == ("w1", 1, 1)


def test_a_snooze_is_a_release_until_a_moment(pg, clock):
    snoozed, front = claimed(pg, 2)
    later = clock.now + seconds(30)
    settle(pg, "release", [snoozed, front], until=[later, None])

    assert pg.find("message", snoozed.id).available_at == later
    assert pg.find("message", front.id).available_at == front.enqueued_at
    assert pg.find("message", snoozed.id).attempt == 0


@pytest.mark.parametrize(
    "until",
    [[], [None, None], ["infinity"], ["-infinity"], [datetime(3001, 1, 1, tzinfo=UTC)]],
    ids=["none", "two", "infinity", "minus infinity", "3001"],
)
def test_release_refuses_an_until_that_does_not_fit(pg, until):
    rows = claimed(pg)

    assert pg.refused("release", **fence(rows), until=until).sqlstate == "PW003"


def test_release_claim_gives_back_what_a_lost_answer_claimed(pg):
    mine = uuid4()
    for tenant in ("a", "b"):
        pg.put(tenant=tenant)
    lost = pg.take(2, token=mine)
    pg.put()
    others = pg.take()

    assert pg.value("release_claim", token=mine) == 2
    assert [pg.find("message", row.id).attempt for row in lost] == [0, 0]
    assert pg.find("message", others[0].id).claim_token == others[0].claim_token
    assert pg.value("release_claim", token=mine) == 0


def test_release_claim_of_one_queue_leaves_the_others(pg):
    mine = uuid4()
    for queue in ("q", "other"):
        pg.put(queue=queue)
        pg.take(queue=queue, token=mine)

    assert pg.value("release_claim", token=mine, queue="other") == 1
    assert pg.value("release_claim", token=mine) == 1


def test_release_claim_without_a_token_is_refused(pg):
    assert pg.refused("release_claim", token=None).sqlstate == "PW003"


# extend


def test_extend_renews_the_lease_from_now(pg, clock):
    (row,) = claimed(pg)
    clock.advance(50)
    settle(pg, "extend", [row], lease=seconds(60))

    held = pg.find("message", row.id)
    assert held.available_at == clock.now + seconds(60)
    assert (held.claim_token, held.attempt, held.claimed_at) == (row.claim_token, 1, row.claimed_at)


def test_extend_may_shorten_a_lease(pg, clock):
    (row,) = claimed(pg)
    settle(pg, "extend", [row], lease=seconds(1))

    assert pg.find("message", row.id).available_at == clock.now + seconds(1)


def test_extend_counts_from_the_real_moment_not_from_the_start_of_the_transaction(pg):
    rows = claimed(pg)
    pg.query("select pg_sleep(0.03)")  # now() stands still meanwhile
    settle(pg, "extend", rows, lease=seconds(5))

    (row,) = pg.query("select available_at - now() as ahead from postrow.message")
    assert row.ahead >= seconds(5.03)


@pytest.mark.parametrize("lease", [None, seconds(0), seconds(-1), timedelta(days=367)])
def test_extend_refuses_a_lease_outside_its_range(pg, lease):
    assert pg.refused("extend", **fence(claimed(pg)), lease=lease).sqlstate == "PW003"


# fail


def test_fail_records_the_attempt_and_retries_later(pg, clock):
    pg.rows("register_consumer", queue="q", handler="h", retry_jitter=False)
    pg.put()
    (row,) = pg.take(worker="w1")
    clock.advance(2)
    settle(pg, "fail", [row], errors=["SMTP down"], types=["SMTPServerDisconnected"], tracebacks=["line 1\nline 2"])

    free = pg.find("message", row.id)
    assert (free.claim_token, free.claimed_at, free.claimed_by, free.attempt) == (None, None, None, 1)
    assert free.available_at == clock.now + seconds(10)
    (failure,) = free.failures
    assert datetime.fromisoformat(failure.pop("at")) == clock.now
    assert failure == {
        "attempt": 1,
        "worker": "w1",
        "type": "SMTPServerDisconnected",
        "message": "SMTP down",
        "traceback": "line 1\nline 2",
    }


def test_fail_follows_the_policy_from_attempt_to_attempt_then_the_dead_letters(pg, clock):
    pg.rows(
        "register_consumer",
        queue="q",
        handler="h",
        retry="linear",
        retry_base=seconds(5),
        retry_jitter=False,
        max_attempts=3,
    )
    sent = pg.put(payload={"a": 1}, subject="s", headers={"h": 1})
    for attempt, delay in ((1, 5), (2, 10)):
        settle(pg, "fail", pg.take(), errors=[f"number {attempt}"])
        assert pg.find("message", sent).available_at == clock.now + seconds(delay)
        clock.advance(delay)
    settle(pg, "fail", pg.take(worker="w1"), errors=["number 3"])

    assert pg.find("message", sent) is None
    dead = pg.find("dead_letter", sent)
    assert (dead.reason, dead.attempt, dead.died_at) == ("attempts", 3, clock.now)
    assert (dead.payload, dead.subject, dead.headers, dead.claimed_by) == ({"a": 1}, "s", {"h": 1}, "w1")
    assert (dead.resolved_at, dead.resolution, dead.redriven_as) == (None, None, None)
    assert [f["message"] for f in dead.failures] == ["number 1", "number 2", "number 3"]


@pytest.mark.parametrize(("own", "consumers"), [(1, 5), (3, 1)])
def test_a_messages_own_max_attempts_wins(pg, clock, own, consumers):
    pg.rows("register_consumer", queue="q", handler="h", max_attempts=consumers)
    sent = pg.put(max_attempts=own)
    for _ in range(own):
        assert pg.find("dead_letter", sent) is None
        settle(pg, "fail", pg.take(), retry_at=[clock.now])

    assert pg.find("dead_letter", sent).attempt == own


def test_retry_at_wins_over_the_policy_and_a_null_keeps_it(pg, clock):
    pg.rows("register_consumer", queue="q", handler="h", retry_jitter=False)
    asked, by_policy = claimed(pg, 2)
    moment = clock.now + seconds(99)
    settle(pg, "fail", [asked, by_policy], retry_at=[moment, None])

    assert pg.find("message", asked.id).available_at == moment
    assert pg.find("message", by_policy.id).available_at == clock.now + seconds(10)


def test_retry_at_does_not_save_a_message_whose_attempts_are_spent(pg, clock):
    rows = claimed(pg, max_attempts=1)
    settle(pg, "fail", rows, retry_at=[clock.now])

    assert pg.find("dead_letter", rows[0].id)


@pytest.mark.parametrize("moment", ["infinity", "-infinity", datetime(3001, 1, 1, tzinfo=UTC)])
def test_fail_refuses_a_retry_at_that_is_no_moment(pg, moment):
    assert pg.refused("fail", **fence(claimed(pg)), errors=["x"], retry_at=[moment]).sqlstate == "PW003"


@pytest.mark.parametrize("which", ["errors", "types", "tracebacks", "retry_at"])
def test_fail_refuses_a_list_of_another_length_by_name(pg, which):
    lists = {"errors": ["x"], which: []}
    error = pg.refused("fail", **fence(claimed(pg)), **lists)

    assert error.sqlstate == "PW003"
    assert which in str(error)


def test_fail_without_a_list_of_errors_is_refused(pg):
    assert pg.refused("fail", **fence(claimed(pg)), errors=None).sqlstate == "PW003"


@pytest.mark.parametrize("nothing", [None, ""])
def test_an_error_without_text_is_a_failure_all_the_same(pg, nothing):
    rows = claimed(pg)
    settle(pg, "fail", rows, errors=[nothing], types=[nothing], tracebacks=[nothing])

    (failure,) = pg.find("message", rows[0].id).failures
    assert failure["attempt"] == 1
    assert failure.get("message") == nothing


def test_no_text_makes_the_batch_fail(pg):
    texts = ["{", "null", '"', "\\u0000", "\\", "%s %L", "'; drop table x; --", "\x01\x7f\n\t", "\N{PILE OF POO}" * 500]
    rows = claimed(pg, len(texts))

    assert settle(pg, "fail", rows, errors=texts, types=texts, tracebacks=texts) == ["accepted"] * len(texts)
    for row, text in zip(rows[:-1], texts[:-1], strict=True):
        assert pg.find("message", row.id).failures[0]["message"] == text


def test_the_last_ten_failures_are_kept(pg, clock):
    sent = pg.put(max_attempts=100)
    for attempt in range(1, 15):
        settle(pg, "fail", pg.take(), errors=[str(attempt)], retry_at=[clock.now])

    failures = pg.find("message", sent).failures
    assert [f["message"] for f in failures] == [str(n) for n in range(5, 15)]
    assert [f["attempt"] for f in failures] == list(range(5, 15))


MIXED = {
    "short": "é€\N{PILE OF POO}a",
    "ascii": "a" * 5_000,
    "two bytes": "é" * 5_000,
    "three bytes": "€" * 5_000,
    "four bytes": "\N{PILE OF POO}" * 5_000,
    "ascii then wide": "a" * 5_000 + "\N{PILE OF POO}" * 5_000,
    "wide then ascii": "\N{PILE OF POO}" * 5_000 + "a" * 5_000,
    "just at the cut": "a" * 799 + "é",
    "just over the cut": "a" * 800 + "é",
}


@pytest.mark.parametrize("text", MIXED.values(), ids=MIXED)
def test_a_failure_takes_two_kilobytes_at_most_whatever_its_characters(pg, text):
    rows = claimed(pg)
    settle(pg, "fail", rows, errors=[text], types=[text], tracebacks=[text])

    (failure,) = pg.find("message", rows[0].id).failures
    assert sum(len(f"{name}{value}".encode()) for name, value in failure.items()) <= 2048
    assert text.startswith(failure["message"])  # its head
    assert text.endswith(failure["traceback"])  # and the end of this: that is where the error is
    if len(text.encode()) <= 100:
        assert failure["message"] == failure["traceback"] == failure["type"] == text
    else:
        assert len(failure["message"]) >= 200
        assert len(failure["traceback"]) >= 200


def test_a_type_is_cut_at_100_bytes(pg):
    rows = claimed(pg)
    settle(pg, "fail", rows, types=["T" * 500])

    assert pg.find("message", rows[0].id).failures[0]["type"] == "T" * 100


# bury


def test_bury_is_a_dead_letter_at_once_with_the_reason(pg, clock):
    pg.put()
    (row,) = pg.take(worker="w1")
    settle(pg, "bury", [row], reasons=["card closed"])

    assert pg.find("message", row.id) is None
    dead = pg.find("dead_letter", row.id)
    assert (dead.reason, dead.attempt, dead.died_at) == ("buried", 1, clock.now)
    (failure,) = dead.failures
    assert (failure["type"], failure["message"], failure["worker"]) == ("buried", "card closed", "w1")


def test_bury_without_a_reason_for_each_is_refused(pg):
    lists = fence(claimed(pg))

    assert pg.refused("bury", **lists, reasons=[]).sqlstate == "PW003"
    assert pg.refused("bury", **lists, reasons=None).sqlstate == "PW003"


def test_a_redriven_message_that_dies_again_leaves_both_letters(pg):
    (row,) = claimed(pg)
    settle(pg, "bury", [row])
    again = pg.value("redrive", id=row.id, tenant="default")
    settle(pg, "bury", pg.take())

    assert pg.find("dead_letter", row.id).redriven_as == again
    assert pg.find("dead_letter", again).resolved_at is None
