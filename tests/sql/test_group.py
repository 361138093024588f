"""Groups: the messages of one group_key are handled in order, by one worker at a time."""

from datetime import timedelta

import psycopg
import pytest


def put(pg, *payloads, group="g", **options):
    """One message each, in order; their ids by payload."""
    return {payload: pg.put(payload=payload, group_key=group, **options) for payload in payloads}


def taken(rows):
    return [row.payload for row in rows]


def claim_lanes(pg, limit=10, *, after=None, lanes=(("default", 0),), **options):
    return pg.rows(
        "claim_lanes",
        queue="q",
        tenants=[tenant for tenant, _ in lanes],
        priorities=[priority for _, priority in lanes],
        afters=[after] * len(lanes),
        per_lane=limit,
        limit=limit,
        **options,
    )


def claim(pg, limit=10, **options):
    return pg.take(limit, **options)


def claim_of_the_tenant(pg, limit=10, **options):
    return pg.take(limit, tenant="default", **options)


def claim_from_lanes(pg, limit=10, **options):
    return [row for row in claim_lanes(pg, limit, **options) if row.id is not None]


@pytest.fixture(params=[claim, claim_of_the_tenant, claim_from_lanes], ids=lambda f: f.__name__)
def take(request):
    """Each way to claim."""
    return request.param


def test_a_run_of_a_group_comes_in_order_and_its_neighbours_with_it(pg, take):
    put(pg, "a1", "a2", group="a")
    put(pg, "b1", group="b")
    pg.put(payload="free")
    put(pg, "a3", group="a")

    rows = take(pg)

    assert sorted(taken(rows)) == ["a1", "a2", "a3", "b1", "free"]
    assert [row.payload for row in rows if row.group_key == "a"] == ["a1", "a2", "a3"]


def test_a_small_claim_takes_the_heads_of_groups_first(pg, take):
    put(pg, "a1", "a2", "a3", group="a")
    put(pg, "b1", "b2", "b3", group="b")

    assert sorted(taken(take(pg, 4))) == ["a1", "a2", "b1", "b2"]


def test_a_held_group_gives_nothing_more_until_all_of_it_is_done(pg, take):
    put(pg, "a1", "a2", "a3", group="a")
    put(pg, "b1", group="b")
    first, second = take(pg, 2)
    assert taken([first, second]) == ["a1", "a2"]

    assert taken(take(pg)) == ["b1"]
    assert pg.settle("ack", [first]) == ["accepted"]
    assert take(pg) == [], "a2 is not done"
    assert pg.settle("ack", [second]) == ["accepted"]
    assert taken(take(pg)) == ["a3"]


def test_the_same_key_in_another_queue_or_tenant_is_another_group(pg, take):
    put(pg, "one")
    put(pg, "two", queue="r")
    put(pg, "three", tenant="acme")
    assert {"one"} <= set(taken(take(pg))) <= {"one", "three"}
    assert taken(pg.take(queue="r")) == ["two"]


def test_a_failing_head_blocks_its_group_until_it_is_done(pg, take, clock):
    put(pg, "a1", "a2")
    put(pg, "b1", group="b")
    rows = take(pg)
    assert pg.settle("fail", rows[:1], errors=["no"], retry_at=[pg.value("clock") + timedelta(seconds=60)]) == [
        "accepted"
    ]
    assert pg.settle("release", rows[1:2] if rows[1].payload == "a2" else rows[2:3]) == ["accepted"]

    assert take(pg) == [], "a1 is to be tried again first"
    assert pg.value("depth_pending", queue="q") == 1
    clock.advance(61)
    (again,) = take(pg)
    assert (again.payload, again.attempt) == ("a1", 2), "alone: who has failed is not the head of a run"
    assert pg.settle("ack", [again]) == ["accepted"]
    assert taken(take(pg)) == ["a2"]


