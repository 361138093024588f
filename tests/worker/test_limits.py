"""Limits in workers: exact over all of them, and room that is made is used at once."""

import asyncio
import threading
from collections import Counter

import pytest

from postrow import Rate
from postrow.errors import BadArgumentError

pytestmark = pytest.mark.slow


class Inside:
    """How many handlers run at once, of a tenant and in all."""

    def __init__(self):
        self._lock = threading.Lock()
        self._now = Counter()
        self.most = 0
        self.most_of_a_tenant = 0
        self.ran = 0

    async def handle(self, message):
        with self._lock:
            self._now[message.tenant] += 1
            self.most = max(self.most, self._now.total())
            self.most_of_a_tenant = max(self.most_of_a_tenant, *self._now.values())
        await asyncio.sleep(0.002)
        with self._lock:
            self._now[message.tenant] -= 1
            self.ran += 1


@pytest.fixture
def inside():
    return Inside()


@pytest.mark.parametrize("transport", ["tap", "poll"])
@pytest.mark.parametrize("in_flight", [1, 3])
def test_three_workers_together_hold_no_more_than_the_limit(app, db, start, wait_for, inside, in_flight, transport):
    app.queue("q").consumer(max_in_flight=in_flight, name="handler")(inside.handle)
    for tenant in ("acme", "beta", "default"):
        db.put_many(range(30), tenant=tenant)
    for n in range(3):
        start(name=f"w{n}", transport=transport, sweep=False)
    wait_for(lambda: db.live() == 0)
    assert (inside.most, inside.ran) == (in_flight, 90)


def test_each_tenant_has_its_limit_in_two_workers(app, db, start, wait_for, inside):
    app.queue("q").consumer(tenant_max_in_flight=2, name="handler")(inside.handle)
    for tenant in ("acme", "beta", "default"):
        db.put_many(range(30), tenant=tenant)
    start(name="w1")
    start(name="w2")
    wait_for(lambda: db.live() == 0)
    assert (inside.most_of_a_tenant, inside.ran) == (2, 90)
    assert inside.most > 2


def test_a_rate_is_kept_by_two_workers(app, db, start, wait_for, inside):
    app.queue("q").consumer(rate=Rate(5, per=0.5), name="handler")(inside.handle)
    db.put_many(range(20))
    start(name="w1")
    start(name="w2")
    wait_for(lambda: db.live() == 0)
    started = [at for (at,) in db.rows("select started_at from postrow.history order by 1")]
    for n in range(20):
        for m in range(n, 20):
            seconds = (started[m] - started[n]).total_seconds()
            assert m - n + 1 <= 5 + 10 * seconds + 1e-6, "no more than the bucket and what came in meanwhile"


def test_a_small_rate_is_used_up(app, db, start, wait_for, inside):
    """One token at a time: a worker that looked too late each time would need far longer."""
    app.queue("q").consumer(rate=Rate(1, per=0.05), name="handler")(inside.handle)
    db.put_many(range(40))
    start(poll_interval=60)
    wait_for(lambda: db.live() == 0)


def test_what_a_limit_holds_back_does_not_hold_up_another_queue(app, db, start, wait_for, inside):
    app.queue("slow").consumer(rate=Rate(1, per=3600), name="handler")(inside.handle)
    app.queue("q").consumer(name="handler")(inside.handle)
    db.put_many(range(50), queue="slow")
    db.put_many(range(50))
    start(poll_interval=60)
    wait_for(lambda: db.done() == 51)
    db.put_many(range(50))
    wait_for(lambda: db.done() == 101)


def test_the_limits_are_registered_and_said(app, db, start, wait_for, inside, lines):
    app.queue("q").consumer(
        name="handler",
        max_in_flight=7,
        rate=Rate(8, per=9),
        tenant_max_in_flight=3,
        tenant_rate=Rate(4),
        on_dead="block",
    )(inside.handle)
    start()
    wait_for(lambda: lines("queue q -> handler"))
    (row,) = db.rows("select * from postrow.consumer")
    assert (row.max_in_flight, row.rate, row.rate_period.total_seconds()) == (7, 8, 9)
    assert (row.tenant_max_in_flight, row.tenant_rate, row.tenant_rate_period.total_seconds()) == (3, 4, 1)
    assert row.on_dead == "block"
    (line,) = lines("queue q -> handler")
    assert line.endswith(
        ", 7 in flight, 8 each 9 s, 3 in flight of a tenant, 4 each 1 s of a tenant, a dead letter blocks its group"
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_in_flight", 0),
        ("max_in_flight", True),
        ("tenant_max_in_flight", 1.5),
        ("rate", 10),
        ("tenant_rate", (1, 2)),
        ("on_dead", "stop"),
        ("on_dead", True),
    ],
)
def test_a_bad_limit_is_refused_where_it_is_declared(app, inside, option, value):
    with pytest.raises(BadArgumentError, match=option):
        app.queue("q").consumer(**{option: value})(inside.handle)


@pytest.mark.parametrize(("count", "per"), [(0, 1), (1.5, 1), (1, 0), (1, 1e9), (True, 1), (1, "1")])
def test_a_bad_rate_is_refused(count, per):
    with pytest.raises(BadArgumentError):
        Rate(count, per=per)
