from datetime import UTC, datetime, timedelta

import psycopg
import pytest

LAST_INT = 2**31 - 1


def test_a_message_is_ready_and_has_the_defaults(pg, clock):
    sent = pg.row("enqueue", queue="emails", payload={"user_id": 17})

    assert sent.deduplicated is False
    row = pg.find("message", sent.id)
    assert row.tenant == "default"
    assert row.queue == "emails"
    assert row.payload == {"user_id": 17}
    assert row.priority == row.attempt == row.hops == 0
    assert row.enqueued_at == row.available_at == clock.now
    unused = {"claim_token", "claimed_at", "claimed_by", "max_attempts", "headers", "failures", "subject", "target"}
    unused |= {"target_until", "expires_at", "group_key", "dedup_key", "topic", "parent_id"}
    assert [getattr(row, name) for name in sorted(unused)] == [None] * len(unused)


def test_every_option_is_stored(pg, clock):
    tomorrow = clock.now + timedelta(days=1)
    sent = pg.put(
        tenant="acme",
        priority=-7,
        delay=timedelta(minutes=5),
        max_attempts=3,
        target="laptop",
        target_for=timedelta(hours=1),
        subject="order:17",
        expires_at=tomorrow,
        headers={"trace": "00-ab"},
    )

    row = pg.find("message", sent)
    assert (row.tenant, row.priority, row.max_attempts) == ("acme", -7, 3)
    assert row.available_at == clock.now + timedelta(minutes=5)
    assert (row.target, row.target_until) == ("laptop", clock.now + timedelta(minutes=65))
    assert (row.subject, row.expires_at, row.headers) == ("order:17", tomorrow, {"trace": "00-ab"})


def test_a_rollback_leaves_nothing(pg):
    with pg.conn.transaction() as savepoint:
        sent = pg.put()
        assert pg.find("message", sent)
        raise psycopg.Rollback(savepoint)

    assert pg.find("message", sent) is None
    assert pg.value("depth", queue="q") == 0


@pytest.mark.parametrize("literal", ["0", "false", '""', "[]", "{}", "null", '"0"', "-0.5"])
def test_a_falsy_payload_is_a_payload(pg, literal):
    pg.query("select * from postrow.enqueue('q', %s::jsonb)", [literal])

    (claimed,) = pg.query("select payload::text from postrow.claim('q', 1)")
    assert claimed.payload == literal


def test_a_null_payload_is_refused(pg):
    error = pg.refused("enqueue", queue="q", payload=None)

    assert error.sqlstate == "PW003"
    assert "payload" in str(error)


@pytest.mark.parametrize(
    ("literal", "sqlstate"), [(r'"\u0000"', "22P05"), (r'"\ud800"', "22P02"), ("NaN", "22P02"), ("", "22P02")]
)
def test_a_payload_that_jsonb_cannot_store_is_refused_by_postgres(pg, literal, sqlstate):
    with pytest.raises(psycopg.Error) as caught:
        pg.query("select * from postrow.enqueue('q', %s::text::jsonb)", [literal])

    assert caught.value.sqlstate == sqlstate


def test_a_payload_of_a_megabyte_taps_and_goes_through(pg):
    sent = pg.put(payload="ä" * 500_000)

    assert pg.query("select octet_length(payload::text) as n from postrow.message where id = %s", [sent])[0].n > 10**6


def test_available_at_in_the_past_is_now(pg, clock):
    sent = pg.put(available_at=datetime(1970, 1, 1, tzinfo=UTC))

    assert pg.find("message", sent).available_at == clock.now


def test_a_delay_of_zero_is_now(pg, clock):
    sent = pg.put(delay=timedelta(0))

    assert pg.find("message", sent).available_at == clock.now


def test_a_delay_counts_from_the_real_moment_not_from_the_start_of_the_transaction(pg):
    pg.query("select pg_sleep(0.03)")  # now() stands still meanwhile
    sent = pg.put(delay=timedelta(seconds=1))

    (row,) = pg.query(
        "select enqueued_at - now() as age, available_at - enqueued_at as delay from postrow.message where id = %s",
        [sent],
    )
    assert row.age >= timedelta(seconds=0.03)
    assert row.delay == timedelta(seconds=1)


