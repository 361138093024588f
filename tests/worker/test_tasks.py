"""`Tasks`: each unit of work runs as if it had a task of its own, though most share one."""

import asyncio
import contextlib
import contextvars
import decimal
import gc
import time
import weakref

import anyio
import pytest

from postrow.worker import tasks as tasks_module
from postrow.worker.tasks import Tasks

VAR = contextvars.ContextVar("var", default="unset")


class Units:
    """Runs coroutine functions as units, in a loop of the test's own, and waits for all of them."""

    def __init__(self):
        self.errors = []
        self.left = 0
        self._empty = asyncio.Event()
        self._tasks = Tasks(self._run)

    async def _run(self, unit):
        try:
            await unit()
        except BaseException as error:
            self.errors.append(error)
        self.left -= 1
        if not self.left:
            self._empty.set()

    def submit(self, *units):
        for unit in units:
            self.left += 1
            self._tasks.submit(unit)

    async def ended(self):
        self._empty.clear()
        if self.left:
            await asyncio.wait_for(self._empty.wait(), 20)
        await asyncio.sleep(0)  # the last task ends after its last unit


@pytest.fixture
def run():
    """Runs `scenario(units)`; whatever the loop itself has to complain of is an error."""

    def run(scenario):
        async def main():
            complaints = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            units = Units()
            try:
                return await scenario(units)
            finally:
                await asyncio.sleep(0)
                gc.collect()
                assert complaints == []

        return asyncio.run(main())

    return run


@pytest.fixture
def breathless(monkeypatch):
    """However slow the machine is, no task ends for the time it took."""
    monkeypatch.setattr(tasks_module, "BREATH", 3600.0)


def recording(seen, name, *, before=None, after=None):
    """A unit that notes its name and task when it begins."""

    async def unit():
        seen.append((name, asyncio.current_task()))
        if before is not None:
            before()
        if after is not None:
            await after()

    return unit


def names(seen):
    return [name for name, _ in seen]


def test_units_begin_in_the_order_of_their_submission(run):
    seen = []

    async def scenario(units):
        units.submit(*(recording(seen, n) for n in range(100)))
        await units.ended()

    run(scenario)
    assert names(seen) == list(range(100))


@pytest.mark.usefixtures("breathless")
def test_units_that_do_not_wait_share_one_task(run):
    seen = []

    async def scenario(units):
        units.submit(*(recording(seen, n) for n in range(100)))
        await units.ended()

    run(scenario)
    assert len({task for _, task in seen}) == 1


