"""Taps of sessions side by side: who keeps its own back, and what a worker that looks by the rules has seen then.

Interleavings are explicit. Time stands still for the taps, and a test makes the last one older; so no window of
milliseconds has to be met. A tap that was sent is heard by a session that listens.
"""

import uuid

import pytest

QUEUE = "q"
CELL = "('postrow.tap_' || (hashtext('q') & 31))::pg_catalog.regclass"


class Taps:
    """What is heard, and what stands in the cell of queue q."""

    def __init__(self, listener, clerk, wait_for):
        self._wait_for = wait_for
        self._listener = listener
        self._clerk = clerk
        self._heard = []
        listener.conn.add_notify_handler(lambda notify: self._heard.append(notify.payload))
        listener.query("listen postrow")
        self.forget()

    def forget(self):
        """As if the last tap were long ago."""
        self._clerk.query(f"select setval({CELL}, 0, false)")

    def heard(self):
        """What was heard since the last call, of all that was committed before this one."""
        mark = f"mark {uuid.uuid4()}"
        self._clerk.query("select pg_notify('postrow', %s)", [mark])
        self._wait_for(lambda: self._listener.query("select 1") and mark in self._heard, what="the mark")
        at = self._heard.index(mark)
        heard, self._heard = self._heard[:at], self._heard[at + 1 :]
        return heard

    def age(self, milliseconds):
        """Makes the last tap so old, whatever time has passed in the test."""
        self._clerk.query(
            f"select setval({CELL}, pg_sequence_last_value({CELL}) & ~(67108863::bigint << 19) | "
            "((((date_part('epoch', %s::timestamptz) * 1000)::bigint + 15 - %s) & 67108863) << 19))",
            [self._now, milliseconds],
        )

    def freeze(self):
        """From here on time stands still for `tap`."""
        (found,) = self._clerk.query(
            "select pg_get_functiondef('postrow.tap'::pg_catalog.regproc) as text, clock_timestamp() as now"
        )
        self._now = found.now
        self._clerk.query(found.text.replace("clock_timestamp()", f"'{found.now.isoformat()}'::timestamptz"))

    @property
    def kept_back(self):
        """What a worker asks before it looks."""
        return self._clerk.value("taps_kept_back", queue=QUEUE)

    def seen(self):
        """What a worker finds that looks now."""
        return sorted(row.payload for row in self._clerk.query("select payload from postrow.message"))


@pytest.fixture
def taps(own_actors, wait_for):
    found = Taps(own_actors("listener", listens=True), own_actors("clerk"), wait_for)
    found.freeze()
    return found


@pytest.fixture
def tappers(own_actors):
    return [own_actors(f"tapper {n}") for n in range(5)]


def test_beside_a_tap_that_is_not_committed_another_session_taps_for_itself(taps, tappers):
    first, second, *_ = tappers
    first.begin()
    first.put(payload=1)
    second.put(payload=2)
    assert taps.heard() == ["q default"]  # at once, though the first one stays open
    first.rollback()


def test_after_a_committed_tap_the_next_is_kept_back_and_its_message_is_there_at_the_second_look(taps, tappers):
    first, second, *_ = tappers
    first.put(payload=1)
    assert taps.heard() == ["q default"]
    second.put(payload=2)
    assert taps.heard() == []
    assert not taps.kept_back
    assert taps.seen() == [1, 2]


def test_while_a_transaction_that_kept_its_tap_back_is_open_a_worker_is_told_so(taps, tappers):
    """The message is committed after the second look that its tap was kept back for."""
    first, second, *_ = tappers
    first.put(payload=1)
    taps.heard()
    second.begin()
    second.put(payload=2)
    assert taps.kept_back
    assert taps.seen() == [1]

    second.commit()
    assert taps.heard() == []
    assert not taps.kept_back  # so that the look after this answer sees it
    assert taps.seen() == [1, 2]


