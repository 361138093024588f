"""The proof must fail when something is wrong: here the tables are tampered with."""

from uuid import uuid4

import psycopg
import pytest

from postrow.cli.demo import orders, proof
from postrow.cli.demo.events import Event

pytestmark = pytest.mark.slow

ORDERS = 10
BUSY = '[{"type": "x.MailServerBusyError"}, {"type": "x.MailServerBusyError"}]'
TAXED = '[{"type": "x.NoTaxRateError", "message": "no tax rate"}]'
EXPIRED = '[{"type": "lease_expired", "worker": "worker-1"}]'
HEAVY = f"subject = 'order:{orders.heavy_of(ORDERS)}' and queue = 'demo.warehouse'"


@pytest.fixture
def shop(database):
    """A demo that went well, without workers: every message settled as the handlers would have."""
    with psycopg.connect(database, autocommit=True, application_name="worker-2") as conn:
        conn.execute(orders.TABLES)
        website = orders.Website(conn, orders.heavy_of(ORDERS))
        for number in range(1, ORDERS + 1):
            website.take(number)
        website.forward(Event(1, {"n": [1, True]}, "order.paid"))
        website.confess()
        for queue in ("demo.email", "demo.warehouse", "demo.invoice", "demo.webhook"):
            conn.execute("create temporary table c as select * from postrow.claim(%s, 100)", [queue])
            conn.execute(
                "update postrow.message set failures = case when queue = 'demo.email' and subject = 'order:6' "
                f"then '{BUSY}'::jsonb when queue = 'demo.invoice' and subject = 'order:8' then '{TAXED}' "
                f"when {HEAVY} then '{EXPIRED}' end where queue = %s",
                [queue],
            )
            dead = "queue = 'demo.invoice' and subject = 'order:8'"
            conn.execute(
                f"""
                select postrow.kill(array[tenant], array[id], '{{attempts}}', array[failures], postrow.clock())
                from postrow.message where {dead} and queue = %s""",
                [queue],
            )
            conn.execute(f"""
                insert into effect (message_id, tenant, queue, subject, attempt, received)
                select id, tenant, queue, subject, 1, case when queue = 'demo.webhook' then payload::text end
                from c where not ({dead})""")
            conn.execute(f"""
                select postrow.ack(array_agg(tenant), array_agg(id), array_agg(claim_token))
                from c where not ({dead})""")
            conn.execute("drop table c")
        conn.execute(f"""
            insert into effect (message_id, tenant, queue, subject, attempt)
            select message_id, tenant, queue, subject, 2 from effect where {HEAVY}""")
        yield conn, website


def held(conn):
    """The message that worker-1 is said to have held."""
    return [row[0] for row in conn.execute(f"select message_id from effect where {HEAVY} limit 1")]


def failing(shop, more=()):
    findings = proof.ask(*shop, killed="worker-1", held=[*held(shop[0]), *more])
    return [check.text for check in findings.checks if not check.holds]


def test_the_proof_holds_when_all_went_well(shop):
    findings = proof.ask(*shop, killed="worker-1", held=held(shop[0]))
    assert findings.holds, findings.checks
    assert findings.total(2) == 27
    assert len(findings.dead) == 1


@pytest.mark.parametrize(
    ("tampering", "complaint"),
    [
        ("delete from postrow.history where subject = 'order:1' and queue = 'demo.email'", "Messages lost"),
        ("delete from postrow.dead_letter", "Messages lost"),
        ("delete from orders where number = 1", "Orders that were committed"),
        (
            """insert into postrow.history select (h).* from (select h from postrow.history h
            where subject = 'order:1' and queue = 'demo.email') t""",
            "Their messages: each is handled or a dead letter, once",
        ),
        (
            "begin; select postrow.enqueue('demo.email', '{}', tenant => 'toys', subject => 'order:999'); commit",
            "Messages that no committed order has sent",
        ),
        (
            "begin; select postrow.enqueue('demo.email', '{}', id => message_id) from rolled_back limit 1; commit",
            "Messages of 1 rolled back order",
        ),
        (
            """insert into effect (message_id, tenant, queue, subject, attempt)
            select message_id, shop, 'demo.email', 'order:4', 1 from rolled_back limit 1""",
            "Messages of 1 rolled back order",
        ),
        ("delete from effect where subject = 'order:1'", "Handled messages that are in the handlers' own record"),
        (
            "update postrow.history set failures = failures - 0 where subject = 'order:6' and queue = 'demo.email'",
            "E-mails that failed twice",
        ),
        ("update postrow.dead_letter set failures = '[]'", "Invoices that always fail"),
        (f"update postrow.history set failures = null where {HEAVY}", "Messages that came back from worker-1"),
        (
            """insert into effect (message_id, tenant, queue, subject, attempt) select message_id, tenant, queue,
            subject, 2 from effect where subject in ('order:2', 'order:3')""",
            "Messages done twice",
        ),
        ("delete from effect where attempt = 2", "Messages done twice"),
        ("""update effect set received = '{"n": [1, 1]}' where received is not null""", "Messages from your file"),
        ("delete from effect where received is not null", "Messages from your file"),
    ],
)
def test_the_proof_fails_when_the_tables_say_otherwise(shop, tampering, complaint):
    shop[0].execute(tampering)
    assert any(text.startswith(complaint) for text in failing(shop))


def test_the_proof_fails_when_fewer_messages_came_back_than_were_held(shop):
    assert failing(shop, more=[uuid4()]) == ["Messages that came back from worker-1, which was killed"]


def test_the_heavy_order_is_one_that_nothing_else_happens_to():
    for total in range(10, 400):
        heavy = orders.heavy_of(total)
        assert total * 2 // 5 <= heavy <= total
        assert heavy % 10 != 4
        assert heavy % 25 != 6
        assert heavy % 50 != 8
