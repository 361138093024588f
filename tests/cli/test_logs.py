"""Lines of the log as JSON."""

import json
import logging
import sys
from types import SimpleNamespace
from uuid import uuid4

import pytest

from postrow.cli import logs
from postrow.ops.lineage import handled


@pytest.fixture
def line():
    """The line that a record makes: line(text, *arguments, extra=…, exc_info=…)."""
    formatter = logs._Json()

    def make(text, *args, extra=None, exc_info=None):
        record = logging.getLogger("shop").makeRecord(
            "shop", logging.WARNING, "shop.py", 1, text, args, exc_info, extra=extra
        )
        text = formatter.format(record)
        assert "\n" not in text
        return json.loads(text)

    return make


def test_a_line_has_time_level_logger_and_message_and_nothing_else(line):
    found = line("%s is late", "order:17")
    assert found.pop("time").endswith("+00:00")
    assert found == {"level": "warning", "logger": "shop", "message": "order:17 is late"}


def test_the_fields_of_a_record_are_in_its_line(line):
    extra = {
        "message_id": "m",
        "attempt": 2,
        "share": 0.5,
        "sure": True,
        "who": None,
        "order": ["a"],
        "odd": float("nan"),
    }
    found = line("late", extra=extra)
    kept = {name: found[name] for name in extra}
    assert kept == {**extra, "order": "['a']", "odd": "nan"}


def test_a_field_does_not_replace_what_every_line_has(line):
    assert line("late", extra={"time": "never", "logger": "mine", "level": 3})["logger"] == "shop"


def test_a_line_is_bounded(line):
    extra = {f"field_{n}": n for n in range(1000)} | {"long": "x"}
    found = line("x" * 100_000, extra=extra)
    assert len(found) == logs.FIELDS
    assert len(found["message"]) < logs.TEXT + 10
    assert len(json.dumps(line("short", extra={"long": "x" * 1_000_000}))) < 2 * logs.TEXT


def test_a_field_that_cannot_be_read_does_not_cost_the_line(line):
    class Broken:
        def __str__(self):
            raise RuntimeError

    assert line("late", extra={"it": Broken()})["it"] == "a Broken"


def test_an_exception_is_a_field(line):
    try:
        raise ValueError("no")
    except ValueError:
        found = line("late", exc_info=sys.exc_info())
    assert found["traceback"].endswith("ValueError: no")


def test_what_a_handler_logs_names_its_message(line):
    id_ = uuid4()
    token = handled.set(SimpleNamespace(id=id_, hops=0))
    try:
        assert line("late")["message_id"] == str(id_)
        assert line("late", extra={"message_id": "mine"})["message_id"] == "mine"
    finally:
        handled.reset(token)


def test_what_a_handler_of_many_logs_names_none_of_them(line):
    token = handled.set(SimpleNamespace(id=None, hops=0))
    try:
        assert "message_id" not in line("late")
    finally:
        handled.reset(token)


def test_the_lines_of_a_worker_have_the_fields_of_their_message(start, db, tmp_path, wait_for):
    (tmp_path / "shop.py").write_text(
        "import logging, postrow\n"
        "app = postrow.App()\n"
        "@app.queue('emails').consumer(max_attempts=1)\n"
        "def send(message):\n"
        "    logging.getLogger('shop').warning('cannot', extra={'order': 17})\n"
        "    raise ValueError('no\\nmore')\n"
    )
    id_ = str(db.enqueue())
    process = start("worker", "shop:app", "--name", "w7", "--log-format", "json")
    wait_for(lambda: db.value("select count(*) from postrow.dead_letter"), what="the dead letter")
    process.terminate()
    _, err = process.communicate(timeout=30)
    lines = [json.loads(text) for text in err.splitlines()]
    (own,) = [found for found in lines if found["logger"] == "shop"]
    assert (own["message"], own["message_id"], own["order"]) == ("cannot", id_, 17)
    (failed,) = [found for found in lines if "failed" in found["message"]]
    assert failed["message"] == f"attempt 1 of emails / default {id_} failed: ValueError: no"
    about = {name: failed[name] for name in ("message_id", "queue", "tenant", "attempt", "worker")}
    assert about == {"message_id": id_, "queue": "emails", "tenant": "default", "attempt": 1, "worker": "w7"}
