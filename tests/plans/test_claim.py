"""claim, claim_lanes and lanes read as much as they give, however much there is and whatever the statistics say."""

import pytest

from postrow import sql

pytestmark = pytest.mark.plan

LANES = "%(tenants)s::text[], %(priorities)s::smallint[], %(afters)s::timestamptz[]"


def claim_lanes(plans, queue, lanes, per_lane, limit):
    call = f"claim_lanes('{queue}', {LANES}, {per_lane}, {limit}, lease => '1 day')"
    return plans.measure(call, lanes)


@pytest.mark.parametrize("tenant", ["'t'", "null"])
@pytest.mark.parametrize("worker", ["'w'", "null"])
def test_claim_from_a_deep_lane(full, tenant, worker):
    work = full.measure(f"claim('deep', 100, tenant => {tenant}, worker => {worker}, lease => '1 day')")
    assert work.given == 100
    work.assert_in_proportion(100)


@pytest.mark.parametrize("tenant", ["'t'", "null"])
def test_claim_passes_by_scheduled_messages_of_an_earlier_priority(full, tenant):
    work = full.measure(f"claim('scheduled', 100, tenant => {tenant}, lease => '1 day')")
    assert work.given == 100
    work.assert_in_proportion(100)


def test_claim_from_a_thousand_lanes(full):
    work = full.measure("claim('wide', 100, lease => '1 day')")
    assert work.given == 100
    work.assert_in_proportion(100, lanes=1_000)


def test_claim_of_one_tenant_within_a_limit_passes_by_the_lanes_of_others(full):
    with full.conn.transaction(force_rollback=True):
        full.conn.execute("select postrow.register_consumer('wide', 'h', max_in_flight => 1000000)")
        # the leases that it counts are read by both
        lane = full.measure("claim_lanes('wide', '{t501}', '{0}', '{null}', 5, 5, worker => 'w', lease => '1 day')")
        work = full.measure("claim('wide', 5, tenant => 't500', worker => 'w', lease => '1 day')")
    assert work.given == lane.given == 5
    assert work.rows < lane.rows + 100, lane
    assert work.pages < lane.pages + 300, lane


def test_messages_for_a_laptop_that_is_closed_cost_the_others_nothing(full):
    """Ten thousand of them, in the lane from which another worker claims."""
    with full.conn.transaction(force_rollback=True):
        full.conn.execute(
            "insert into postrow.message (tenant, id, queue, priority, payload, enqueued_at, available_at, target) "
            "select 't', gen_random_uuid(), 'deep', 0, '1', now(), now() - interval '2 hours', 'laptop' "
            "from generate_series(1, 10000)"
        )
        for call in (
            "claim('deep', 100, tenant => 't', worker => 'w', lease => '1 day')",
            "claim_lanes('deep', '{t}', '{0}', '{null}', 100, 100, worker => 'w', lease => '1 day')",
        ):
            work = full.measure(call)
            assert work.given == 100
            work.assert_in_proportion(100)


def test_claim_lanes_from_a_deep_lane(full):
    work = claim_lanes(full, "deep", full.lanes("deep"), 100, 100)
    assert work.given == 100
    work.assert_in_proportion(100)


def test_claim_lanes_passes_by_scheduled_messages_of_an_earlier_priority(full):
    work = claim_lanes(full, "scheduled", full.lanes("scheduled"), 100, 100)
    assert work.given == 101, "a row for the lane that gave none, too"
    work.assert_in_proportion(100)


@pytest.mark.parametrize("limit", [100, 1_000])
def test_claim_lanes_from_a_thousand_lanes(full, limit):
    lanes = full.lanes("wide")
    work = claim_lanes(full, "wide", lanes, 1, limit)
    assert work.given == len(lanes["tenants"]) == 1_000
    work.assert_in_proportion(limit, lanes=1_000)


def test_claim_lanes_from_a_thousand_empty_lanes(full):
    work = claim_lanes(full, "nothing", full.lanes("wide"), 10, 100)
    assert work.given == 1_000
    work.assert_in_proportion(0, lanes=1_000)


@pytest.mark.parametrize(("queue", "lanes"), [("wide", 1_000), ("scheduled", 2), ("deep", 1)])
def test_lanes_reads_one_message_a_lane(full, queue, lanes):
    work = full.measure(f"lanes('{queue}', worker => 'w')")
    assert work.given == lanes
    work.assert_in_proportion(0, lanes=lanes)


