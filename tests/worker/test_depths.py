"""The looks at queues for the page of metrics: what becomes of their figures when one fails."""

import psycopg
import pytest

from postrow.models import QueueDepth
from postrow.worker import depths
from postrow.worker.connections import Database


@pytest.fixture
def looks(db, monkeypatch):
    """Looks that are due at each ask, and wait for a lock that another has for a moment only."""
    monkeypatch.setattr(depths, "EVERY", 0.0)
    monkeypatch.setattr(depths, "SHARE", 0)
    monkeypatch.setattr(depths, "LIMIT", "100ms")
    db.put()
    found = depths.Depths(Database(db.dsn, False, shared=False))
    assert found.now()[0]
    return found


@pytest.mark.parametrize(
    ("workers", "queues", "looking"),
    [([], 1, 1), ([0], 1, 1), ([3, 5], 2, 5), ([1] * 50, 1, 50), ([1] * 50, 50, 1), ([10] * 4, 4, 10)],
)
def test_workers_that_look_are_guessed_from_those_of_all_queues(workers, queues, looking):
    found = [QueueDepth(f"q{n}", 0, 0, 0, 0, 0.0, count) for n, count in enumerate(workers)]
    assert depths.rivals(found, queues) == looking


def test_figures_are_left_out_a_while_after_a_look_that_took_too_long(db, looks, wait_for, monkeypatch, sessions_on):
    monkeypatch.setattr(depths, "SHARE", 1e6)  # its cost spares the database for a day
    monkeypatch.setattr(depths, "TOO_OLD", 0.3)
    sessions_on(db.dsn).execute("lock table postrow.dead_letter in access exclusive mode")
    wait_for(lambda: looks.now() is None)


def test_an_outage_puts_the_next_look_off_by_no_more_than_usual(looks, wait_for, monkeypatch):
    monkeypatch.setattr(depths, "SHARE", 1e6)
    monkeypatch.setattr(depths, "TOO_OLD", 0.0)
    original = Database.connect_sync

    def refuses(self, part):
        raise psycopg.OperationalError("connection refused")

    monkeypatch.setattr(Database, "connect_sync", refuses)
    assert looks.now() is None
    monkeypatch.setattr(Database, "connect_sync", original)
    monkeypatch.setattr(depths, "TOO_OLD", 60.0)
    wait_for(looks.now)
