"""The project's own tests, run by Django (`manage.py test`), in the test database that its migrations make."""
# ruff: noqa: PT027  # a project without pytest

from uuid import uuid4

from django.contrib.auth.models import User
from django.db import connection, connections, transaction
from django.test import TestCase, TransactionTestCase
from django.test.utils import CaptureQueriesContext
from psycopg.conninfo import conninfo_to_dict
from shop.jobs import Confirm, app, confirmations
from shop.models import Order

import postrow
import postrow.app
from postrow.django import App
from postrow.django.connections import closing
from postrow.django.models import DeadLetter, History, Message
from postrow.testing import drain


def put(queue="emails", payload='{"user_id": 17}', **options):
    """Enqueue by SQL, and give the id."""
    named = "".join(f", {name} => %s" for name in options)
    with connection.cursor() as cursor:
        cursor.execute(f"select id from postrow.enqueue(%s, %s{named})", [queue, payload, *options.values()])
        return cursor.fetchone()[0]


def claim(queue):
    with connection.cursor() as cursor:
        cursor.execute("select tenant, id, claim_token from postrow.claim(%s, 1, worker => 'w1')", [queue])
        return cursor.fetchone()


def settle(function, claimed, *more):
    with connection.cursor() as cursor:
        marks = ", %s" * len(more)
        values = [[part] for part in (*claimed, *more)]
        cursor.execute(f"select outcome from postrow.{function}(%s, %s, %s{marks})", values)
        assert cursor.fetchone() == ("accepted",)


class Enqueue(TestCase):
    def test_a_test_case_enqueues_in_its_transaction(self):
        response = self.client.post("/orders", {"item": "tea", "quantity": 2})
        assert response.status_code == 201
        message = Message.objects.get()
        assert message.payload == {"order_id": Order.objects.get().id}
        assert message.state == "ready"

    def test_a_refused_order_leaves_no_message(self):
        response = self.client.post("/orders", {"item": "tea", "quantity": 2000})
        assert response.status_code == 409
        assert (Order.objects.count(), Message.objects.count()) == (0, 0)

    def test_nothing_is_left_of_another_test(self):
        assert Message.objects.count() == 0


class Handlers(TransactionTestCase):
    def tearDown(self):
        for model in (Message, DeadLetter, History):  # Django empties the tables of managed models only
            model.objects.all().delete()
        app.close()

    def test_drain_runs_the_handlers_on_the_test_database(self):
        self.client.post("/orders", {"item": "tea", "quantity": 2})
        drain(app)
        assert Order.objects.get().confirmed_at is not None
        assert History.objects.get().outcome == "done"

    def test_autocommit_is_refused_outside_of_atomic(self):
        with self.assertRaises(postrow.NotInTransactionError):
            confirmations.enqueue(connection, Confirm(order_id=1))

    def test_send_needs_no_transaction(self):
        sent = app.send(confirmations, Confirm(order_id=1))
        assert Message.objects.get().id == sent.id


class Connections(TransactionTestCase):
    def pid(self):
        with connection.cursor() as cursor:
            cursor.execute("select pg_backend_pid()")
            return cursor.fetchone()[0]

    def test_a_connection_past_its_age_is_closed_after_a_handler(self):
        before = self.pid()
        after = closing(lambda _message: self.pid())(None)
        assert after != before  # and before it
        assert self.pid() != after

    def test_a_connection_is_kept_inside_of_a_transaction(self):
        with transaction.atomic():
            before = self.pid()
            assert closing(lambda _message: self.pid())(None) == before
            assert self.pid() == before

    def test_what_a_handler_raises_is_what_comes_out(self):
        def broken(_message):
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            closing(broken)(None)

    def test_a_handler_is_wrapped_once(self):
        def handler(_message):
            pass

        assert closing(closing(handler)).__wrapped__ is handler

    async def test_an_async_handler_stays_async(self):
        async def handler(_message):
            return await Order.objects.acount()

        assert await closing(handler)(None) == 0


class Dsn(TestCase):
    def dsn(self, name=None, **options):
        other = connection.copy("other")
        other.settings_dict = {**other.settings_dict, "OPTIONS": options}
        if name is not None:
            other.settings_dict["NAME"] = name
        connections["other"] = other
        try:
            return conninfo_to_dict(App("other").dsn)
        finally:
            del connections["other"]

    def test_it_names_the_test_database(self):
        assert conninfo_to_dict(app.dsn)["dbname"] == connection.settings_dict["NAME"]
        assert connection.settings_dict["NAME"].startswith("test_")

    def test_options_of_libpq_are_in_it(self):
        assert self.dsn(sslmode="disable", connect_timeout=3)["sslmode"] == "disable"

    def test_options_of_django_and_psycopg_are_not(self):
        options = {"isolation_level": 4, "server_side_binding": True, "prepare_threshold": None, "pool": True}
        assert set(self.dsn(**options)) == set(self.dsn())

    def test_the_role_that_django_assumes_is_the_worker_s_too(self):
        found = self.dsn(assume_role="shop owner", options="-c statement_timeout=5s")
        assert found["options"] == "-c statement_timeout=5s -c role=shop\\ owner"

    def test_a_service_may_name_the_database(self):
        assert self.dsn(name="", service="shop")["service"] == "shop"