@pytest.mark.parametrize("end", ["bury", "fail", "expire", "sweep"])
def test_when_a_head_dies_its_group_goes_on(pg, take, clock, end):
    put(
        pg, "a1", "a2", expires_at=pg.value("clock") + timedelta(seconds=5) if end == "expire" else None, max_attempts=1
    )
    pg.put(payload="a3", group_key="g")
    if end == "expire":
        clock.advance(6)
        assert taken(take(pg)) == ["a3"], "what has expired stands in nobody's way"
        return
    (head,) = take(pg, 1)
    assert take(pg) == []
    if end == "sweep":
        pg.expire(head.id)
        pg.rows("sweep")
    else:
        pg.settle(end, [head], **{"bury": {"reasons": ["no"]}, "fail": {"errors": ["no"]}}[end])
    assert pg.find("dead_letter", head.id).group_key == "g"
    assert taken(take(pg, 1)) == ["a2"]


def test_when_a_head_is_done_what_has_expired_behind_it_stands_in_nobodys_way(pg, take, clock):
    put(pg, "a1")
    pg.put(payload="a2", group_key="g", expires_at=pg.value("clock") + timedelta(seconds=5))
    pg.put(payload="a3", group_key="g")
    (head,) = take(pg, 1)
    assert take(pg) == []
    clock.advance(6)
    assert pg.settle("ack", [head]) == ["accepted"]
    assert taken(take(pg)) == ["a3"]


def blocking(pg):
    pg.rows("register_consumer", queue="q", handler="h", on_dead="block", max_attempts=1)


@pytest.mark.parametrize("met", [True, False], ids=["it was claimed from", "nobody looked"])
@pytest.mark.parametrize("decision", ["redrive", "resolve"])
def test_a_dead_letter_blocks_its_group_until_it_is_decided_if_the_consumer_says_so(pg, take, decision, met):
    blocking(pg)
    put(pg, "a1", "a2", "a3")
    put(pg, "b1", group="b")
    head = next(row for row in take(pg, 2) if row.payload == "a1")
    pg.settle("fail", [head], errors=["no"])
    pg.rows("release_claim", token=head.claim_token)
    if met:
        assert taken(take(pg)) == ["b1"]
        assert take(pg) == []

    if decision == "redrive":
        pg.value("redrive", id=head.id, tenant="default")
    else:
        pg.rows("resolve", id=head.id, tenant="default", resolution="ignored", reason="it was a test")

    expected = ["a1", "a2", "a3"] if decision == "redrive" else ["a2", "a3"]
    assert [p for p in taken(take(pg)) if p != "b1"] == expected


def test_the_sweep_leaves_groups_that_a_dead_letter_blocks(pg, take, clock):
    blocking(pg)
    put(pg, "a1", "a2")
    pg.settle("bury", take(pg, 1), reasons=["no"])
    assert take(pg) == []
    assert pg.rows("sweep", step="groups")[0].done == 0
    pg.rows("register_consumer", queue="q", handler="h", on_dead="continue")
    clock.advance(11)
    assert pg.rows("sweep", step="groups")[0].done == 1, "the consumer blocks no more"
    assert taken(take(pg)) == ["a2"]


def test_one_that_has_expired_blocks_its_group_before_it_is_swept(pg, take, clock):
    blocking(pg)
    put(pg, "a1", expires_at=pg.value("clock") + timedelta(seconds=5))
    put(pg, "a2")
    put(pg, "b1", group="b")
    clock.advance(6)
    assert taken(take(pg)) == ["b1"]
    pg.rows("sweep")
    assert take(pg) == []
    (letter,) = pg.query("select id from postrow.dead_letter")
    pg.rows("resolve", id=letter.id, tenant="default", resolution="ignored", reason="too late")
    assert taken(take(pg)) == ["a2"]


def test_a_dead_letter_that_blocks_is_kept_until_it_is_decided(pg, take, clock):
    blocking(pg)
    pg.rows("configure", name="dead_letter_days", value="1")
    put(pg, "a1", "a2")
    plain = pg.put(payload="plain")
    rows = take(pg, 3)
    pg.settle("bury", [row for row in rows if row.payload in ("a1", "plain")], reasons=["no", "no"])
    pg.rows("release_claim", token=rows[0].claim_token)
    clock.advance(3 * 86400)
    pg.rows("sweep", step="dead")
    assert pg.find("dead_letter", plain) is None
    assert [row.payload for row in pg.query("select payload from postrow.dead_letter")] == ["a1"]
    assert take(pg) == []


