"""Groups under rivals: one holder at a time, nobody waits for a producer, and nothing stays behind unseen."""

import pytest


def put(actor, *payloads, group="g", **options):
    return [actor.put(payload=payload, group_key=group, **options) for payload in payloads]


def taken(rows):
    return [row.payload for row in rows]


def test_producers_of_one_group_do_not_wait_for_each_other(actors):
    one, two = actors("one").impatient(), actors("two").impatient()
    one.begin()
    two.begin("isolation level serializable")
    put(one, "a1")
    put(two, "a2")
    put(one, "a3")
    one.commit()
    two.commit()
    assert taken(one.take(10)) == ["a1", "a2", "a3"]


def test_two_claims_that_meet_different_messages_of_a_group_do_not_both_get_it(actors):
    """The first meets a2 alone: a1, enqueued before, is committed while its claim is not."""
    producer, one, two = actors("producer"), actors("one"), actors("two").impatient()
    producer.begin()
    put(producer, "a1")
    put(one, "a2")
    one.begin()
    rows = one.take(10)
    assert taken(rows) == ["a2"]
    producer.commit()

    assert two.take(10) == [], "one has the group, though that is not committed"
    one.commit()
    assert two.take(10) == [], "one holds the group"
    assert two.settle("ack", rows) == ["accepted"]
    assert taken(two.take(10)) == ["a1"]


def test_a_claim_that_is_open_keeps_its_groups_and_no_others(actors):
    one, two = actors("one"), actors("two").impatient()
    keys = [str(n) for n in range(8)]
    for key in keys:
        put(two, key, group=key)
    one.begin()
    assert taken(one.take(1)) == ["0"]
    put(two, "more", group="0")
    assert len(two.take(10)) >= 6, "but for one in 1,024 that has the same lock"
    assert two.take(10) == []
    one.rollback()
    assert "more" in taken(two.take(10))


def test_an_ack_waits_for_a_claim_that_sets_others_behind_it(actors):
    """Else it would not see them, and nobody would set them free."""
    one, two = actors("one"), actors("two")
    put(one, "a1", "a2")
    rows = one.take(1)
    two.begin()
    assert two.take(10) == []
    waiting = one.start_settle("ack", rows).wait_until_blocked()
    two.commit()
    assert [row.outcome for row in waiting.result()] == ["accepted"]
    assert taken(two.take(10)) == ["a2"]


def test_an_ack_that_may_not_wait_is_busy_then(actors):
    one, two = actors("one").impatient(), actors("two")
    put(one, "a1", "a2")
    rows = one.take(1)
    two.begin()
    assert two.take(10) == []
    assert one.settle("ack", rows, wait=False) == ["busy"]
    two.commit()
    assert one.settle("ack", rows, wait=False) == ["accepted"]
    assert taken(two.take(10)) == ["a2"]


def lock_what_is_behind(actor):
    """As a claim does that met it just when another set it behind: it leaves it, but keeps the lock until its end."""
    actor.begin()
    assert len(actor.query("select id from postrow.message where behind for update")) == 1


def test_an_ack_waits_for_a_claim_that_keeps_what_follows_locked(own_actors):
    one, two, three = own_actors("one"), own_actors("two"), own_actors("three")
    one.query("alter function postrow.wait_for_behind set lock_timeout = '20 s'")  # 100 ms
    put(one, "a1", "a2")
    rows = one.take(1)
    assert two.take(10) == []
    lock_what_is_behind(three)
    waiting = one.start_settle("ack", rows).wait_until_blocked()
    three.rollback()
    assert [row.outcome for row in waiting.result()] == ["accepted"]
    assert taken(two.take(10)) == ["a2"]


