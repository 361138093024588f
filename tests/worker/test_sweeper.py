"""Who sweeps, in a fleet of workers."""

import uuid

import pytest

from postrow.worker import sweeper as sweeper_module

pytestmark = pytest.mark.slow  # turns last for seconds


@pytest.fixture
def sweeps(monkeypatch):
    """Whose sweeps there were so far, as the ids of workers, in a list."""
    found = []
    original = sweeper_module.Sweeper._sweep

    async def swept(self, conn, *, full):
        found.append(self._worker)
        await original(self, conn, full=full)

    monkeypatch.setattr(sweeper_module.Sweeper, "_sweep", swept)
    return found


@pytest.fixture
def consumed(app):
    @app.queue("q").consumer()
    async def handle(_message):
        pass


@pytest.mark.usefixtures("consumed")
def test_one_of_three_workers_sweeps(start, wait_for, sweeps):
    for n in range(3):
        start(name=f"w{n}")
    wait_for(lambda: len(sweeps) >= 6)
    assert len(set(sweeps[-4:])) == 1


@pytest.mark.usefixtures("consumed")
def test_a_worker_that_stops_leaves_the_sweep_to_another(start, wait_for, sweeps):
    running = {r.worker._id: r for r in (start(name=f"w{n}") for n in range(2))}
    wait_for(lambda: len(sweeps) >= 4)
    first = running.pop(sweeps[-1])
    (second,) = running
    first.stop()
    wait_for(lambda: sweeps[-1] == second)


@pytest.mark.usefixtures("consumed")
def test_the_sweep_of_a_worker_that_hangs_is_taken_over(db, start, wait_for, sweeps):
    running = {r.worker._id: r for r in (start(name=f"w{n}") for n in range(2))}
    wait_for(lambda: len(sweeps) >= 4)
    first = running.pop(sweeps[-1])
    (second,) = running
    task = first.worker._parts.supervisor.tasks["sweeper"]
    first.worker._loop.call_soon_threadsafe(task.cancel)
    db.put(queue="nobodys")
    (claimed,) = db.rows("select * from postrow.claim('nobodys', 1, lease => '1 s')")
    wait_for(lambda: sweeps[-1] == second)
    wait_for(lambda: db.message(claimed.id).claim_token is None)


@pytest.fixture
def broken_step(db):
    """A step of the sweep that fails, each time."""
    (as_it_was,) = db.rows("select pg_get_functiondef('postrow.sweep_dead'::regproc) as text")
    db.rows(
        'create or replace function postrow.sweep_dead("limit" int, now timestamptz) returns int language plpgsql '
        "as $$ begin raise exception 'out of order'; end $$"
    )
    yield "dead"
    db.rows(as_it_was.text)


@pytest.mark.usefixtures("consumed")
def test_a_step_that_fails_for_good_keeps_no_lease_from_being_taken_back(db, broken_step, start, wait_for, lines):
    id_ = db.put(queue="nobodys", max_attempts=1)
    db.rows("select * from postrow.claim('nobodys', 1, lease => '10 ms')")
    start()
    wait_for(lambda: db.dead(id_))
    wait_for(lambda: lines(f"the step {broken_step} of the sweep failed, the others go on: out of order"))


def test_a_turn_is_kept_by_who_had_it_and_passed_on_when_it_is_over(db):
    def turn(worker):
        return db.value("select postrow.sweep_turn(%s)", [worker])

    first, second = uuid.uuid4(), uuid.uuid4()
    db.rows("select setval('postrow.sweeper', 0)")
    assert [turn(first), turn(second), turn(first)] == [True, False, True]

    db.rows("select setval('postrow.sweeper', last_value - (3000::bigint << 21)) from postrow.sweeper")
    assert [turn(second), turn(first)] == [True, False]

    db.rows("select postrow.leave(%s)", [first])
    assert not turn(first)
    db.rows("select postrow.leave(%s)", [second])
    assert turn(first)


def test_a_turn_of_the_future_as_after_a_step_back_of_the_clock_counts_as_over(db):
    db.rows("select postrow.sweep_turn(%s)", [uuid.uuid4()])
    db.rows("select setval('postrow.sweeper', last_value + (60000::bigint << 21)) from postrow.sweeper")
    assert db.value("select postrow.sweep_turn(%s)", [uuid.uuid4()])