def test_two_dead_letters_block_until_both_are_decided(pg, take):
    blocking(pg)
    ids = put(pg, "a1", "a2", "a3")
    for name in ("a1", "a2"):
        pg.query("update postrow.message set behind = false where id = %s", [ids[name]])
    rows = take(pg, 2)
    pg.settle("bury", rows, reasons=["no", "no"])
    assert take(pg) == []
    pg.rows("resolve", id=ids["a2"], tenant="default", resolution="handled", reason="by hand")
    assert take(pg) == []
    pg.rows("resolve", id=ids["a1"], tenant="default", resolution="handled", reason="by hand")
    assert taken(take(pg)) == ["a3"]


def test_a_redriven_message_has_its_old_place(pg, take):
    ids = put(pg, "a1", "a2", "a3", "a4")
    pg.settle("bury", take(pg, 1), reasons=["no"])
    rows = take(pg, 1)
    assert taken(rows) == ["a2"]
    pg.value("redrive", id=ids["a1"], tenant="default")
    assert take(pg) == [], "a2 holds the group"
    pg.settle("ack", rows)
    assert taken(take(pg)) == ["a1", "a3", "a4"]


def test_what_was_released_comes_again_in_order(pg, take):
    put(pg, "a1", "a2", "a3")
    rows = take(pg)
    pg.settle("release", [rows[2], rows[0], rows[1]])
    rows = take(pg)
    assert (taken(rows), {row.attempt for row in rows}) == (["a1", "a2", "a3"], {1})
    assert pg.value("release_claim", token=rows[0].claim_token) == 3
    assert taken(take(pg)) == ["a1", "a2", "a3"]


def test_a_snoozed_head_holds_its_group_back(pg, take, clock):
    put(pg, "a1", "a2")
    rows = take(pg, 1)
    pg.settle("release", rows, until=[pg.value("clock") + timedelta(seconds=60)])
    assert take(pg) == []
    clock.advance(60)
    assert taken(take(pg)) == ["a1", "a2"]


def test_a_delayed_head_holds_its_group_back(pg, take, clock):
    """Order is that of enqueuing, not of due times."""
    put(pg, "a1", delay="1 minute")
    put(pg, "a2")
    assert take(pg) == []
    clock.advance(60)
    assert taken(take(pg)) == ["a1", "a2"]


def test_of_a_run_whose_worker_died_only_the_first_is_charged(pg, take, clock):
    ids = put(pg, "a1", "a2", "a3", max_attempts=1)
    rows = take(pg)
    pg.settle("ack", rows[:1])
    for row in rows:
        pg.expire(row.id)
    pg.rows("sweep")

    assert pg.find("dead_letter", ids["a2"]) is None, "it followed another: its turn may never have come"
    assert [
        (pg.find("message", ids[name]).attempt, pg.find("message", ids[name]).failures) for name in ("a2", "a3")
    ] == [
        (0, None),
        (0, None),
    ]
    (first, _) = take(pg)
    assert (first.payload, first.attempt) == ("a2", 1)
    clock.advance(11)  # the next deep pass
    pg.expire(first.id)
    pg.rows("sweep")
    assert pg.find("dead_letter", ids["a2"]).reason == "lease"


def test_a_killer_within_a_run_runs_out_of_attempts(pg, take, clock):
    """Each time the worker dies at a2, with a1 done and its ack lost."""
    ids = put(pg, "a1", "a2", "a3", max_attempts=3)
    deaths = 0
    while pg.find("dead_letter", ids["a2"]) is None:
        clock.advance(3600)
        rows = take(pg)
        if taken(rows) == ["a1"]:
            pg.settle("ack", rows)
            continue
        deaths += 1
        for row in rows:
            pg.expire(row.id)
        pg.rows("sweep")
        clock.advance(3600)
        assert deaths < 10
    assert deaths == 4, "the first is charged to a1"
    assert pg.find("dead_letter", ids["a1"]) is None
    assert taken(take(pg)) == ["a3"]


