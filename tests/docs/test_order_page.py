"""The page on order, limits and fairness runs as printed, and does what it says."""

import threading
import types
from collections import defaultdict

import psycopg
import pytest

import postrow
from postrow.worker import Worker

pytestmark = pytest.mark.slow

PAGE = "docs/howto/order-limits-and-fairness.md"


@pytest.fixture
def names(docs, monkeypatch, database):
    """The names that the page's Python makes, on a database of its own."""
    monkeypatch.setenv("POSTROW_DSN", database)
    module = types.ModuleType("page")
    for block in docs.page(PAGE).blocks("python"):
        exec(compile(block.text, PAGE, "exec"), module.__dict__)
    yield module
    module.app.close()


@pytest.fixture
def work(names, wait_for, database):
    """Runs the page's app until a condition of the database holds."""

    def until(condition):
        worker = Worker(names.app)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            with psycopg.connect(database, autocommit=True) as conn:
                wait_for(lambda: conn.execute(f"select {condition}").fetchone()[0], what=condition)
        finally:
            worker.stop()
            thread.join()

    return until


NOTHING_IS_LEFT = "not exists (select from postrow.message)"


def test_each_account_has_its_entries_in_the_order_of_their_enqueuing(names, work, database):
    with psycopg.connect(database) as conn:
        conn.execute("create table entry (n int generated always as identity, account int, amount numeric)")
        for n in range(1, 11):
            names.transfer(conn, 17, 18, n)
        names.deposit(conn, [{"account": account, "amount": n} for n in range(11, 21) for account in (17, 18)])
    work(NOTHING_IS_LEFT)
    found = defaultdict(list)
    with psycopg.connect(database) as conn:
        for account, amount in conn.execute("select account, amount from entry order by n"):
            found[account].append(amount)
    assert found == {17: [*range(-1, -11, -1), *range(11, 21)], 18: list(range(1, 21))}


def test_a_dead_entry_blocks_its_account_alone_and_the_pages_query_shows_it(docs, names, work, database):
    with psycopg.connect(database) as conn:
        conn.execute("create table entry (account int, amount numeric check (amount <> 13))")
        names.ledger.enqueue(conn, {"account": 17, "amount": 13}, group_key="account:17", max_attempts=1)
        names.deposit(conn, [{"account": 17, "amount": 1}, {"account": 17, "amount": 2}, {"account": 18, "amount": 3}])
    work("exists (select from postrow.dead_letter) and exists (select from entry)")
    query = docs.page(PAGE).blocks("sql")[0].text
    with psycopg.connect(database) as conn:
        ((key, _, waiting),) = conn.execute(query).fetchall()
        assert (key, waiting) == ("account:17", 2)
        assert conn.execute("select amount from entry").fetchall() == [(3,)]
        conn.execute("select postrow.resolve(id, tenant, 'handled', 'by hand') from postrow.dead_letter")
        assert conn.execute(query).fetchall() == []
    work(NOTHING_IS_LEFT)
    with psycopg.connect(database) as conn:
        assert conn.execute("select amount from entry where account = 17").fetchall() == [(1,), (2,)]


def test_the_limits_of_the_page_are_registered_as_its_sql_has_them(docs, names, work, database):
    limits = (
        "select max_in_flight, rate, rate_period, tenant_max_in_flight, tenant_rate, tenant_rate_period "
        "from postrow.consumer where queue = 'mails'"
    )
    with psycopg.connect(database) as conn:
        names.mails.enqueue(conn, {"to": "ada@example.com"})
    work(NOTHING_IS_LEFT)
    (call,) = (block.text for block in docs.page(PAGE).blocks("sql") if "register_consumer" in block.text)
    with psycopg.connect(database) as conn:
        registered = conn.execute(limits).fetchall()
        conn.execute("delete from postrow.consumer")
        conn.execute(call)
        assert conn.execute(limits).fetchall() == registered


@pytest.mark.parametrize(("rate", "most"), [(postrow.Rate(600, per=60), 1200), (postrow.Rate(300, per=60), 600)])
def test_the_fullest_minute_of_a_rate_is_as_the_page_says(rate, most):
    assert rate.count + rate.count * 60 / rate.per == most
