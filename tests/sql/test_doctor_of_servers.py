"""Checks of postrow.doctor() that need a server of their own: its settings, its standby, its copies."""

import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

import psycopg
import pytest

from postrow import migrate
from postrow.embedded import Server

pytestmark = pytest.mark.slow


def look(conn, name):
    """The level and the detail of a check."""
    return conn.execute("select level, detail, advice from postrow.doctor() where name = %s", [name]).fetchone()


def burn(conn, transactions):
    """Use up so many transaction ids."""
    conn.execute(f"do $$ begin for n in 1..{transactions} loop perform pg_current_xact_id(); commit; end loop; end $$")


@pytest.fixture
def start():
    """Starts servers of the tested version, with settings; they are stopped at the end."""
    folder = os.environ.get("POSTROW_TEST_BIN")
    running = []

    def start(**settings):
        server = Server(bin_dir=Path(folder) if folder else None, durable=False, settings=settings).start()
        running.append(server)
        migrate.apply(server.dsn())
        return server

    yield start
    for server in running:
        server.stop()


def test_autovacuum_that_is_off_for_the_server_is_found(start):
    with psycopg.connect(start(autovacuum="off").dsn(), autocommit=True) as conn:
        level, detail, advice = look(conn, "vacuum")
        assert (level, detail) == ("problem", "autovacuum is switched off for the whole server")
        assert "autovacuum = on" in advice


def test_transaction_ids_that_are_long_overdue_are_found(start):
    server = start(autovacuum="off", autovacuum_freeze_max_age="100000")
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        assert look(conn, "freeze")[0] == "ok"
        burn(conn, 112_000)
        level, detail, advice = look(conn, "freeze")
        assert level == "warning"
        assert "transactions ago; autovacuum does it at 100000" in detail
        for (name,) in conn.execute("select datname from pg_database where datallowconn").fetchall():
            with psycopg.connect(server.dsn(name), autocommit=True) as each:
                each.execute(advice.rpartition(": ")[2])
        assert look(conn, "freeze")[0] == "ok"


def test_a_notify_queue_that_fills_is_found(start):
    folder = os.environ.get("POSTROW_TEST_BIN")
    if int(Server(bin_dir=Path(folder) if folder else None).version.split(".")[0]) < 17:
        pytest.skip("the size of the notify queue is a setting from Postgres 17 on: 800 MB would have to be filled")
    dsn = start(max_notify_queue_pages="64").dsn()
    with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(dsn, autocommit=True) as stuck:
        assert look(conn, "taps")[:2] == ("ok", "the notify queue is 0.0 % full")
        stuck.execute("listen postrow")
        stuck.execute("begin")

        def fill(share):
            while conn.execute("select pg_notification_queue_usage()").fetchone()[0] <= share:
                conn.execute("select pg_notify('postrow', %s)", [uuid.uuid4().hex.ljust(7_900)])
            return look(conn, "taps")

        assert fill(0.1)[0] == "warning"
        level, detail, advice = fill(0.5)
        assert level == "problem"
        assert detail.endswith("workers get no taps, and only poll")
        assert "idle in transaction" in advice
        stuck.execute("commit")


def test_an_owner_that_is_no_superuser_finds_all_but_the_sessions_of_others_and_says_so(start):
    server = start()
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute("create role shop login password 'shop'")
        admin.execute("create database shop owner shop")
        shop = f"postgresql://shop:shop@127.0.0.1:{server.port}/shop"
        migrate.apply(shop)
        with psycopg.connect(server.dsn("shop")) as holder, psycopg.connect(shop, autocommit=True) as conn:
            holder.execute("select pg_current_xact_id()")
            conn.execute("select postrow.refuse_copy()")
            assert conn.execute("select name, detail from postrow.doctor() where level <> 'ok'").fetchall() == []
            hidden = "no other transaction is open; of other roles' sessions nothing is seen until: "
            assert look(conn, "snapshot")[1] == f"{hidden}grant pg_read_all_stats to shop"
            admin.execute(look(conn, "snapshot")[1].removeprefix(hidden))
            assert look(conn, "snapshot")[1].startswith("the oldest transaction has been open for ")


# copies


def run(server, program, *words):
    subprocess.run(
        [server.bin_dir / program, *words],
        check=True,
        capture_output=True,
        timeout=60,
        env={**os.environ, "LC_ALL": "C"},
    )