def test_a_message_that_was_committed_late_is_next_and_does_not_share_the_group(pg, take):
    """It was enqueued before the one that is being handled."""
    put(pg, "early", "late")
    pg.query("update postrow.message set enqueued_at = enqueued_at + interval '1 hour' where payload = '\"late\"'")
    pg.query("create temporary table uncommitted as select * from postrow.message where payload = '\"early\"'")
    pg.query("delete from postrow.message where payload = '\"early\"'")
    rows = take(pg)
    assert taken(rows) == ["late"]
    pg.query("insert into postrow.message select * from uncommitted")
    put(pg, "last")
    pg.query("update postrow.message set enqueued_at = enqueued_at + interval '2 hours' where payload = '\"last\"'")

    assert take(pg) == []
    pg.settle("ack", rows)
    assert taken(take(pg)) == ["early", "last"]


def test_the_order_is_that_of_enqueuing_whatever_the_priority(pg):
    put(pg, "a1", priority=5)
    put(pg, "a2", priority=0)
    rows = claim_lanes(pg, lanes=[("default", 0), ("default", 5)])
    assert [row.payload for row in rows if row.id] == ["a1", "a2"]
    assert len({row.id for row in rows if row.id}) == 2


def test_one_deep_group_does_not_stand_in_front_of_its_neighbours(pg, take):
    for n in range(300):
        pg.put(payload=n, group_key="deep")
    head = take(pg, 1)
    put(pg, "b1", group="b")

    assert taken(take(pg, 5)) == ["b1"], "299 that have to wait are passed in one claim"
    assert pg.query("select count(*) from postrow.message where behind and claim_token is null") == [(299,)]
    pg.settle("ack", head)
    assert taken(take(pg, 200)) == list(range(1, 101)), "a run is of a hundred at most"


@pytest.mark.parametrize("limit", [{}, {"max_in_flight": 5}, {"rate": 5, "rate_period": "1 hour"}], ids=str)
def test_what_stands_behind_a_blocked_group_is_claimed_within_the_limit(pg, take, limit):
    """As many as the claim asks for have to stand back, so it looks on."""
    pg.rows("register_consumer", queue="q", handler="h", **limit)
    put(pg, "head")
    assert len(take(pg, 1)) == 1
    if "rate" in limit:
        pg.query("delete from postrow.bucket")
    put(pg, *range(10))
    pg.rows("enqueue_lines", queue="q", payloads="1\n" * 100)
    rows = take(pg, 10)
    assert {row.group_key for row in rows} == {None}
    assert len(rows) == (10 if not limit else 4 if "max_in_flight" in limit else 5)
    assert len([row for row in claim_lanes(pg, 10) if row.id]) == (10 if not limit else 0)


def test_a_blocked_group_that_cannot_be_set_behind_does_not_hide_the_lane(committed, functions_on, take):
    """Its head is acknowledged in a transaction that is open."""
    with psycopg.connect(committed, autocommit=True) as one, psycopg.connect(committed) as two:
        pg, handler = functions_on(one), functions_on(two)
        put(pg, "head")
        rows = take(pg)
        put(pg, *range(12))
        pg.put(payload="plain")
        put(pg, "other", group="h")
        handler.settle("ack", rows)
        assert sorted(taken(take(pg, 10))) == ["other", "plain"]
        two.rollback()


def test_a_group_without_a_holder_is_healed_by_the_claim_that_meets_it_and_not_buried(pg, take):
    """Its head was left behind; the claim looks past another group first, and sets behind what led to that head."""
    put(pg, "h0", group="h")
    assert len(take(pg)) == 1
    put(pg, "h1", group="h")
    ids = put(pg, "g1", "g2")
    pg.query("update postrow.message set behind = true where id = %s", [ids["g1"]])
    assert taken(take(pg, 1)) == ["g1"]


def test_a_head_that_max_bytes_leaves_is_not_left_behind(pg, take):
    put(pg, "x" * 100, group="big")
    ids = put(pg, "y" * 100, "z", group="h")
    pg.query("update postrow.message set behind = true where id = %s", [ids["y" * 100]])
    assert taken(take(pg, max_bytes=110)) == ["x" * 100]
    assert sorted(taken(take(pg))) == ["y" * 100, "z"]