@pytest.mark.usefixtures("breathless")
def test_a_unit_that_waits_keeps_its_task_to_itself_and_the_others_go_on_meanwhile(run):
    seen = []

    async def scenario(units):
        go_on = asyncio.Event()
        units.submit(
            recording(seen, "quick"),
            recording(seen, "slow", after=go_on.wait),
            recording(seen, "next"),
            recording(seen, "last"),
        )
        for _ in range(3):
            await asyncio.sleep(0)
        assert names(seen) == ["quick", "slow", "next", "last"]
        units.submit(recording(seen, "later"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert names(seen)[-1] == "later"
        go_on.set()
        await units.ended()

    run(scenario)
    of = dict(seen)
    assert of["slow"] not in {of["next"], of["last"], of["later"]}
    assert of["next"] is of["last"]


def test_a_hundred_units_that_wait_for_each_other_all_run_at_once(run):
    async def scenario(units):
        barrier = asyncio.Barrier(100)
        units.submit(*[barrier.wait] * 100)
        await units.ended()

    run(scenario)


def test_a_unit_that_another_submits_runs_too(run):
    seen = []

    async def scenario(units):
        units.submit(recording(seen, "first", before=lambda: units.submit(recording(seen, "second"))))
        await units.ended()
        units.submit(recording(seen, "third"))
        await units.ended()

    run(scenario)
    assert names(seen) == ["first", "second", "third"]


def test_units_that_never_wait_let_the_loop_breathe(run, monkeypatch):
    monkeypatch.setattr(tasks_module, "BREATH", 0.001)
    turns = []

    async def scenario(units):
        loop = asyncio.get_running_loop()

        def turn():
            turns.append(units.left)
            if units.left:
                loop.call_soon(turn)

        units.submit(*(recording([], n, before=lambda: time.sleep(0.002)) for n in range(10)))
        loop.call_soon(turn)
        await units.ended()

    run(scenario)
    assert len({left for left in turns if 0 < left < 10}) > 5, "the loop had its turn between them"


@pytest.mark.usefixtures("breathless")
def test_a_context_variable_that_one_unit_sets_is_not_seen_by_the_next(run):
    found = []

    def look_and_set():
        found.append(VAR.get())
        VAR.set(f"of unit {len(found)}")

    async def scenario(units):
        units.submit(*(recording([], n, before=look_and_set) for n in range(5)))
        await units.ended()

    run(scenario)
    assert found == ["unset"] * 5


@pytest.mark.usefixtures("breathless")
def test_a_value_that_only_equals_the_one_before_is_not_seen_by_the_next_either(run):
    """One dictionary equals another, and is not it: what a unit's callbacks add to its own is not the next one's."""
    shared: contextvars.ContextVar[dict[str, str]] = contextvars.ContextVar("shared")
    outer = {}
    found = []

    def look_and_set():
        found.append(shared.get())
        shared.set({})

    async def main():
        shared.set(outer)
        units = Units()
        units.submit(*(recording([], n, before=look_and_set) for n in range(3)))
        await units.ended()

    asyncio.run(main())
    assert all(value is outer for value in found)


class Hostile:
    """A value that cannot be compared, as an array of numbers cannot."""

    def __eq__(self, other):
        raise ValueError("the truth value of this is ambiguous")

    __hash__ = None


@pytest.mark.usefixtures("breathless")
def test_a_value_that_cannot_be_compared_does_no_harm(run):
    seen = []
    array: contextvars.ContextVar[Hostile] = contextvars.ContextVar("array")

    async def scenario(units):
        array.set(Hostile())
        units = Units()  # that has it in its context
        units.submit(*(recording(seen, n, before=lambda: array.set(Hostile())) for n in range(3)))
        await units.ended()

    run(scenario)
    assert names(seen) == [0, 1, 2]
    assert [task.exception() for _, task in seen] == [None] * 3


@pytest.mark.usefixtures("breathless")
def test_a_variable_that_is_set_back_is_as_if_it_had_not_been_set(run):
    seen = []

    def set_and_reset():
        VAR.reset(VAR.set("mine"))

    async def scenario(units):
        units.submit(*(recording(seen, n, before=set_and_reset) for n in range(5)))
        await units.ended()

    run(scenario)
    assert len({task for _, task in seen}) == 1


@pytest.mark.usefixtures("breathless")
def test_the_precision_that_one_unit_sets_is_not_that_of_the_next(run):
    found = []

    def calculate():
        found.append(decimal.getcontext().prec)
        decimal.setcontext(decimal.Context(prec=3))

    async def scenario(units):
        units.submit(*(recording([], n, before=calculate) for n in range(3)))
        await units.ended()

    run(scenario)
    assert len(set(found)) == 1
    assert found[0] != 3


def test_what_the_submitter_sets_is_not_seen_by_its_units(run):
    found = []

    async def scenario(units):
        VAR.set("of the claimer")
        units.submit(recording([], 0, before=lambda: found.append(VAR.get())))
        await units.ended()

    run(scenario)
    assert found == ["unset"]


@pytest.mark.usefixtures("breathless")
def test_an_exception_of_one_unit_does_not_reach_the_next(run):
    seen = []

    def fail():
        raise RuntimeError("boom")

    async def scenario(units):
        units.submit(recording(seen, 0, before=fail), recording(seen, 1), recording(seen, 2))
        await units.ended()
        assert [str(error) for error in units.errors] == ["boom"]

    run(scenario)
    assert names(seen) == [0, 1, 2]


@pytest.mark.usefixtures("breathless")
@pytest.mark.parametrize("waits", [False, True])
def test_a_unit_that_cancels_its_own_task_cancels_no_other(run, waits):
    seen = []

    async def scenario(units):
        units.submit(
            recording(
                seen, "suicidal", before=lambda: asyncio.current_task().cancel(),
                after=(lambda: asyncio.sleep(0)) if waits else None,
            ),
            recording(seen, "next", after=lambda: asyncio.sleep(0)),
            recording(seen, "last"),
        )  # fmt: skip
        await units.ended()
        assert [type(error) for error in units.errors] == [asyncio.CancelledError] * waits

    run(scenario)
    assert names(seen) == ["suicidal", "next", "last"]


def test_a_unit_that_waits_can_be_cancelled_by_its_task_and_no_other_is(run):
    seen = []

    async def scenario(units):
        for_ever = asyncio.Event()
        units.submit(
            recording(seen, "cancelled", after=for_ever.wait),
            recording(seen, "another", after=lambda: asyncio.sleep(0.01)),
        )
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        dict(seen)["cancelled"].cancel()
        await units.ended()
        assert [type(error) for error in units.errors] == [asyncio.CancelledError]

    run(scenario)
    assert names(seen) == ["cancelled", "another"]


@pytest.mark.usefixtures("breathless")
def test_a_timeout_a_task_group_and_a_cancel_scope_work_in_a_unit_that_shares_its_task(run):
    found = []

    async def with_timeout():
        async with asyncio.timeout(10):  # noqa: ASYNC100  # it must not wait
            pass

    async def too_late():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()

    async def late_already():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(-1):  # noqa: ASYNC100  # it must not wait
                pass

    async def with_group():
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))

    async def with_scope():
        with anyio.move_on_after(10):  # noqa: ASYNC100  # it must not wait
            pass
        with anyio.CancelScope() as scope:  # noqa: ASYNC100  # it must not wait
            scope.cancel()
        assert anyio.get_current_task().id == id(asyncio.current_task())

    async def cut_off():
        with anyio.move_on_after(0.001) as scope:
            await anyio.sleep_forever()
        assert scope.cancelled_caught

    async def last():
        assert anyio.get_cancelled_exc_class() is asyncio.CancelledError, "it knows under what it runs"
        assert not asyncio.current_task().cancelling()
        await asyncio.sleep(0.01)  # nobody's timer cancels it
        found.append("done")

    async def scenario(units):
        for unit in (with_timeout, too_late, late_already, with_group, with_scope, cut_off):
            units.submit(unit, last)
        await units.ended()
        assert units.errors == []

    run(scenario)
    assert found.count("done") == 6


