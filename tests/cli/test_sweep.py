import signal

import psycopg
import pytest

from postrow.embedded import Server

pytestmark = pytest.mark.slow


def _expired(db, number):
    db.rows("select count(*) from postrow.enqueue_many('emails', "
            "(select jsonb_agg('{\"payload\": 1}'::jsonb) from generate_series(1, %s)))", number)  # fmt: skip
    db.rows("select count(*) from postrow.claim('emails', %s, lease => '1 ms')", number)


def test_one_sweep_goes_on_until_nothing_more_is_to_do(run, db):
    _expired(db, 2_500)  # a call does 1,000
    found = run("sweep")
    assert found.code == 0
    assert found.out.splitlines()[:2] == ["step      done", "leases   2,500"]
    assert db.value("select count(*) from postrow.message where claim_token is not null") == 0


def test_a_sweep_does_every_step_that_there_is(run, db):
    found = run("sweep")
    assert [line.split()[0] for line in found.out.splitlines()[1:]] == [
        step for (step,) in db.rows("select step from postrow.sweep()")
    ]


def test_a_sweep_frees_a_group_that_nothing_stands_in_front_of(run, db):
    db.rows("select postrow.enqueue('emails', '1', group_key => 'g')")
    db.conn.execute("update postrow.message set behind = true")  # as two acks at the same moment may leave it
    assert "groups      1" in run("sweep").out.splitlines()
    assert len(db.rows("select id from postrow.claim('emails', 1)")) == 1


def test_a_sweep_waits_for_another_and_says_so_when_it_takes_too_long(run, committed, monkeypatch):
    monkeypatch.setattr("postrow.cli.sweep.PATIENCE", 0.05)
    with psycopg.connect(committed) as other:
        other.execute("select pg_advisory_xact_lock(1886613364, 1)")
        found = run("sweep")
    assert found.code == 5
    assert found.err.startswith("postrow: another process is sweeping all the time\n")


def test_sweeping_again_and_again_ends_at_sigterm_with_0(start, db, wait_for):
    sweeping = start("sweep", "--every", "20ms")
    _expired(db, 3)
    wait_for(lambda: db.value("select count(*) from postrow.message where claim_token is not null") == 0)
    sweeping.send_signal(signal.SIGTERM)
    assert sweeping.wait(20) == 0
    assert "sweeping every 0.02 s; database 127.0.0.1:" in sweeping.stderr.read()


def test_sweeping_survives_an_outage_with_few_words(start, wait_for):
    with Server(durable=False) as server:
        dsn = server.dsn()
        assert start("migrate", dsn=dsn).wait(30) == 0
        sweeping = start("sweep", "--every", "20ms", dsn=dsn)
        assert "sweeping every" in sweeping.stderr.readline()
        server.kill()
        assert "database trouble in sweep" in sweeping.stderr.readline()
        server.start()
        assert "the database is back" in sweeping.stderr.readline()
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("select * from postrow.enqueue('emails', '1')")
            conn.execute("select count(*) from postrow.claim('emails', 1, lease => '1 ms')")
            wait_for(lambda: conn.execute("select claim_token is null from postrow.message").fetchone()[0])
        sweeping.send_signal(signal.SIGINT)
        assert sweeping.wait(20) == 130
        assert len(sweeping.stderr.read().splitlines()) == 1  # stopped


def test_sweeping_again_and_again_refuses_a_database_without_a_schema(process, empty_database):
    found = process("sweep", "--every", "1s", dsn=empty_database)
    assert found.code == 4
    assert "Run: postrow migrate" in found.err
