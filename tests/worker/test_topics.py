"""What an app subscribes to is registered at the start; what a handler publishes knows where it came from."""

import functools

import pytest

import postrow
from postrow import App
from postrow.django import App as DjangoApp


def test_a_worker_registers_its_subscriptions_and_says_the_wiring(app, db, start, wait_for, lines):
    done = []

    @app.subscribe("order.*", queue="emails")
    @app.queue("emails").consumer(name="send")
    async def send(message):
        done.append((message.topic, message.payload))

    app.subscribe("order.#", queue="archive", tenant="acme")
    start()
    wait_for(lambda: lines("topic order.* -> queue emails"))
    wait_for(lambda: lines("topic order.# -> queue archive (tenant acme), which has no handler in this app"))
    with db.conn.transaction():
        sent = postrow.publish(db.conn, "order.paid", {"n": 1}, tenant="acme")
    assert sorted(sent.messages) == ["archive", "emails"]
    wait_for(lambda: done)
    assert done[-1] == ("order.paid", {"n": 1})


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_what_a_handler_sends_carries_its_lineage_unasked(app, db, start, wait_for, kind):
    def follow_up(tx, message):
        app.queue("after").enqueue(tx, "enqueued")
        postrow.publish(tx, "order.sent", "published")

    async def follow_up_async(tx, message):
        await app.queue("after").enqueue(tx, "enqueued")
        await postrow.publish(tx, "order.sent", "published")

    if kind == "async":

        @app.subscribe("order.paid", queue="q")
        async def handle(message):
            async with message.transaction() as tx:
                await follow_up_async(tx, message)

    else:

        @app.subscribe("order.paid", queue="q")
        def handle(message):
            with message.transaction() as tx:
                follow_up(tx, message)

    app.subscribe("order.sent", queue="parcels")
    start()
    wait_for(lambda: db.rows("select 1 from postrow.subscription where queue = 'parcels'"))
    with db.conn.transaction():
        first = postrow.publish(db.conn, "order.paid", 1).messages["q"]
    wait_for(lambda: db.history(first.id))
    found = db.rows("select payload, parent_id, hops from postrow.message order by queue")
    assert [tuple(row) for row in found] == [("enqueued", first.id, 0), ("published", first.id, 1)]
    assert db.history(first.id).hops == 0


def test_handlers_that_publish_to_each_other_end_in_the_dead_letters(app, db, start, wait_for):
    @app.subscribe("ping", queue="pings")
    async def ping(message):
        async with message.transaction() as tx:
            await postrow.publish(tx, "pong", message.payload + 1)

    @app.subscribe("pong", queue="pongs")
    async def pong(message):
        async with message.transaction() as tx:
            await postrow.publish(tx, "ping", message.payload + 1)

    start()
    wait_for(lambda: db.rows("select count(*) from postrow.subscription")[0].count == 2)
    with db.conn.transaction():
        postrow.publish(db.conn, "ping", 0)
    (dead,) = wait_for(lambda: db.rows("select * from postrow.dead_letter"))
    assert (dead.reason, dead.hops, dead.payload) == ("hops", 9, 9)
    wait_for(lambda: db.live() == 0)


def test_a_topic_that_nobody_subscribes_to_is_said_once(conn, caplog):
    for _ in range(2):
        assert postrow.publish(conn, "nobody.cares", 1).delivered == 0
    assert [record.message for record in caplog.records].count(
        "nobody subscribes to topic nobody.cares: what is published to it is only recorded"
    ) == 1


@pytest.mark.parametrize("kind", [App, DjangoApp])
def test_subscribe_as_a_decorator_makes_the_handler_and_on_top_of_one_takes_it(kind):
    app = kind()

    @app.subscribe("a", queue="made")
    def made(message): ...

    @app.subscribe("b", queue="taken")
    @app.queue("taken").consumer(name="own", max_attempts=9)
    def taken(message): ...

    assert [(c.queue.name, c.name, c.max_attempts) for c in app.consumers.values()] == [
        ("made", "made", 5),
        ("taken", "own", 9),
    ]
    assert [(s.pattern, s.queue) for s in app.subscriptions] == [("a", "made"), ("b", "taken")]


@pytest.mark.parametrize("kind", [App, DjangoApp])
def test_subscribe_refuses_what_was_put_around_a_handler_after_it_was_taken(kind):
    """It would not run: the queue's handler is the one inside of it."""
    app = kind()

    @app.queue("taken").consumer()
    def taken(message): ...

    @functools.wraps(taken)
    def around(message):
        return taken(message)

    with pytest.raises(postrow.ConsumerConflictError):
        app.subscribe("a", queue="taken")(around)


def test_publish_takes_its_own_options_alone(conn):
    with pytest.raises(postrow.BadArgumentError, match="unknown option target"):
        postrow.publish(conn, "t", 1, target="w1")