def test_a_head_that_expires_while_it_is_claimed_holds_its_group(pg, take, clock):
    put(pg, "a1", expires_at=pg.value("clock") + timedelta(seconds=5))
    put(pg, "a2")
    rows = take(pg, 1)
    clock.advance(6)
    assert take(pg) == []
    pg.settle("ack", rows)
    assert taken(take(pg)) == ["a2"]


def test_targeted_messages_of_two_priorities_come_once_and_in_order(pg):
    put(pg, "a1", target="laptop", priority=1)
    put(pg, "a2", target="laptop", priority=0)
    put(pg, "a3", target="laptop", priority=2)
    pg.put(payload="x", target="laptop", priority=2)
    rows = pg.take(10, worker="laptop")
    assert [row.payload for row in rows if row.group_key] == ["a1", "a2", "a3"]
    assert len(rows) == 4


def test_free_groups_sets_the_next_free_and_no_more(pg, take):
    put(pg, "a1", "a2")
    put(pg, "b1", "b2", group="b")
    pg.query("update postrow.message set behind = true where group_key = 'g'")
    lists = {"queues": ["q", "q", "q"], "tenants": ["default"] * 3, "keys": ["g", "b", "none"]}
    assert pg.value("free_groups", **lists) == 1
    assert sorted(taken(take(pg))) == ["a1", "a2", "b1", "b2"]


def test_targeted_messages_keep_the_order_of_their_group(pg):
    put(pg, "a1", "a2", target="laptop")
    put(pg, "a3")
    put(pg, "b1", group="b", target="desk")
    assert pg.take(10, worker="tower") == []
    assert sorted(taken(pg.take(10, worker="desk"))) == ["b1"]
    rows = pg.take(10, worker="laptop")
    assert taken(rows) == ["a1", "a2", "a3"]
    pg.settle("ack", rows)
    assert pg.value("depth", queue="q") == 1


@pytest.mark.parametrize("mode", ["repeatable read", "serializable"])
def test_a_claim_of_a_group_needs_to_see_what_is_committed(committed, functions_on, take, mode):
    with psycopg.connect(committed) as conn:
        conn.isolation_level = (
            psycopg.IsolationLevel.REPEATABLE_READ if mode == "repeatable read" else psycopg.IsolationLevel.SERIALIZABLE
        )
        pg = functions_on(conn)
        pg.put(payload=1)
        assert len(take(pg)) == 1, "without groups it is no matter"
        put(pg, "a1")
        with pytest.raises(psycopg.Error) as caught:
            take(pg)
        assert caught.value.sqlstate == "PW003"
        assert "READ COMMITTED" in caught.value.diag.message_hint
        conn.rollback()


def test_every_unfinished_message_is_counted(pg):
    put(pg, "a1", "a2", "a3")
    claim(pg, 1)
    claim(pg)
    assert pg.value("depth", queue="q") == 3
    assert pg.value("depth_pending", queue="q") == 2
    (row,) = pg.rows("status")
    assert (row.ready, row.claimed) == (2, 1)
    assert pg.value("purge", queue="q") == 2


def test_a_purge_frees_what_stood_behind(pg, take):
    put(pg, "a1", "a2", delay="1 hour")
    put(pg, "a3")
    assert take(pg) == []
    assert pg.value("purge", queue="q", limit=1) == 1
    assert pg.value("purge", queue="q", limit=1) == 1
    assert taken(take(pg)) == ["a3"]


def test_the_later_ones_of_a_list_stand_behind_the_first(pg, take):
    pg.rows("enqueue_lines", queue="q", payloads="\n".join(map(str, range(5))), group_key="g")
    messages = [{"payload": "c1", "group_key": "c"}, {"payload": "x"}, {"payload": "c2", "group_key": "c"}]
    pg.rows("enqueue_many", queue="q", messages=messages)
    later = pg.query("select payload from postrow.message where behind")
    assert {row.payload for row in later} == {1, 2, 3, 4, "c2"}
    assert sorted(map(str, taken(take(pg, 20)))) == ["0", "1", "2", "3", "4", "c1", "c2", "x"]