@pytest.mark.usefixtures("breathless")
def test_a_callback_on_the_end_of_a_units_task_comes_with_the_end_of_that_unit(run):
    """As libraries do that tidy up behind a task."""
    seen = []

    async def scenario(units):
        go_on = asyncio.Event()

        def tidy_up():
            asyncio.current_task().add_done_callback(lambda _: seen.append("tidied up"))

        units.submit(
            recording([], 0, before=tidy_up),
            recording([], 1, before=lambda: seen.append("second"), after=go_on.wait),
        )
        for _ in range(4):
            await asyncio.sleep(0)
        assert sorted(seen) == ["second", "tidied up"]
        go_on.set()
        await units.ended()

    run(scenario)


@pytest.mark.usefixtures("breathless")
def test_an_exception_in_such_a_callback_stops_nothing(run):
    seen = []

    async def scenario(units):
        complaints = []
        loop = asyncio.get_running_loop()
        before = loop.get_exception_handler()
        loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))

        def explode(_):
            raise RuntimeError("boom")

        units.submit(
            recording(seen, 0, before=lambda: asyncio.current_task().add_done_callback(explode)), recording(seen, 1)
        )
        await units.ended()
        await asyncio.sleep(0)
        loop.set_exception_handler(before)
        assert len(complaints) == 1

    run(scenario)
    assert names(seen) == [0, 1]


@pytest.mark.usefixtures("breathless")
def test_the_name_that_a_unit_gives_its_task_is_not_the_name_of_the_next(run):
    found = []

    def name():
        found.append(asyncio.current_task().get_name())
        asyncio.current_task().set_name("mine")

    async def scenario(units):
        units.submit(*(recording([], n, before=name) for n in range(3)))
        await units.ended()

    run(scenario)
    assert "mine" not in found


class Payload:
    pass


def test_nothing_holds_a_unit_that_has_ended(run):
    async def scenario(units):
        async def hold(payload):
            del payload

        alive = []
        for waits in (False, True):
            payload = Payload()
            alive.append(weakref.ref(payload))

            async def unit(payload=payload, waits=waits):
                if waits:
                    await asyncio.sleep(0)
                await hold(payload)

            units.submit(unit)
            del payload, unit
        await units.ended()
        await asyncio.sleep(0)
        assert [ref() for ref in alive] == [None, None]

    gc.disable()
    try:
        run(scenario)
    finally:
        gc.enable()
