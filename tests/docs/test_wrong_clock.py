"""What the page says to do after the database's clock was wrong does so."""

PAGE = "docs/howto/when-something-is-wrong.md"


def test_what_was_stamped_by_a_wrong_clock_is_set_due_by_the_pages_statements(docs, own_actors, own_clock):
    pg = own_actors("owner")
    pg.rows("register_consumer", queue="q", handler="h", retry="constant", retry_base="10 minutes", retry_jitter=False)
    scheduled = pg.put(delay="2 hours")
    retried, running = pg.put(), pg.put()
    failed, runs = pg.take(2)
    own_clock.advance(3600)  # and wrong from here on
    pg.settle("fail", [failed], errors=["x"])
    dead = pg.put()
    assert [row.id for row in pg.take()] == [dead]
    enqueued = pg.put()
    own_clock.advance(-3590)
    pg.settle("extend", [runs], lease="5 minutes")  # its worker lives
    assert pg.take(10) == []

    section = docs.page(PAGE).sections("##")["The database's clock was wrong"]
    due, leases = (block.text for block in docs.page(PAGE).blocks("sql") if block.text in section)
    pg.query(due)
    assert {row.id for row in pg.take(10, lease="5 minutes")} == {retried, enqueued}
    assert pg.find("message", enqueued).enqueued_at <= own_clock.now
    pg.query(leases)
    own_clock.advance(0.001)
    assert pg.row("sweep", step="leases").done == 1
    assert pg.find("message", dead).failures[0]["type"] == "lease_expired"
    assert pg.find("message", running).claim_token == runs.claim_token
    assert pg.find("message", scheduled).available_at > own_clock.now
