import pytest

from postrow.cli.demo.workers import Workers
from postrow.errors import WorkerError


def test_a_worker_that_ends_by_itself_ends_the_demo_with_its_log(empty_database, tmp_path):
    workers = Workers(empty_database, tmp_path)
    try:
        worker = workers.start()
        assert worker.process.wait(30) == 4
        with pytest.raises(WorkerError, match="worker-1 ended by itself with exit code 4") as caught:
            workers.check()
        assert "this database has no Postrow schema" in caught.value.hint
    finally:
        workers.end()


def test_a_worker_stops_when_it_is_asked_to_and_is_not_missed(database, tmp_path, wait_for):
    workers = Workers(database, tmp_path)
    try:
        worker = workers.start()
        wait_for(lambda: b"worker-1: queue" in worker.log.read_bytes(), what="the worker to start")
        workers.stop()
        assert worker.process.returncode == 0
        workers.check()
    finally:
        workers.end()
