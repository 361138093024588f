"""The loop that a worker makes for itself."""

import gc

import pytest

from postrow.errors import BadArgumentError
from postrow.worker import Worker
from postrow.worker.loops import run


@pytest.fixture
def threshold():
    before = gc.get_threshold()
    yield gc.set_threshold
    gc.set_threshold(*before)


@pytest.mark.parametrize(("before", "meanwhile"), [((700, 10, 10), 10_000), ((50_000, 5, 5), 50_000), ((0, 10, 10), 0)])
@pytest.mark.parametrize("raises", [False, True])
def test_the_collector_looks_rarely_while_a_worker_runs_unless_it_did_anyway(threshold, before, meanwhile, raises):
    threshold(*before)
    seen = []

    async def main():
        seen.append(gc.get_threshold())
        if raises:
            raise ZeroDivisionError
        return 3

    if raises:
        with pytest.raises(ZeroDivisionError):
            run(main())
    else:
        assert run(main()) == 3
    assert seen == [(meanwhile, *before[1:])]
    assert gc.get_threshold() == before


async def test_run_in_a_running_loop_names_serve(app, db):
    app.queue("q").consumer(name="handler")(print)
    with pytest.raises(BadArgumentError, match=r"one is running in this thread\s+There, await serve"):
        Worker(app).run()
