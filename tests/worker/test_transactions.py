"""message.transaction() and postrow.ack: effects, follow-ups and the ack are one commit, or none of it is."""

import asyncio
import threading
from contextlib import suppress

import psycopg
import pytest
from psycopg.rows import dict_row

import postrow
from postrow import Constant

SOON = Constant(base=0.05, cap=0.05)
LEASE = 0.6


@pytest.fixture(autouse=True)
def effects(db):
    db.rows("create table effect (message uuid, attempt int)")
    yield
    db.rows("drop table effect")


def effect(message):
    return "insert into effect values (%s, %s)", [message.id, message.attempt]


def handler(app, kind, body, **options):
    """Registers a handler of a kind around `body`, a sync function of the transaction and the message."""
    options = {"retry": SOON, "name": "h"} | options
    if kind == "async":

        @app.queue("q").consumer(**options)
        async def handle(message):
            async with message.transaction() as tx:
                for statement, params in body(message):
                    await tx.execute(statement, params)
                await app.queue("after").enqueue(tx, message.attempt)

    else:

        @app.queue("q").consumer(**options)
        def handle(message):
            with message.transaction() as tx:
                for statement, params in body(message):
                    tx.execute(statement, params)
                app.queue("after").enqueue(tx, message.attempt)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_effect_follow_up_and_ack_are_one_transaction(app, db, start, wait_for, kind):
    handler(app, kind, lambda message: [effect(message)])
    id_ = db.put()
    start()
    wait_for(lambda: db.history(id_))
    (one,) = db.rows(
        "select distinct xmin::text from (select xmin from effect union all select xmin from postrow.history "
        "union all select xmin from postrow.message where queue = 'after') x"
    )
    assert one
    assert db.rows("select count(*) from effect")[0].count == 1


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_an_exception_in_the_block_leaves_nothing_and_is_the_attempts_failure(app, db, start, wait_for, kind):
    def body(message):
        yield effect(message)
        if message.attempt == 1:
            raise LookupError("not yet")

    handler(app, kind, body)
    id_ = db.put()
    start()
    wait_for(lambda: db.history(id_))
    assert [row.attempt for row in db.rows("select attempt from effect")] == [2]
    assert [row.payload for row in db.rows("select payload from postrow.message where queue = 'after'")] == [2]
    (failure,) = db.history(id_).failures
    assert failure["type"].endswith("LookupError")


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_lost_lease_rolls_all_of_it_back_and_the_handler_learns_so(app, db, start, wait_for, lines, reached, kind):
    at, may_end, learnt = reached(), threading.Event(), []

    if kind == "async":

        @app.queue("q").consumer(lease=60)
        async def handle(message):
            try:
                async with message.transaction() as tx:
                    await tx.execute(*effect(message))
                    at.come()
                    await asyncio.to_thread(may_end.wait, 20)
            except postrow.LeaseLostError as error:
                learnt.append(error)
                raise

    else:

        @app.queue("q").consumer(lease=60)
        def handle(message):
            try:
                with message.transaction() as tx:
                    tx.execute(*effect(message))
                    at.come()
                    may_end.wait(20)
            except postrow.LeaseLostError as error:
                learnt.append(error)
                raise

    id_ = db.put()
    start()
    at.wait()
    db.take_away(id_)
    may_end.set()
    wait_for(lambda: lines("was refused"))
    assert "not ours any more" in str(learnt[0])
    assert db.rows("select 1 from effect") == []
    assert (db.message(id_).claimed_by, db.message(id_).failures) == ("other", None)


def test_what_comes_after_the_block_is_not_tried_again_and_is_said(app, db, start, wait_for, lines):
    @app.queue("q").consumer(retry=SOON)
    async def handle(message):
        async with message.transaction() as tx:
            await tx.execute(*effect(message))
        raise LookupError("too late")

    id_ = db.put()
    start()
    wait_for(lambda: lines("is done, by its handler's transaction"))
    assert "too late" in lines("is done, by its handler's transaction")[0]
    assert db.history(id_).failures is None
    assert db.rows("select count(*) from effect")[0].count == 1


def test_an_error_that_the_handler_swallowed_in_the_block_commits_nothing(app, db, start, wait_for):
    @app.queue("q").consumer(max_attempts=1)
    async def handle(message):
        async with message.transaction() as tx:
            await tx.execute(*effect(message))
            with suppress(psycopg.Error):
                await tx.execute("select 1 / 0")

    id_ = db.put()
    start()
    wait_for(lambda: db.rows("select 1 from postrow.dead_letter"))
    assert db.rows("select 1 from effect") == []
    assert db.message(id_) is None


def test_a_second_transaction_of_a_settled_message_is_refused_and_rolled_back(app, db, start, wait_for):
    refused = []

    @app.queue("q").consumer()
    async def handle(message):
        async with message.transaction() as tx:
            await tx.execute(*effect(message))
        try:
            async with message.transaction() as tx:
                await tx.execute(*effect(message))
        except postrow.LeaseLostError as error:
            refused.append(str(error))

    id_ = db.put()
    start()
    wait_for(lambda: refused)
    assert "settled already" in refused[0]
    assert db.history(id_)
    assert db.rows("select count(*) from effect")[0].count == 1


def test_a_plain_with_in_an_async_handler_is_refused_with_what_to_write(app, db, start, wait_for):
    @app.queue("q").consumer(max_attempts=1)
    async def handle(message):
        with message.transaction():
            pass

    db.put()
    start()
    (dead,) = wait_for(lambda: db.rows("select failures from postrow.dead_letter"))
    assert "async with message.transaction()" in str(dead.failures)


