"""A Django project as people run it: `manage.py migrate`, `test`, `check`, `postrow_worker`."""

import re
import signal
from functools import partial
from pathlib import Path

import psycopg
import pytest
from pgbouncer import POOLED

from postrow import migrate
from postrow.sql import SCHEMA_VERSION

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

JOBS = """
import threading

import postrow
from django.db import connection
from postrow.django import App
from shop.models import Order

app = App()


def note(kind):
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        Order.objects.create(item=f"{kind} {threading.current_thread().name}", quantity=cursor.fetchone()[0])


@app.queue("sync").consumer()
def handle(message: postrow.Message) -> None:
    note("sync")


@app.queue("async").consumer()
async def handle_async(message: postrow.Message) -> None:
    from asgiref.sync import sync_to_async

    await Order.objects.acount()
    await sync_to_async(note)("async")
"""


@pytest.fixture
def migrated(project):
    project.managed("migrate")
    return project


def has(project, statement, rows):
    return project.rows(statement) == rows


def check(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        return migrate.plan(conn)


def test_migrate_brings_the_whole_schema_and_then_finds_nothing_to_do(project):
    assert "Applying postrow.0001_schema_1_1... OK" in project.managed("migrate")
    assert check(project.dsn).empty
    partitions = "select count(*) from pg_inherits where inhparent = 'postrow.history'::regclass"
    assert project.rows(partitions) == [(9,)]
    assert "No migrations to apply" in project.managed("migrate")
    assert "No changes detected" in project.managed("makemigrations", "--check", "--dry-run")
    project.managed("check", "--deploy", "--fail-level", "ERROR")


def test_migrate_leaves_a_schema_alone_that_postrow_migrate_made(project):
    migrate.apply(project.dsn)
    before = project.rows("select name, applied_at from postrow.function_file order by name")
    project.managed("migrate")
    assert project.rows("select name, applied_at from postrow.function_file order by name") == before


def test_the_printed_sql_makes_the_schema(project):
    script = project.managed("sqlmigrate", "postrow", "0001")
    assert project.rows("select count(*) from pg_namespace where nspname = 'postrow'") == [(0,)]
    with psycopg.connect(project.dsn, autocommit=True) as conn:
        conn.execute(script)
    assert check(project.dsn).empty


def test_every_option_of_the_worker_command_is_in_the_how_to(project):
    page = (ROOT / "docs/howto/use-with-django.md").read_text(encoding="utf-8")
    options = set(re.findall(r"(?m)^  (--[a-z-]+)", project.managed("postrow_worker", "--help")))
    of_django = set(re.findall(r"(?m)^  (--[a-z-]+)", project.managed("migrate", "--help")))
    assert {option for option in options - of_django if f"`{option}`" not in page} == set()
    assert len(options - of_django) == 11


def test_going_back_is_refused_with_the_way_to_remove_it(migrated):
    refused = migrated.manage("migrate", "postrow", "zero")
    assert refused.code != 0
    assert "its messages would be lost" in refused.err
    assert check(migrated.dsn).empty


def test_there_is_a_migration_for_the_present_schema_and_every_one_before(migrated):
    listed = re.findall(r"\[X\] \d+_schema_(\d+)_(\d+)", migrated.managed("showmigrations", "postrow"))
    versions = [(int(major), int(minor)) for major, minor in listed]
    assert versions == sorted(versions)
    assert versions[-1] == SCHEMA_VERSION, "add a migration to src/postrow/django/migrations"


def test_a_pool_and_a_strict_isolation_level_do_not_disturb_the_migration(project):
    project.settings(
        "from psycopg import IsolationLevel\n"
        "DATABASES['default']['OPTIONS'] = {'pool': True, 'isolation_level': IsolationLevel.SERIALIZABLE}\n"
    )
    project.managed("migrate")
    assert check(project.dsn).empty


def test_a_database_that_is_not_postgres_is_passed_over_and_refused_by_the_worker(project):
    project.settings("DATABASES['default'] = {'ENGINE': 'django.db.backends.sqlite3', 'NAME': 'here.db'}\n")
    project.managed("migrate")
    refused = project.manage("postrow_worker")
    assert refused.code == 2
    assert "Django's database 'default' is of sqlite" in refused.err
    assert "Traceback" not in refused.err


def test_a_router_keeps_the_schema_out_of_a_database(project):
    project.settings("DATABASE_ROUTERS = ['shop.routers.Elsewhere']\n")
    project.write(
        "shop/routers.py",
        "class Elsewhere:\n    def allow_migrate(self, db, app_label, **_hints):\n        "
        "return app_label != 'postrow'\n",
    )
    project.managed("migrate")
    assert project.rows("select count(*) from pg_namespace where nspname = 'postrow'") == [(0,)]


@pytest.mark.session("Django drops its test database, and the server drops none that a pooler is connected to")
def test_the_tests_of_the_project_pass(project):
    """What is said there: the admin, enqueueing in tests, the DSN."""
    done = project.manage("test", "--noinput", "--shuffle")
    assert done.code == 0, done.err
    assert re.search(r"Ran \d{2} tests", done.err)


def test_a_worker_handles_messages_with_django_and_stops_on_sigterm(migrated, wait_for):
    migrated.write("shop/jobs.py", JOBS)
    migrated.write("shop/urls.py", "urlpatterns = []\n")
    migrated.settings("DATABASES['default']['OPTIONS'] = {'application_name': 'the shop'}\n")
    worker = migrated.start("postrow_worker", "--name", "w1", "--grace", "5", "--health", "0", "-v", "1")
    for queue in ("sync", "async"):
        migrated.rows("select postrow.enqueue(%s, '1')", [queue])
    done = "select count(*), max(attempt) from postrow.history where outcome = 'done'"
    wait_for(lambda: migrated.rows(done) == [(2, 1)], what=f"the handlers: {migrated.log}")
    if not POOLED:  # a pooler keeps its own
        pids = [pid for (pid,) in migrated.rows("select quantity from shop_order")]
        # CONN_MAX_AGE is 0: the handlers' connections are closed, as after a request
        alive = "select count(*) from pg_stat_activity where pid = any(%s)"
        wait_for(lambda: migrated.rows(alive, [pids]) == [(0,)], what="the end of Django's connections")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert "worker w1: queue sync -> handle" in migrated.log


@pytest.mark.session("the session that it ends is one of others, too")
@pytest.mark.parametrize("queue", ["sync", "async"])
def test_a_worker_survives_the_loss_of_djangos_connection(migrated, wait_for, queue):
    migrated.write("shop/jobs.py", JOBS)
    migrated.write("shop/urls.py", "urlpatterns = []\n")
    migrated.settings("DATABASES['default'] |= {'CONN_MAX_AGE': None, 'CONN_HEALTH_CHECKS': True}\n")
    migrated.start("postrow_worker", "--concurrency", "1")
    pids = []
    finished = "select attempt from postrow.history order by finished_at"
    for done in ([(1,)], [(1,), (1,)]):
        migrated.rows("select postrow.enqueue(%s, '1')", [queue])
        wait_for(partial(has, migrated, finished, done), what=f"the handler: {migrated.log}")
        pids.append(migrated.rows("select quantity from shop_order order by id desc limit 1")[0][0])
        # it is kept open, and then lost
        assert migrated.rows("select pg_terminate_backend(%s, 5000)", pids[-1:]) == [(True,)]
    assert pids[0] != pids[1]


@pytest.mark.parametrize(
    ("setting", "words", "said"),
    [
        ("del POSTROW_APP", [], "no app is given"),
        ("POSTROW_APP = 'shop.nothing:app'", [], "No module named 'shop.nothing'"),
        ("POSTROW_APP = 'shop.views:orders'", [], "shop.views:orders is a function, not a postrow.django.App"),
        ("", ["--queues", "confirmations,none"], "the app has no handler for queue 'none'"),
        ("", ["--health", "x"], "'x' is no address"),
        ("", ["--health", "203.0.113.1:80"], "cannot serve health pages on 203.0.113.1:80: "),
        ("", [], "this database has no Postrow schema"),
    ],
)
def test_a_worker_that_cannot_start_says_why(project, setting, words, said):
    project.settings(setting + "\n")
    refused = project.manage("postrow_worker", *words)
    assert refused.code != 0
    assert said in refused.err
    assert "Traceback" not in refused.err
