"""Whatever a handler raises, the worker lives, the attempt is recorded, and the next message runs."""

from dataclasses import dataclass

import pytest

import postrow


class BadStrError(Exception):
    def __str__(self):
        raise RuntimeError("no text for you")


class BadReprError(Exception):
    def __repr__(self):
        return repr(self)


class StrExitsError(Exception):
    def __str__(self):
        raise SystemExit(3)


class OfItsOwn(BaseException):
    pass


class Reasonless(postrow.Bury):
    def __init__(self):
        Exception.__init__(self)


class BadReason(str):
    __slots__ = ()

    def __str__(self):
        raise RuntimeError("no reason")


def nested(depth):
    error = ValueError("the innermost")
    for n in range(depth):
        error = ExceptionGroup(f"group {n}", [error])
    return error


def buried():
    signal = postrow.Bury("x")
    signal.reason = BadReason("x")
    return signal


RAISED = {
    "a lone surrogate": lambda: Exception("\ud800"),
    "bytes": lambda: Exception(b"\xff\xfe"),
    "str raises": BadStrError,
    "str exits": StrExitsError,
    "repr recurses": BadReprError,
    "50 MB": lambda: Exception("x" * 50_000_000),
    "50 MB of surrogates": lambda: Exception("\udfff" * 50_000_000),
    "nested groups": lambda: nested(200),
    "nul": lambda: Exception("a\0b"),
    "SystemExit": lambda: SystemExit(1),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "a BaseException": lambda: OfItsOwn("mine"),
    "a Bury without a reason": Reasonless,
    "a Bury whose reason raises": buried,
    "a Retry with a surrogate": lambda: postrow.Retry("\ud800\0"),
    "nothing to say": Exception,
}


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_the_worker_survives_whatever_a_handler_raises(app, db, start, wait_for, lines, kind):
    if kind == "async":

        @app.queue("q").consumer(max_attempts=1, concurrency=30)
        async def handle(message):
            if message.payload in RAISED:
                error = RAISED[message.payload]()
                raise error

    else:

        @app.queue("q").consumer(max_attempts=1, concurrency=30)
        def handle(message):
            if message.payload in RAISED:
                error = RAISED[message.payload]()
                raise error

    ids = {name: db.put(payload=name) for name in RAISED}
    running = start()
    wait_for(lambda: db.live() == 0)
    dead = {name: wait_for(lambda id_=id_: db.dead(id_)) for name, id_ in ids.items()}
    after = db.put(payload="good")
    wait_for(lambda: db.history(after))
    assert not running.ended
    assert lines("begins again") == []
    for name, row in dead.items():
        (failure,) = row.failures
        assert failure["attempt"] == 1, name
        assert len(str(failure).encode()) < 2500, name
    assert dead["a lone surrogate"].failures[0]["message"] == "\ufffd"
    assert dead["nul"].failures[0]["message"] == "a\ufffdb"
    assert dead["SystemExit"].failures[0]["type"] == "SystemExit"
    assert "the innermost" in dead["nested groups"].failures[0]["message"]
    assert dead["50 MB"].failures[0]["message"].startswith("xxxx")
    assert "raise error" in dead["KeyboardInterrupt"].failures[0]["traceback"]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("batch", [None, 3])
def test_the_worker_survives_a_payload_type_that_exits(app, db, start, wait_for, lines, kind, batch, error):
    @dataclass
    class Exits:
        n: int

        def __post_init__(self):
            if self.n == 1:
                raise error

    seen = []

    async def in_the_loop(given):
        in_a_thread(given)

    def in_a_thread(given):
        seen.extend(message.payload.n for message in (given if batch else [given]))

    queue = app.queue("q", Exits)
    queue.consumer(batch=batch, max_attempts=1)(in_the_loop if kind == "async" else in_a_thread)
    ids = [db.put(payload={"n": n}) for n in range(3)]
    running = start()
    wait_for(lambda: db.live() == 0)

    assert sorted(seen) == [0, 2]
    assert db.dead(ids[1]).failures[0]["type"] == error.__name__
    assert not running.ended
    assert lines("begins again") == []


def test_a_batch_whose_handler_raises_generator_exit_fails(app, db, start, wait_for):
    @app.queue("q").consumer(batch=10, max_attempts=1)
    async def handle(_messages):
        raise GeneratorExit

    id_ = db.put()
    start()
    assert wait_for(lambda: db.dead(id_)).failures[0]["type"] == "GeneratorExit"


def test_a_reason_to_bury_that_cannot_be_stored_is_cleaned(app, db, start, wait_for):
    @app.queue("q").consumer()
    async def handle(_message):
        raise postrow.Bury("gone \ud800\0" + "x" * 5000)

    id_ = db.put()
    start()
    dead = wait_for(lambda: db.dead(id_))
    assert dead.reason == "buried"
    assert "gone \ufffd\ufffdxxx" in str(dead.failures)
