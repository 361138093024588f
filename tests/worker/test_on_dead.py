"""The handler of a queue's dead letters runs once, with the dead message's payload and failures."""

import dataclasses

import pytest

from postrow import App, Bury


@dataclasses.dataclass
class Charge:
    amount: int


@pytest.mark.parametrize("fails", [False, True])
def test_it_runs_once_and_what_fails_there_is_recorded(app, db, start, wait_for, fails):
    told = []
    charges = app.queue("charges", Charge)

    @charges.consumer(name="charge")
    async def charge(message):
        raise Bury("card closed")

    @charges.on_dead(name="page")
    async def page(message):
        told.append((message.payload, message.failures[-1].message, message.parent_id, message.headers["reason"]))
        if fails:
            raise LookupError("pager is down")

    id_ = db.put("charges", {"amount": 5})
    start(queues=["charges"])
    wait_for(lambda: told and db.live() == 0)
    assert told == [(Charge(5), "card closed", id_, "buried")]
    (letter,) = db.rows("select * from postrow.dead_letter")
    assert letter.id == id_
    assert [failure["type"] for failure in letter.failures] == ["buried", *(["on_dead: LookupError"] if fails else [])]


def test_it_is_a_consumer_of_its_own_with_one_attempt():
    app = App()
    charges = app.queue("charges", Charge)

    @charges.on_dead(concurrency=3)
    def page(message): ...

    ((name, consumer),) = app.consumers.items()
    assert name == ("charges:dead", "*")
    assert (consumer.name, consumer.max_attempts, consumer.concurrency) == ("page", 1, 3)
    assert consumer.queue.type is Charge
