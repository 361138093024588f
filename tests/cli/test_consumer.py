import json
import os

import psycopg


def _register(db, queue="emails", handler="send_welcome", **options):
    names = "".join(f", {name} => %s" for name in options)
    db.rows(f"select postrow.register_consumer(%s, %s{names})", queue, handler, *options.values())


def test_list_shows_the_policy(run, db):
    _register(db, lease="90 s", max_attempts=7)
    _register(db, "reports", "make", tenant="acme", retry="linear", retry_jitter=False, keep_history=False)
    _register(db, "ticks", "tick", retry="constant", retry_base="2 min")
    lines = run("consumer", "list").out.splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "queue tenant handler workers policy",
        "emails * send_welcome 0 7 attempts, retry 10 s x 2^n to 1 h, lease 90 s",
        "reports acme make 0 5 attempts, retry 10 s x n to 1 h without jitter, lease 1 min, no history",
        "ticks * tick 0 5 attempts, retry 2 min, lease 1 min",
    ]


def test_list_as_json_has_seconds(run, db):
    _register(db, lease="90 s")
    (row,) = json.loads(run("consumer", "list", "--json").out)
    assert (row["handler"], row["lease"], row["retry_base"], row["retry_cap"]) == ("send_welcome", 90, 10, 3600)


def test_list_shows_limits_and_what_a_group_does_where_they_are_set(run, db):
    _register(db, max_in_flight=10, rate=100, rate_period="1 min", tenant_max_in_flight=2)
    _register(db, "reports", "make", on_dead="block", tenant_rate=5, tenant_rate_period="1.5 s", keep_history=False)
    policies = [line.partition("lease 1 min")[2] for line in run("consumer", "list").out.splitlines()[1:]]
    assert policies == [
        ", max_in_flight 10, rate 100/min, tenant_max_in_flight 2",
        ", no history, on_dead block, tenant_rate 5/1.5 s",
    ]


def test_list_as_json_has_limits_and_their_periods_in_seconds(run, db):
    _register(db, max_in_flight=10, rate=100, rate_period="1 min", on_dead="block")
    _register(db, "reports", "make", tenant_max_in_flight=2, tenant_rate=5, tenant_rate_period="1.5 s")
    names = (
        "on_dead",
        "max_in_flight",
        "rate",
        "rate_period",
        "tenant_max_in_flight",
        "tenant_rate",
        "tenant_rate_period",
    )
    found = [tuple(row[name] for name in names) for row in json.loads(run("consumer", "list", "--json").out)]
    assert found == [("block", 10, 100, 60, None, None, None), ("continue", None, None, None, 2, 5, 1.5)]


def test_list_of_none_says_how_one_comes(run):
    found = run("consumer", "list")
    assert (found.code, found.out) == (0, "")
    assert "a worker registers its own when it starts" in found.err


def test_replace_changes_the_handler_and_keeps_the_policy(run, db):
    limits = {"max_in_flight": 3, "rate": 5, "rate_period": "9 s", "tenant_rate": 2, "tenant_max_in_flight": 1}
    _register(
        db, lease="90 s", max_attempts=7, retry="linear", retry_factor=3, keep_history=False, on_dead="block", **limits
    )
    policy = "select to_jsonb(c) - '{handler,registered_at,registered_by}'::text[] from postrow.consumer c"
    before = db.rows(policy)
    found = run("consumer", "replace", "emails", "send_better")
    assert (found.code, found.out) == (0, "emails is consumed by send_better, not send_welcome\n")
    assert db.value("select handler from postrow.consumer") == "send_better"
    assert db.rows(policy) == before


def test_replace_of_no_consumer_is_not_found(run, db):
    _register(db)
    for words in (["reports", "x"], ["emails", "x", "--tenant", "acme"]):
        found = run("consumer", "replace", *words)
        assert found.code == 3
        assert "has no consumer" in found.err
    assert db.value("select handler from postrow.consumer") == "send_welcome"


def test_replace_refuses_a_bad_handler_name(run, db):
    _register(db)
    assert "handler 'bad name' is not a valid name" in run("consumer", "replace", "emails", "bad name").err


def test_remove_takes_the_consumer_and_leaves_the_messages(run, db):
    _register(db)
    db.enqueue()
    assert run("consumer", "remove", "emails").out == "emails has no consumer now\n"
    assert run("consumer", "remove", "emails").code == 3
    assert db.value("select count(*) from postrow.message") == 1


def test_an_admin_who_owns_nothing_may_replace(run, db, committed):
    _register(db)
    role = f"cli_admin_{os.getpid()}"
    db.conn.execute(f"create role {role} login password 'x' in role postrow_admin")
    dsn = psycopg.conninfo.make_conninfo(committed, user=role, password="x")
    try:
        assert run("consumer", "replace", "emails", "send_better", dsn=dsn).code == 0
        assert run("consumer", "remove", "emails", dsn=dsn).code == 0
    finally:
        db.conn.execute(f"drop role {role}")