def test_a_dump_that_is_restored_on_another_server_is_a_copy_until_it_is_adopted(start, tmp_path):
    original, other = start(), Server(bin_dir=start().bin_dir, durable=False)
    dump = tmp_path / "dump.sql"
    with psycopg.connect(original.dsn(), autocommit=True) as conn:
        conn.execute("select postrow.refuse_copy()")  # as a worker does when it starts
        conn.execute("select postrow.enqueue('emails', '1')")
        assert look(conn, "copy")[0] == "ok"
    run(original, "pg_dump", "--no-owner", "--file", str(dump), original.dsn())
    with other, psycopg.connect(other.dsn(), autocommit=True) as conn:
        for role in migrate.ROLES:
            conn.execute(f"create role {role} nologin")
        run(other, "psql", "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--file", str(dump), other.dsn())
        level, detail, _advice = look(conn, "copy")
        assert level == "problem"
        assert (
            detail == "this database has the messages of database postgres of another server: workers refuse to start"
        )
        with pytest.raises(psycopg.Error) as refused:
            conn.execute("select postrow.refuse_copy()")
        assert refused.value.sqlstate == "PW010"
        assert conn.execute("select postrow.adopt()").fetchone() == (True,)
        conn.execute("select postrow.refuse_copy()")
        assert look(conn, "copy")[0] == "ok"
        assert conn.execute("select postrow.adopt()").fetchone() == (False,)


@pytest.fixture
def standby_of(server_folder):
    """Makes standbys of servers by pg_basebackup, not started yet: they report the snapshots of their queries."""
    made = []

    def make(primary, *, slot):
        owner = primary.data.stat().st_uid
        os.chown(server_folder, owner, -1)
        base = [primary.bin_dir / "pg_basebackup", "--pgdata", server_folder / "standby", "--dbname", primary.dsn()]
        as_owner = {"user": owner} if os.geteuid() == 0 else {}
        words = ["--create-slot", "--slot", slot, "--write-recovery-conf", "--checkpoint", "fast"]
        subprocess.run([*base, *words], check=True, capture_output=True, timeout=60, cwd="/", **as_owner)
        shutil.copytree(f"{primary.data}.postrow", f"{server_folder}/standby.postrow")  # with the password
        settings = {"hot_standby_feedback": "on", "wal_receiver_status_interval": "1"}
        made.append(Server(server_folder / "standby", bin_dir=primary.bin_dir, durable=False, settings=settings))
        return made[-1]

    yield make
    for standby in made:
        standby.stop()


@pytest.fixture
def server_folder():
    """A folder that the account of an embedded server can have, also when the tests run as root."""
    folder = Path(tempfile.mkdtemp(prefix="postrow-doctor-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_standby_that_is_promoted_is_no_copy_and_the_slot_that_it_leaves_is_found(start, standby_of, wait_for):
    primary = start()
    with psycopg.connect(primary.dsn(), autocommit=True) as conn:
        conn.execute("select postrow.refuse_copy()")
        conn.execute("select postrow.enqueue('emails', '1')")
        standby = standby_of(primary, slot="reports")
        with standby:
            xmin = "select xmin is not null from pg_replication_slots where slot_name = 'reports'"
            with psycopg.connect(standby.dsn()) as report:
                wait_for(lambda: report.execute("select count(*) from postrow.message").fetchone()[0])
                report.rollback()
                report.execute("set transaction isolation level repeatable read")
                report.execute("select count(*) from postrow.message")
                assert look(report, "copy")[0] == "ok"  # it is asked on a standby, too
                wait_for(lambda: conn.execute(xmin).fetchone()[0], what="the standby's snapshot")
                assert look(conn, "snapshot")[0] == "ok"
                burn(conn, 101_000)
                level, detail, advice = look(conn, "snapshot")
                assert level == "warning"
                assert detail.startswith("the replication slot reports (in use) holds back 10")
                assert "hot_standby_feedback" in advice

            standby.kill()
            in_use = "select active from pg_replication_slots where slot_name = 'reports'"
            wait_for(lambda: not conn.execute(in_use).fetchone()[0], what="the standby's end")
            level, detail, advice = look(conn, "snapshot")
            assert level == "problem"
            assert detail.startswith("the replication slot reports (not in use) holds back 10")
            conn.execute(advice.rpartition(": ")[2])
            assert look(conn, "snapshot")[0] == "ok"

            standby.start()
            with psycopg.connect(standby.dsn(), autocommit=True) as promoted:
                promoted.execute("select pg_promote()")
                promoted.execute("select postrow.refuse_copy()")
                assert look(promoted, "copy")[0] == "ok"
                assert promoted.execute("select count(*) from postrow.claim('emails', 1)").fetchone() == (1,)