def test_no_more_connections_are_used_than_it_may(app, db, start, wait_for, until):
    now, most, full = [0], [0], threading.Event()

    @app.queue("q").consumer(concurrency=20)
    async def handle(message):
        async with message.transaction() as tx:
            now[0] += 1
            most[0] = max(most[0], now[0])
            if now[0] == 3:
                full.set()
            await until(full)
            await tx.execute("select pg_sleep(0.01)")
            now[0] -= 1

    db.put_many(list(range(40)))
    start(transactions=3)
    wait_for(lambda: db.rows("select count(*) from postrow.history")[0].count == 40)
    assert most[0] == 3


def test_the_worker_stops_though_a_handler_holds_a_transaction(app, db, start, reached):
    at = reached()

    @app.queue("q").consumer()
    async def handle(message):
        async with message.transaction() as tx:
            await tx.execute(*effect(message))
            at.come()
            await asyncio.sleep(60)

    id_ = db.put()
    running = start(grace=0.1)
    at.wait()
    running.stop()
    assert db.message(id_).claim_token is None
    assert db.rows("select 1 from effect") == []


@pytest.mark.slow
def test_an_ack_held_open_for_three_leases_harms_nobody(app, db, clock, start, wait_for, until, lines, reached):
    """500 others are renewed by the same heartbeat; nothing is swept, and nothing is cancelled for its own ack."""
    acked, begun, may_end, cancelled = reached(), [], threading.Event(), []

    @app.queue("q").consumer(concurrency=501, lease=LEASE)
    async def handle(message):
        begun.append(message.id)
        try:
            if message.payload == "ack":
                async with await psycopg.AsyncConnection.connect(db.dsn) as conn:
                    await postrow.ack(conn, message)
                    acked.come()
                    await until(may_end)
                    await conn.execute(*effect(message))
            else:
                await until(may_end)
        except asyncio.CancelledError:
            cancelled.append(message.id)
            raise

    held = db.put(payload="ack")
    db.put_many(list(range(500)))
    clock.advance(0.001)  # each of a list is due a microsecond after the one before it
    start(sweep=False)
    acked.wait()
    wait_for(lambda: len(begun) == 501)
    clock.leases_pass(3, lease=LEASE, held=500)
    may_end.set()
    wait_for(lambda: db.rows("select count(*) from postrow.history")[0].count == 501)
    assert db.rows("select distinct attempt, failures from postrow.history") == [(1, None)]
    assert db.history(held)
    assert db.rows("select count(*) from effect")[0].count == 1
    assert cancelled == []
    assert not lines("lost the lease")
    assert not lines("was refused")


def test_an_ack_of_ones_own_that_rolls_back_is_an_attempt_that_failed(app, db, start, wait_for):
    @app.queue("q").consumer(retry=SOON)
    def handle(message):
        with psycopg.connect(db.dsn) as conn:
            postrow.ack(conn, message)
            conn.execute(*effect(message))
            if message.attempt == 1:
                raise LookupError("rolls back")

    id_ = db.put()
    start()
    wait_for(lambda: db.history(id_))
    assert [row.attempt for row in db.rows("select attempt from effect")] == [2]


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_block_that_is_ended_by_rollback_settles_nothing_and_the_handlers_return_counts(
    app, db, start, wait_for, kind
):
    if kind == "async":

        @app.queue("q").consumer()
        async def handle(message):
            async with message.transaction() as tx:
                await tx.execute(*effect(message))
                raise psycopg.Rollback

    else:

        @app.queue("q").consumer()
        def handle(message):
            with message.transaction() as tx:
                tx.execute(*effect(message))
                raise psycopg.Rollback

    id_ = db.put()
    start()
    wait_for(lambda: db.history(id_))
    assert db.rows("select 1 from effect") == []
    assert db.live() == 0


@pytest.mark.session("what a handler sets for its session is set for strangers there")
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_what_one_handler_sets_is_none_of_the_next_ones(app, db, start, wait_for, kind):
    seen = []
    changes = (
        *("set app.tenant = 'acme'", "set search_path = ''", "create temporary table own (n int)"),
        *("select pg_advisory_lock(42)", "declare kept cursor with hold for select 1", "listen here"),
    )
    look = """
        select current_setting('app.tenant', true), current_setting('search_path'), coalesce(
            to_regclass('pg_temp.own')::text, (select name from pg_cursors where name = 'kept'),
            (select string_agg(c, ' ') from pg_listening_channels() c),
            (select string_agg(objid::text, ' ') from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()))
    """

    def told(tx, row):
        seen.append((row, tx.row_factory is dict_row))
        tx.row_factory = dict_row

    if kind == "async":

        @app.queue("q").consumer(concurrency=1)
        async def handle(message):
            async with message.transaction() as tx:
                told(tx, await (await tx.execute(look)).fetchone())
                for change in changes:
                    await tx.execute(change)

    else:

        @app.queue("q").consumer(concurrency=1)
        def handle(message):
            with message.transaction() as tx:
                told(tx, tx.execute(look).fetchone())
                for change in changes:
                    tx.execute(change)

    db.put_many([1, 2, 3])
    start(transactions=1)
    wait_for(lambda: db.done() == 3)
    (tenant, path, table), _ = seen[0]
    assert (tenant in {None, ""}, path != "", table) == (True, True, None)
    for (tenant, own_path, table), own_rows in seen[1:]:
        assert (tenant in {None, ""}, own_path, table, own_rows) == (True, path, None, False)
