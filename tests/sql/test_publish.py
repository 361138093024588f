"""Topics: subscriptions route what is published; patterns, ids, hops, and what nobody subscribes to."""

from uuid import uuid4

import pytest


def subscribe(pg, *pairs, **options):
    for pattern, queue in pairs:
        pg.value("subscribe", pattern=pattern, queue=queue, **options)


def published(pg, topic="order.paid", payload=1, **options):
    return pg.rows("publish", topic=topic, payload=payload, **options)


FITS = {
    "order.paid": {"order.paid"},
    "order.*": {"order.paid", "order.late", "order.a-b_c:d"},
    "*.paid": {"order.paid", "invoice.paid"},
    "order.#": {"order", "order.paid", "order.late", "order.a-b_c:d", "order.paid.eu.late"},
    "#.late": {"order.paid.eu.late", "order.late", "late"},
    "order.#.late": {"order.paid.eu.late", "order.late"},
    "order.*.#.late": {"order.paid.eu.late"},
    "*": {"order", "late", "orderxpaid"},
    "*.*": {"order.paid", "invoice.paid", "order.a-b_c:d", "order.late"},
    "#": None,
    "#.#": None,
}
TOPICS = [
    "order",
    "late",
    "order.paid",
    "invoice.paid",
    "order.a-b_c:d",
    "order.late",
    "order.paid.eu.late",
    "orderxpaid",
]


@pytest.mark.parametrize("pattern", FITS)
def test_a_pattern_takes_the_topics_that_fit_it(pg, pattern):
    taken = {topic for topic in TOPICS if pg.value("fits", topic=topic, pattern=pattern)}
    expected = set(TOPICS) if FITS[pattern] is None else FITS[pattern]
    assert taken == expected


def test_each_subscribed_queue_gets_a_message_of_its_own(pg):
    subscribe(pg, ("order.paid", "emails"), ("order.#", "audit"), ("order.*", "audit"), ("order.sent", "parcels"))
    rows = published(pg, payload={"order": 17}, subject="order:17", headers={"a": 1}, priority=3, tenant="acme")
    assert [(row.queue, row.deduplicated) for row in rows] == [("audit", False), ("emails", False)]
    for row in rows:
        message = pg.find("message", row.id)
        assert (message.queue, message.topic, message.payload) == (row.queue, "order.paid", {"order": 17})
        assert (message.subject, message.headers, message.priority) == ("order:17", {"a": 1}, 3)
        assert (message.tenant, message.hops, message.parent_id) == ("acme", 0, None)


def test_a_subscription_is_one_of_its_tenant_or_of_all(pg):
    subscribe(pg, ("#", "all"))
    subscribe(pg, ("#", "acme_only"), tenant="acme")
    assert [row.queue for row in published(pg, tenant="acme")] == ["acme_only", "all"]
    assert [row.queue for row in published(pg, tenant="beta")] == ["all"]


def test_subscribing_again_is_nothing_new_and_unsubscribing_ends_it(pg):
    assert pg.value("subscribe", pattern="order.*", queue="emails")
    assert not pg.value("subscribe", pattern="order.*", queue="emails")
    (message,) = published(pg)
    assert pg.value("unsubscribe", pattern="order.*", queue="emails")
    assert not pg.value("unsubscribe", pattern="order.*", queue="emails")
    assert published(pg) == []
    assert pg.find("message", message.id), "what its queue holds stays"


def test_subscriptions_are_listed_and_asked_for_by_topic_and_tenant(pg):
    subscribe(pg, ("order.*", "emails"), ("#", "audit"))
    subscribe(pg, ("order.paid", "special"), tenant="acme")

    def queues(**arguments):
        return [row.queue for row in pg.rows("subscriptions", **arguments)]

    assert queues() == ["audit", "emails", "special"]
    assert queues(topic="invoice.paid") == ["audit"]
    assert queues(topic="order.paid", tenant="beta") == ["audit", "emails"]


def test_what_nobody_subscribes_to_is_recorded_as_unrouted(pg):
    assert published(pg, payload={"a": 1}, subject="order:17") == []
    (row,) = pg.query("select * from postrow.history")
    assert (row.outcome, row.topic, row.queue, row.payload) == ("unrouted", "order.paid", "order.paid", {"a": 1})
    assert (row.subject, row.attempt, row.started_at) == ("order:17", 0, None)
    (shown,) = pg.rows("show", id=row.id)
    assert shown[0]["state"] == "unrouted"


