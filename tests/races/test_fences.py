"""One test for each fence; tests/mutation takes the fences out, and these must fail then."""

import pytest

HOLD = "select claim_token from postrow.message where id = %s"


@pytest.fixture
def queue(sessions):
    """A session that made one message, and the message's id."""
    session = sessions("producer")
    [(id_,)] = session.run("select id from postrow.enqueue('emails', '{}')")
    return session, id_


def claim(session, *, lease="1 minute"):
    [(token,)] = session.run("select claim_token from postrow.claim('emails', 1, lease => %s)", [lease])
    return token


def settle(call, id_, token):
    return f"select outcome from postrow.{call}", {"ids": [id_], "tokens": [token]}


ACK = "ack('{default}', %(ids)s, %(tokens)s)"
EXTEND = "extend('{default}', %(ids)s, %(tokens)s, '1 hour')"


@pytest.mark.parametrize(
    "call",
    [
        ACK,
        "ack('{default}', %(ids)s, %(tokens)s, wait => false)",
        "fail('{default}', %(ids)s, %(tokens)s, '{boom}')",
        "bury('{default}', %(ids)s, %(tokens)s, '{why}')",
        "release('{default}', %(ids)s, %(tokens)s)",
        EXTEND,
    ],
)
def test_a_stale_token_is_refused_and_changes_nothing(queue, call):
    session, id_ = queue
    old = claim(session)
    session.run("select postrow.release_claim(%s)", [old])
    claim(session)
    held = session.run("select m from postrow.message m")
    assert session.run(*settle(call, id_, old)) == [("stale",)]
    assert session.run("select m from postrow.message m") == held


def test_of_two_acks_at_once_one_is_accepted(queue, sessions):
    first, id_ = queue
    second = sessions("second")
    token = claim(first)
    first.run("begin")
    assert first.run(*settle(ACK, id_, token)) == [("accepted",)]
    waiting = second.start(*settle(ACK, id_, token)).wait_until_blocked()
    first.run("commit")
    assert waiting.result() == [("unknown",)]


def test_an_ack_that_waited_for_the_sweep_is_stale(queue, sessions):
    worker, id_ = queue
    sweeper = sessions("sweeper")
    token = claim(worker, lease="1 microsecond")
    sweeper.run("begin")
    assert sweeper.run("select done from postrow.sweep('leases')") == [(1,)]
    waiting = worker.start(*settle(ACK, id_, token)).wait_until_blocked()
    sweeper.run("commit")
    assert waiting.result() == [("stale",)]
    assert worker.run(HOLD, [id_]) == [(None,)], "it is still there, and free"


def test_extend_does_not_wait_for_an_ack_that_is_not_committed(queue, sessions):
    handler, id_ = queue
    heartbeat = sessions("heartbeat")
    token = claim(handler)
    handler.run("begin")
    handler.run(*settle(ACK, id_, token))
    running = heartbeat.start(*settle(EXTEND, id_, token))
    waited = _waits(running)
    handler.run("rollback")
    outcome = running.result()
    assert not waited
    assert outcome == [("busy",)]


@pytest.mark.parametrize(
    "call",
    [
        "claim('emails', 5)",
        "claim_lanes('emails', '{default}', '{0}', '{null}', 5, 5)",
        "claim('emails', 5, worker => 'w')",
    ],
)
def test_a_claim_passes_by_what_another_has_locked(sessions, call):
    first, second = sessions("first"), sessions("second")
    target = "'w'" if "worker" in call else "null"
    first.run(f"select postrow.enqueue('emails', '{{}}', target => {target}) from generate_series(1, 3)")
    first.run("begin")
    taken = first.run(f"select id from postrow.{call.replace('5', '2')}")
    running = second.start(f"select id from postrow.{call} where id is not null")
    waited = _waits(running)
    first.run("rollback")
    left = running.result()
    assert not waited
    assert len(taken) == 2
    assert len(left) == 1
    assert not set(taken) & set(left)


def _waits(running):
    """Whether a statement waits for a lock before it ends."""
    while not running.done:
        if running.session.blocked():
            return True
    return False


def test_a_message_that_kills_its_worker_runs_out_of_attempts(conn, clock):
    conn.execute("select postrow.enqueue('emails', '{}', max_attempts => 3)")
    for attempt in (1, 2, 3):
        assert conn.execute("select attempt from postrow.claim('emails', 1)").fetchall() == [(attempt,)]
        clock.advance(3600)
        assert conn.execute("select done from postrow.sweep('leases')").fetchone() == (1,)
        clock.advance(3600)
    assert conn.execute("select id from postrow.claim('emails', 1)").fetchall() == []
    assert conn.execute("select attempt, reason from postrow.dead_letter").fetchall() == [(3, "lease")]


def test_a_failed_message_runs_out_of_attempts(conn, clock):
    conn.execute("select postrow.enqueue('emails', '{}', max_attempts => 2)")
    for _ in range(2):
        conn.execute(
            "select f.* from postrow.claim('emails', 1) c, "
            "lateral postrow.fail(array[c.tenant], array[c.id], array[c.claim_token], '{boom}') f"
        )
        clock.advance(3600)
    assert conn.execute("select attempt, reason from postrow.dead_letter").fetchall() == [(2, "attempts")]