@pytest.mark.parametrize(("queue", "lanes"), [("wide", 1_000), ("scheduled", 2), ("deep", 1)])
@pytest.mark.parametrize("after", ["-infinity", "now"])
def test_lanes_ahead_reads_one_message_a_lane_and_none_before_the_watermarks(full, queue, lanes, after):
    marks = full.lanes(queue) | {"afters": [after] * lanes}
    call = f"lanes_ahead('{queue}', %(tenants)s::text[], %(priorities)s::smallint[], %(afters)s::timestamptz[])"
    # what is scheduled for tomorrow; and in `deep` what other tests have failed, to be tried again
    ahead = "select count(distinct (tenant, priority)) from postrow.message where queue = %s and available_at > now()"
    [[expected]] = full.conn.execute(f"{ahead} and claim_token is null", [queue]).fetchall()
    work = full.measure(call, marks)
    assert work.given == (lanes if after == "-infinity" else expected)
    assert queue != "scheduled" or expected == 1
    work.assert_in_proportion(0, lanes=2 * lanes)  # and one look between each and the next


def test_claim_with_the_statistics_of_a_table_that_was_full(emptied):
    for tenant in ("'t'", "null"):
        work = emptied.measure(f"claim('deep', 50, tenant => {tenant}, lease => '1 day')")
        assert work.given == 50
        work.assert_in_proportion(50)


def test_claim_lanes_with_the_statistics_of_a_table_that_was_full(emptied):
    work = claim_lanes(emptied, "deep", emptied.lanes("deep"), 50, 50)
    assert work.given == 50
    work.assert_in_proportion(50)


def test_lanes_with_the_statistics_of_a_table_that_was_full(emptied):
    work = emptied.measure("lanes('deep')")
    assert work.given == 1
    work.assert_in_proportion(0, lanes=1)


def test_a_large_claim_that_finds_little_reads_little(sparse):
    """The planner expects thousands of messages here, and would rather read the table whole than look them up."""
    work = claim_lanes(sparse, "wide", sparse.lanes("wide"), 10, 10_000)
    assert work.given >= 1_000
    work.assert_in_proportion(10, lanes=1_000)


def test_a_lost_claim_is_found_among_the_claimed_messages(full):
    claimed = full.conn.execute("select count(*) from postrow.message where claim_token is not null").fetchone()[0]
    token = full.claimed(100)["tokens"][0]
    work = full.measure(f"release_claim('{token}')")
    work.assert_in_proportion(claimed // 4)


def hot_functions():
    """The functions whose plans are forced in some way, from their files."""
    found = [text for file in sql.functions() for text in file.statements if "set plan_cache_mode" in text]
    return [text.split("create or replace function ", 1)[1].split("(", 1)[0] for text in found]


def test_every_hot_function_forbids_compilation_and_kept_plans(conn):
    """Scans that are switched off cost 10^10 to the planner, and over 10^5 it compiles: a second for each call."""
    assert len(hot_functions()) > 15
    for name, config in conn.execute(
        "select oid::regproc::text, proconfig from pg_proc where oid = any(%s::regproc[])", [hot_functions()]
    ):
        # some plans are kept on purpose: of one index, or by place, there is nothing else it could do (lanes and
        # claim_lanes: without a sort only one gives the order), of a few rows nothing worse
        kept = name.removeprefix("postrow.") in {
            *("has_targeted", "claim_rules", "lanes", "lanes_ahead", "claim_lanes", "mark", "finish", "ack_at")
        }
        assert {"jit=off", f"plan_cache_mode=force_{'generic' if kept else 'custom'}_plan"} <= set(config), name


def test_a_claim_is_not_compiled(conn):
    """The same, seen: only where the server can compile."""
    if not conn.execute("select pg_jit_available()").fetchone()[0]:
        pytest.skip("this server cannot compile")
    seen = []
    conn.add_notice_handler(notice := lambda diagnostic: seen.append(diagnostic.message_primary))
    conn.execute("load 'auto_explain'")
    for setting in ("log_min_duration = 0", "log_analyze = on", "log_nested_statements = on", "log_level = notice"):
        conn.execute(f"set local auto_explain.{setting}")
    conn.execute("set local jit = on")
    conn.execute("select postrow.enqueue('emails', '{}')")
    conn.execute("select * from postrow.claim('emails', 10, max_bytes => 1000)")
    conn.execute("select * from postrow.claim_lanes('emails', '{default}', '{0}', '{null}', 10, 10, max_bytes => 1000)")
    conn.remove_notice_handler(notice)
    assert sum("for update skip locked" in text for text in seen) == 2
    assert not [text for text in seen if "JIT:" in text]