def test_an_id_is_the_same_messages_when_it_is_published_again(pg):
    subscribe(pg, ("#", "a"), ("#", "b"))
    mine = uuid4()
    first = published(pg, id=mine)
    assert len({mine, *(row.id for row in first)}) == 3
    pg.settle("ack", pg.take(queue="a"))
    again = published(pg, id=mine)
    assert [(row.queue, row.id, row.deduplicated) for row in again] == [(r.queue, r.id, True) for r in first]
    subscribe(pg, ("#", "c"))
    assert [row.deduplicated for row in published(pg, id=mine)] == [True, True, False]
    assert all(row.id.version == 8 for row in first)


def test_an_unrouted_id_is_recorded_once(pg):
    mine = uuid4()
    assert published(pg, id=mine) == published(pg, id=mine) == []
    assert [row.id for row in pg.query("select id from postrow.history")] == [mine]


def test_an_unrouted_id_is_none_of_a_queue_of_the_same_name(pg):
    mine = uuid4()
    published(pg, topic="q", id=mine)
    assert pg.row("enqueue", queue="q", payload=1, id=mine).deduplicated is False


def test_over_the_limit_of_hops_all_of_them_are_dead_letters(pg):
    subscribe(pg, ("#", "a"), ("#", "b"))
    parent = uuid4()
    alive = published(pg, hops=8, parent_id=parent)
    assert [pg.find("message", row.id).hops for row in alive] == [8, 8]
    assert pg.find("message", alive[0].id).parent_id == parent
    rows = published(pg, hops=9, parent_id=parent)
    assert [(row.queue, row.dead) for row in rows] == [("a", True), ("b", True)]
    assert [row.dead for row in alive] == [False, False]
    for row in rows:
        dead = pg.find("dead_letter", row.id)
        assert (dead.reason, dead.hops, dead.parent_id, dead.failures[0]["type"]) == ("hops", 9, parent, "hops")
        assert pg.find("message", row.id) is None
    pg.value("configure", name="max_hops", value="9")
    assert pg.find("message", published(pg, hops=9)[0].id)


def test_an_id_over_the_limit_of_hops_may_be_published_again_when_its_dead_letter_is_decided_and_forgotten(pg, clock):
    subscribe(pg, ("#", "a"))
    mine = uuid4()
    (first,) = published(pg, hops=9, id=mine)
    (again,) = published(pg, hops=9, id=mine)
    assert (first.dead, again.deduplicated, again.id) == (True, True, first.id)
    pg.rows("resolve", id=first.id, tenant="default", resolution="ignored", reason="a loop")
    clock.advance(8 * 86_400)
    pg.rows("sweep", step="seen")
    (third,) = published(pg, hops=9, id=mine)
    assert (third.dead, third.deduplicated, third.id) == (True, False, first.id)


def test_a_message_is_enqueued_with_its_lineage(pg):
    parent = uuid4()
    for id_ in (
        pg.put(parent_id=parent, hops=3),
        pg.row("enqueue_many", queue="q", messages=[{"payload": 1}], parent_id=parent, hops=3).id,
        pg.row("enqueue_lines", queue="q", payloads="1", parent_id=parent, hops=3).first_id,
    ):
        assert (pg.find("message", id_).parent_id, pg.find("message", id_).hops) == (parent, 3)


@pytest.mark.parametrize("topic", ["", None, "a..b", ".a", "a.", "a b", "order.*", "#", "x" * 201, "ä"])
def test_a_bad_topic_is_refused(pg, topic):
    assert pg.refused("publish", topic=topic, payload=1).sqlstate == "PW002"


@pytest.mark.parametrize("pattern", ["", None, "a..b", "order.*x", "order.**", "#x", "a b", "x" * 201])
def test_a_bad_pattern_is_refused(pg, pattern):
    error = pg.refused("subscribe", pattern=pattern, queue="q")
    assert error.sqlstate == "PW002"
    assert "any number" in error.diag.message_hint


@pytest.mark.parametrize(
    ("options", "sqlstate"),
    [
        ({"payload": None}, "PW003"),
        ({"hops": -1}, "PW003"),
        ({"hops": None}, "PW003"),
        ({"tenant": "no good"}, "PW002"),
        ({"priority": 99_999}, "PW003"),
    ],
)
def test_bad_options_are_refused(pg, options, sqlstate):
    assert pg.refused("publish", **({"topic": "t", "payload": 1} | options)).sqlstate == sqlstate