def test_an_ack_does_not_wait_without_end_for_what_follows_but_leaves_it_to_the_sweep(own_actors):
    one, two, three = own_actors("one"), own_actors("two"), own_actors("three")
    put(one, "a1", "a2")
    rows = one.take(1)
    assert two.take(10) == []
    lock_what_is_behind(three)
    assert one.settle("ack", rows) == ["accepted"]
    three.rollback()
    assert two.take(10) == []
    assert one.rows("sweep", step="groups")[0].done == 1
    assert taken(two.take(10)) == ["a2"]


def test_nothing_is_set_behind_a_message_that_is_being_settled(actors):
    """As by a handler that acknowledges it in a long transaction of its own."""
    handler, other = actors("handler"), actors("other").impatient()
    put(other, "a1", "a2")
    rows = handler.take(1)
    handler.begin()
    assert handler.settle("ack", rows) == ["accepted"]

    assert other.take(10) == []
    lanes = other.rows("claim", queue="q", limit=10, after="-infinity")
    assert [(lane.id, lane.frontier) for lane in lanes] == [(None, None)], "left where it is: no watermark may pass it"
    handler.commit()
    assert taken(other.take(10)) == ["a2"]


def test_the_last_two_of_a_run_that_end_at_once_leave_the_rest_to_the_sweep(actors):
    """Each sees the other as the holder. A worker calls free_groups where that can be."""
    one, two, three = actors("one"), actors("two"), actors("three")
    put(three, "a1", "a2", "a3")
    first, second = three.take(2)
    assert three.take(10) == []
    one.begin()
    one.settle("ack", [first])
    two.begin()
    two.settle("ack", [second])
    one.commit()
    two.commit()
    assert three.take(10) == []
    assert three.rows("sweep", step="groups")[0].done == 1
    assert taken(three.take(10)) == ["a3"]


@pytest.mark.parametrize("end", ["resolve", "redrive"])
def test_a_decision_waits_for_a_claim_that_sets_others_behind_a_dead_letter(actors, end):
    admin, worker = actors("admin"), actors("worker")
    admin.rows("register_consumer", queue="q", handler="h", on_dead="block")
    (id_, _) = put(admin, "a1", "a2")
    admin.settle("bury", admin.take(1), reasons=["no"])
    worker.begin()
    assert worker.take(10) == []
    how = {"redrive": {}, "resolve": {"resolution": "ignored", "reason": "a test"}}[end]
    waiting = admin.start(end, id=id_, tenant="default", **how).wait_until_blocked()
    worker.commit()
    waiting.result()
    assert taken(worker.take(10)) == {"redrive": ["a1", "a2"], "resolve": ["a2"]}[end]


def test_a_purge_does_not_take_what_others_are_being_set_behind(actors):
    admin, worker = actors("admin").impatient(), actors("worker")
    put(admin, "a1", delay="1 hour")
    put(admin, "a2")
    worker.begin()
    assert worker.take(10) == []
    assert admin.value("purge", queue="q") == 0
    worker.commit()
    assert admin.value("purge", queue="q") == 2


def test_a_message_that_a_producer_holds_by_its_key_is_set_free_all_the_same(actors):
    producer, one, two = actors("producer"), actors("one").impatient(), actors("two")
    put(one, "a1")
    rows = one.take(1)
    put(one, "a2", dedup_key="k", dedup_while="waiting")
    assert two.take(10) == []
    producer.begin()
    assert producer.row("enqueue", queue="q", payload="again", dedup_key="k", dedup_while="waiting").deduplicated
    assert one.settle("ack", rows) == ["accepted"]
    producer.commit()
    assert taken(two.take(10)) == ["a2"]


def test_a_claim_locks_of_a_held_group_what_it_met_and_no_more(actors):
    """Else who sets the next one free would pass it by."""
    one, two, three = actors("one"), actors("two"), actors("three").impatient()
    put(one, "a1")
    one.take(1)
    (behind,) = put(one, "a2")
    assert two.take(10) == []
    put(one, "a3")
    two.begin()
    assert two.take(10) == []
    assert len(three.query("select id from postrow.message where id = %s for update", [behind])) == 1