def test_the_first_of_a_list_is_the_first_that_is_new(pg, take):
    pg.put(payload="old", dedup_key="k")
    messages = [{"payload": n, "group_key": "g", "dedup_key": key} for n, key in enumerate(["k", "l", "m"])]
    pg.rows("enqueue_many", queue="q", messages=messages)
    assert sorted(map(str, taken(take(pg)))) == ["1", "2", "old"]


@pytest.mark.parametrize("bad", ["", "x" * 201])
def test_a_bad_key_is_refused(pg, bad):
    for call in (
        lambda: pg.refused("enqueue", queue="q", payload=1, group_key=bad),
        lambda: pg.refused("enqueue_lines", queue="q", payloads="1", group_key=bad),
        lambda: pg.refused("enqueue_many", queue="q", messages=[{"payload": 1}], group_key=bad),
        lambda: pg.refused("publish", topic="t", payload=1, group_key=bad),
    ):
        assert call().sqlstate == "PW003"
    error = pg.refused("enqueue_many", queue="q", messages=[{"payload": 1}, {"payload": 1, "group_key": bad}])
    assert "group_key of message 2" in str(error)


@pytest.mark.parametrize("key", ["ü" * 200, "a b", "{}", "'", "\\", '"', "*", "null"])
def test_any_text_is_a_key(pg, take, key):
    put(pg, "a1", "a2", group=key)
    rows = take(pg)
    assert [(row.payload, row.group_key) for row in rows] == [("a1", key), ("a2", key)]
    pg.settle("ack", rows)
    assert pg.find("history", rows[0].id).group_key == key


def test_published_messages_have_the_key(pg):
    pg.rows("subscribe", pattern="t", queue="q")
    pg.rows("publish", topic="t", payload=1, group_key="g")
    pg.rows("publish", topic="unheard", payload=1, group_key="g")
    assert claim(pg)[0].group_key == "g"
    assert pg.query("select group_key from postrow.history") == [("g",)]


def test_max_bytes_cuts_a_run_at_its_end(pg, take):
    put(pg, *("x" * 100 + str(n) for n in range(5)))
    rows = take(pg, max_bytes=250)
    assert [row.payload[-1] for row in rows] == ["0", "1"]
    pg.settle("ack", rows)
    rows = take(pg, max_bytes=50)
    assert [row.payload[-1] for row in rows] == ["2"], "one comes always"


def test_a_group_without_a_holder_is_found_by_the_sweep(pg, take, clock):
    put(pg, "a1", "a2")
    put(pg, "b1", group="b")
    pg.query("update postrow.message set behind = true")
    assert take(pg) == []
    (row,) = pg.rows("sweep", step="groups")
    assert (row.done, row.more) == (2, False)
    assert sorted(taken(take(pg))) == ["a1", "a2", "b1"]


def test_the_sweep_of_groups_goes_on_where_it_ended_and_rests_between_two_passes(pg, clock):
    for n in range(12):
        put(pg, "first", "second", group=f"g{n:02} ü\\")
    pg.query("update postrow.message set behind = true")
    done = [pg.rows("sweep", step="groups", limit=1)[0].done for _ in range(4)]
    assert done == [5, 5, 2, 0]
    pg.query("update postrow.message set behind = true")
    assert pg.rows("sweep", step="groups", limit=100)[0].done == 0
    clock.advance(10)
    assert pg.rows("sweep", step="groups", limit=100)[0].done == 12


@pytest.mark.parametrize("text", ["", "x", "1 2 3 4", "12 zz  ", "99999999999999999999   ", "1 ff ff ff", "ü ü ü ü"])
def test_a_hint_of_the_sweep_that_does_not_parse_counts_as_none(pg, text):
    put(pg, "a1", "a2")
    pg.query("update postrow.message set behind = true")
    pg.query("select set_config('postrow.swept_groups', %s, false)", [text])
    assert pg.rows("sweep", step="groups")[0].done == 1
