"""A worker takes nothing of what is paused, and goes on when it is resumed."""

import time

import pytest


@pytest.mark.parametrize("what", [{"queue": "q"}, {"tenant": "acme"}, {"queue": "q", "tenant": "acme"}], ids="+".join)
def test_a_worker_takes_nothing_of_what_is_paused_until_it_is_resumed(app, db, start, wait_for, what):
    done = []

    @app.queue("q").consumer()
    async def handle(message):
        done.append((message.tenant, message.payload))

    def call(function):
        db.rows(f"select postrow.{function}({', '.join(f'{name} => %({name})s' for name in what)})", what)

    start(poll_interval=5.0)
    db.put(tenant="acme")
    wait_for(lambda: done)
    call("pause")
    db.put(tenant="acme", payload=2)
    db.put(queue="other", tenant="acme")
    db.put(tenant="beta", payload=3)
    wait_for(lambda: ("beta", 3) in done or "tenant" not in what)
    began = time.monotonic()
    call("resume")
    wait_for(lambda: ("acme", 2) in done)
    assert time.monotonic() - began < 4, "the tap of the resume was not heard: it came with the poll"


def test_while_a_queue_is_paused_its_worker_holds_nothing_of_it(app, db, start, wait_for):
    done = []

    @app.queue("q").consumer()
    async def handle(message):
        done.append(message.payload)

    @app.queue("r").consumer()
    async def other(message):
        done.append(message.payload)

    db.rows("select postrow.pause('q')")
    for n in range(3):
        db.put(payload=f"q{n}")
    start()
    for n in range(3):
        db.put(queue="r", payload=f"r{n}")
    wait_for(lambda: len(done) == 3)
    assert sorted(done) == ["r0", "r1", "r2"]
    assert db.value("select count(*) from postrow.message where claim_token is null") == 3
    db.rows("select postrow.resume('q')")
    wait_for(lambda: len(done) == 6)