@pytest.mark.parametrize("priority", [-32768, -1, 0, 1, 32767])
def test_every_smallint_is_a_priority(pg, priority):
    assert pg.find("message", pg.put(priority=priority)).priority == priority


def test_a_plain_literal_is_a_priority(pg):
    (sent,) = pg.query("select * from postrow.enqueue('q', '{}', priority => 5)")

    assert pg.find("message", sent.id).priority == 5


@pytest.mark.parametrize("attempts", [1, LAST_INT])
def test_max_attempts_may_be_any_positive_int(pg, attempts):
    assert pg.find("message", pg.put(max_attempts=attempts)).max_attempts == attempts


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"priority": 32768}, "priority is 32768"),
        ({"priority": -32769}, "priority is -32769"),
        ({"priority": None}, "priority is null"),
        ({"max_attempts": 0}, "max_attempts is 0"),
        ({"max_attempts": -1}, "max_attempts is -1"),
        ({"delay": timedelta(seconds=-1)}, "delay is negative"),
        ({"delay": timedelta(days=366_000)}, "delay is over 1000 years"),
        ({"delay": timedelta(0), "available_at": datetime(2030, 1, 1, tzinfo=UTC)}, "both delay and available_at"),
        ({"available_at": datetime(3001, 1, 1, tzinfo=UTC)}, "before the year 3000"),
        ({"target_for": timedelta(seconds=5)}, "target_for is given without target"),
        ({"target": "w", "target_for": timedelta(seconds=-5)}, "target_for is negative"),
        ({"subject": ""}, "subject is an empty text"),
        ({"subject": "s" * 201}, "subject has 201 characters: 200"),
        ({"headers": []}, "headers have to be a JSON object"),
        ({"headers": "x"}, "headers have to be a JSON object"),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(pg, options, said):
    error = pg.refused("enqueue", queue="q", payload=1, **options)

    assert error.sqlstate == "PW003"
    assert said in str(error)
    assert pg.value("depth", queue="q") == 0


@pytest.mark.parametrize("option", ["available_at", "expires_at"])
@pytest.mark.parametrize("moment", ["infinity", "-infinity", "3000-01-02"])
def test_an_infinite_moment_is_refused(pg, option, moment):
    with pytest.raises(psycopg.Error) as caught:
        pg.query(f"select * from postrow.enqueue('q', '{{}}', {option} => %s)", [moment])

    assert caught.value.sqlstate == "PW003"


def test_a_subject_of_200_characters_counts_characters_not_bytes(pg):
    subject = "é" * 200

    assert pg.find("message", pg.put(subject=subject)).subject == subject


def test_who_enqueued_is_the_session_user_and_its_application(pg):
    pg.query("set local application_name = 'web@api-3'")
    named = pg.put()
    pg.query("set local application_name = ''")
    unnamed = pg.put()

    assert pg.find("message", named).enqueued_by == "postrow@web@api-3"
    assert pg.find("message", unnamed).enqueued_by == "postrow"


def test_each_enqueue_of_one_transaction_has_its_own_moment_and_a_later_id(pg):
    sent = [pg.put() for _ in range(20)]

    assert sent == sorted(sent)
    stamps = [row.enqueued_at for row in pg.query("select enqueued_at from postrow.message order by id")]
    assert len(set(stamps)) == 20
    assert stamps == sorted(stamps)


def test_enqueue_works_in_a_transaction_that_goes_on_writing_after_a_refusal(pg):
    assert pg.refused("enqueue", queue="", payload=1).sqlstate == "PW002"

    assert pg.find("message", pg.put())


def test_nothing_is_numbered_by_a_sequence(pg):
    # a sequence has a ceiling, and is burnt by every insert that does nothing; unlogged ones are memory cells
    owned = pg.query(
        "select relname from pg_catalog.pg_class "
        "where relnamespace = 'postrow'::pg_catalog.regnamespace and relkind = 'S' and relpersistence <> 'u'"
    )
    assert owned == []
    assert (
        pg.query(
            "select from pg_catalog.pg_attrdef d join pg_catalog.pg_class c on c.oid = d.adrelid "
            "where c.relnamespace = 'postrow'::pg_catalog.regnamespace "
            "and pg_catalog.pg_get_expr(d.adbin, d.adrelid) like '%nextval%'"
        )
        == []
    )