class Admin(TestCase):
    def setUp(self):
        self.client.force_login(User.objects.create_superuser("ada"))

    def page(self, path, **query):
        response = self.client.get(f"/admin/postrow/{path}", query)
        assert response.status_code == 200
        return response.content.decode()

    def dead(self, **options):
        id_ = put("payments", max_attempts=1, **options)
        settle("fail", claim("payments"), "the card is closed", "CardError", "Traceback of it")
        return id_

    def test_messages_are_listed_with_their_state(self):
        put(subject="user:17")
        put("reports", delay="1 hour")
        put("payments")
        claim("payments")
        text = self.page("message/")
        for expected in ("emails", "user:17", "ready", "reports", "scheduled", "payments", "claimed"):
            assert expected in text
        assert "Add message" not in text
        assert 'name="action"' not in text

    def test_the_newest_message_is_the_first_of_the_list(self):
        first, second = put(), put()
        text = self.page("message/")
        assert text.index(str(second)) < text.index(str(first))

    def test_messages_are_filtered_by_queue_and_tenant(self):
        mine, other = put("emails", tenant="acme"), put("reports", tenant="umbrella")
        for query in ({"queue": "emails"}, {"tenant": "acme"}):
            text = self.page("message/", **query)
            assert str(mine) in text
            assert str(other) not in text

    def test_a_message_is_found_by_its_id_or_its_subject(self):
        mine, other = put(subject="order:17"), put(subject="order:18")
        for words in (str(mine), mine.hex, " order:17 "):
            text = self.page("message/", q=words)
            assert str(mine) in text
            assert str(other) not in text
        assert "0 messages" in self.page("message/", q=str(uuid4()))

    def test_a_message_shows_its_payload_formatted_and_escaped(self):
        id_ = put(payload='{"name": "<script>Ada Łukasz", "n": [1]}', headers='{"trace": "a<b"}')
        text = self.page(f"message/{id_}/change/")
        assert "{\n  &quot;n&quot;: [\n    1\n  ],\n  &quot;name&quot;: &quot;&lt;script&gt;Ada Łukasz" in text
        assert "a&lt;b" in text
        assert "<script>Ada" not in text
        assert 'name="_save"' not in text

    def test_dead_letters_are_listed_with_reason_and_last_error(self):
        id_ = self.dead()
        text = self.page("deadletter/")
        for expected in (str(id_), "attempts", "CardError: the card is closed"):
            assert expected in text
        text = self.page(f"deadletter/{id_}/change/")
        for expected in ("attempt 1, ", "w1", "CardError: the card is closed", "Traceback of it"):
            assert expected in text

    def test_dead_letters_that_wait_for_a_decision_can_be_asked_for(self):
        waits, decided = self.dead(), self.dead(tenant="acme")
        with connection.cursor() as cursor:
            cursor.execute("select postrow.resolve(%s, 'acme', 'ignored', 'a test')", [decided])
        text = self.page("deadletter/", decision="open")
        assert str(waits) in text
        assert str(decided) not in text
        text = self.page("deadletter/", decision="made")
        assert str(decided) in text
        assert str(waits) not in text

    def test_finished_messages_are_listed_and_found(self):
        id_ = put(subject="user:17")
        settle("ack", claim("emails"))
        assert str(id_) in self.page("history/", q="user:17")
        assert "done" in self.page(f"history/{id_}/change/")

    def test_every_change_is_refused(self):
        alive, dead = put(), self.dead()
        settled = put("reports")
        settle("ack", claim("reports"))
        for path in (f"message/{alive}", f"deadletter/{dead}", f"history/{settled}"):
            for view in ("change", "delete"):
                response = self.client.post(f"/admin/postrow/{path}/{view}/", {"queue": "x", "post": "yes"})
                assert response.status_code == 403, (path, view)
        for name in ("message", "deadletter", "history"):
            for id_ in (alive, dead, settled):
                action = {"action": "delete_selected", "_selected_action": str(id_), "post": "yes"}
                self.client.post(f"/admin/postrow/{name}/", action)
            assert self.client.post(f"/admin/postrow/{name}/add/").status_code == 403
        assert (Message.objects.get().queue, DeadLetter.objects.count()) == ("emails", 1)
        assert History.objects.count() == 1

    def test_an_id_that_is_not_there_leads_back_to_the_index(self):
        for words in (uuid4(), "no-id"):
            response = self.client.get(f"/admin/postrow/message/{words}/change/")
            assert response.status_code == 302

    def test_two_tenants_with_the_same_id_do_no_harm(self):
        id_ = uuid4()
        for tenant in ("acme", "umbrella"):
            put(tenant=tenant, id=id_)
        self.page("message/")
        self.page(f"message/{id_}/change/")

    def test_who_may_not_view_sees_nothing(self):
        self.client.force_login(User.objects.create_user("bob", is_staff=True))
        assert self.client.get("/admin/postrow/message/").status_code == 403

    def test_a_list_counts_ten_thousand_at_most(self):
        with connection.cursor() as cursor:
            cursor.execute(
                "select count(*) from postrow.enqueue_lines('emails', (select string_agg(n::text, e'\\n') "
                "from generate_series(1, 10100) n))"
            )
        assert "10000 messages" in self.page("message/")

    def test_the_list_reads_no_payload(self):
        put()
        with CaptureQueriesContext(connection) as queries:
            self.page("message/")
        listed = [query["sql"] for query in queries if '"postrow"."message"' in query["sql"]]
        assert len(listed) > 2
        assert not [sql for sql in listed if "payload" in sql]


class Models(TestCase):
    def test_they_have_the_columns_of_their_tables(self):
        for model in (Message, DeadLetter, History):
            table = model._meta.db_table.replace('"', "")
            with connection.cursor() as cursor:
                cursor.execute(
                    "select attname from pg_attribute "
                    "where attrelid = %s::regclass and attnum > 0 and not attisdropped",
                    [table],
                )
                columns = {name for (name,) in cursor.fetchall()}
            assert {field.column for field in model._meta.fields} == columns, table


class Apps(TestCase):
    def test_the_app_of_django_is_one_of_postrow(self):
        assert isinstance(app, postrow.app.App)