def test_a_rolled_back_transaction_that_kept_its_tap_back_holds_no_worker_up(taps, tappers):
    first, second, *_ = tappers
    first.put(payload=1)
    second.begin()
    second.put(payload=2)
    assert taps.kept_back
    second.rollback()
    assert not taps.kept_back


def test_with_a_savepoint_that_is_rolled_back_its_lock_goes_and_the_message_too(taps, tappers):
    first, second, *_ = tappers
    first.put(payload=1)
    second.begin()
    second.query("savepoint s")
    second.put(payload=2)
    assert taps.kept_back
    second.query("rollback to s")
    assert not taps.kept_back
    second.commit()
    assert taps.seen() == [1]


def test_a_tap_that_was_rolled_back_is_relied_on_by_nobody(taps, tappers):
    first, second, third, *_ = tappers
    first.begin()
    first.put(payload=1)
    first.rollback()
    second.put(payload=2)
    assert taps.heard() == ["q default"]
    third.put(payload=3)
    assert taps.heard() == []


def test_while_a_worker_asks_who_kept_a_tap_back_everybody_taps(taps, tappers):
    """It holds the lock that they would need; else a message could slip between its question and its look."""
    first, second, worker, *_ = tappers
    first.put(payload=1)
    taps.heard()
    worker.begin()
    assert not worker.value("taps_kept_back", queue=QUEUE)
    second.put(payload=2)
    assert taps.heard() == ["q default"]
    worker.rollback()


def test_in_a_busy_queue_the_next_tap_is_relied_on_while_it_is_being_committed(taps, tappers):
    first, second, third, *_ = tappers
    first.put(payload=1)
    taps.age(20)
    taps.heard()
    second.begin()
    second.put(payload=2)  # its turn
    third.put(payload=3)
    assert taps.heard() == []
    assert taps.seen() == [1, 3]  # what the far look of the first tap is for, should the second roll back
    second.commit()
    assert taps.heard() == ["q default"]


def test_a_tap_that_is_open_for_forty_milliseconds_is_relied_on_no_more_in_a_busy_queue(taps, tappers):
    first, second, third, *_ = tappers
    first.put(payload=1)
    taps.age(20)
    taps.heard()
    second.begin()
    second.put(payload=2)
    taps.age(41)
    third.put(payload=3)
    assert taps.heard() == ["q default"]
    second.rollback()


def test_of_many_that_begin_at_once_three_tap_and_the_others_rely_on_any_of_them(taps, tappers):
    """So a crowd of first taps does not queue up for the lock of NOTIFY."""
    for n, tapper in enumerate(tappers):
        tapper.begin()
        tapper.put(payload=n)
    tappers[0].rollback()
    tappers[4].commit()
    assert taps.heard() == []
    assert taps.seen() == [4]
    tappers[1].commit()
    assert taps.heard() == ["q default"]
    tappers[2].commit()
    tappers[3].commit()
    assert taps.heard() == ["q default"]


def test_a_tap_of_more_than_a_tenth_of_a_second_ago_counts_no_more(taps, tappers):
    first, second, third, *_ = tappers
    first.put(payload=1)
    taps.age(101)
    taps.heard()
    second.begin()
    second.put(payload=2)
    third.put(payload=3)  # the second one is not busy: its transaction may stay open
    assert taps.heard() == ["q default"]
    second.rollback()


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_with_an_old_snapshot_nothing_is_relied_on_that_it_does_not_show(taps, tappers, isolation):
    first, second, *_ = tappers
    second.begin(f"isolation level {isolation}")
    second.query("select 1")
    first.put(payload=1)
    taps.heard()
    second.put(payload=2)
    second.commit()
    assert taps.heard() == ["q default"]


def test_the_bare_lock_of_taps_is_bounded_however_many_queues_a_transaction_serves(taps, tappers):
    first, second, *_ = tappers
    for n in range(200):
        first.put(queue=f"q{n}")
    second.begin()
    for n in range(200):
        second.put(queue=f"q{n}")
    (row,) = second.query("select count(*) as n from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()")
    assert row.n <= 32
    second.rollback()
