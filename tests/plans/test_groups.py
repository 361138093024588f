"""Claims of groups and within limits read as much as they give, whatever the statistics say."""

import secrets

import pytest

pytestmark = pytest.mark.plan

CALLS = ["claim('{}', 100, tenant => 't'", "claim_lanes('{}', '{{t}}', '{{0}}', '{{null}}', 100, 100"]


@pytest.fixture
def queue(full):
    """One of this test's own: what another has rolled back is still in the indexes.

    But for the index that the sweep of groups reads for all queues: an index scan that meets what was rolled back marks
    it, and the next one passes it by.
    """
    yield f"q{secrets.token_hex(4)}"
    with full.conn.transaction():
        full.conn.execute("set local enable_seqscan = off")
        full.conn.execute("set local enable_bitmapscan = off")
        behind = "select count(*) from postrow.message where behind and claim_token is null"
        assert full.conn.execute(behind).fetchone()[0] == 0


def put(plans, queue, count, group, *, behind="false"):
    plans.conn.execute(
        "insert into postrow.message (tenant, id, queue, payload, enqueued_at, available_at, group_key, behind) "
        f"select 't', gen_random_uuid(), '{queue}', '1', now() + g * interval '1 ms' - interval '2 hours', "
        f"now() - interval '2 hours', {group}, {behind} from generate_series(1, {count}) g"
    )


@pytest.mark.parametrize("call", CALLS)
def test_claim_from_ten_thousand_groups(full, queue, call):
    with full.conn.transaction(force_rollback=True):
        put(full, queue, 10_000, "g::text")
        work = full.measure(f"{call.format(queue)}, lease => '1 day')")
        assert work.given == 100
        work.assert_in_proportion(100)


@pytest.mark.parametrize("call", CALLS)
def test_claim_from_one_group_of_ten_thousand(full, queue, call):
    with full.conn.transaction(force_rollback=True):
        put(full, queue, 10_000, "'one'", behind="g > 1")
        work = full.measure(f"{call.format(queue)}, lease => '1 day')")
        assert work.given == 100
        work.assert_in_proportion(100)


@pytest.mark.parametrize("call", CALLS)
def test_claim_within_a_limit(full, queue, call):
    with full.conn.transaction(force_rollback=True):
        full.conn.execute(
            "select postrow.register_consumer(%s, 'h', max_in_flight => 1000000, rate => 1000000)", [queue]
        )
        put(full, queue, 10_000, "null")
        work = full.measure(f"{call.format(queue)}, lease => '1 day')")
        assert work.given == 100
        # it reads what is in flight, of all queues
        claimed = full.conn.execute("select count(*) from postrow.message where claim_token is not null").fetchone()[0]
        work.assert_in_proportion(100 + claimed // 5)
