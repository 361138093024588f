import json


def lines(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_what_is_added_is_listed_and_routes(run, db):
    found = run("subscription", "add", "order.*", "emails")
    assert (found.code, found.out) == (0, "order.* goes to emails\n")
    assert run("subscription", "add", "order.*", "emails").out == "order.* goes to emails, as before\n"
    assert run("subscription", "add", "#", "audit", "--tenant", "acme").out == "# goes to audit for tenant acme\n"
    listed = lines(run("subscription", "list").out)
    assert listed[0] == "pattern queue tenant registered by"
    assert [line.split()[:3] for line in listed[1:]] == [["#", "audit", "acme"], ["order.*", "emails", "*"]]
    assert db.rows("select queue from postrow.publish('order.paid', '1')") == [("emails",)]


def test_the_list_can_be_asked_by_topic_and_tenant(run):
    run("subscription", "add", "order.*", "emails")
    run("subscription", "add", "#", "audit", "--tenant", "acme")
    found = json.loads(run("subscription", "list", "--topic", "invoice.paid", "--json").out)
    assert [(row["pattern"], row["queue"], row["tenant"]) for row in found] == [("#", "audit", "acme")]
    assert "There are no such subscriptions" in run("subscription", "list", "--tenant", "beta", "--topic", "x").err


def test_what_is_removed_routes_no_more(run, db):
    run("subscription", "add", "order.*", "emails")
    found = run("subscription", "remove", "order.*", "emails")
    assert (found.code, found.out) == (0, "order.* goes to emails no more\n")
    found = run("subscription", "remove", "order.*", "emails")
    assert found.code == 3
    assert "postrow subscription list" in found.err


def test_a_bad_pattern_says_how_one_looks(run):
    found = run("subscription", "add", "order..paid", "emails")
    assert found.code == 2
    assert "# (any number of them)" in found.err
