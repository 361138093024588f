"""The sweep of dead letters reads what it deletes, and `show` the one that it looks for, however many there are."""

import secrets

import pytest

pytestmark = pytest.mark.plan


class Letters:
    """Dead letters in a queue of one test's own: what another has rolled back is still in the indexes."""

    def __init__(self, plans):
        self.plans = plans
        self.queue = f"q{secrets.token_hex(4)}"

    def bury(self, count, days, *, tenant="t", group="null", resolved="null"):
        self.plans.conn.execute(
            "insert into postrow.dead_letter (tenant, id, queue, priority, hops, attempt, payload, reason, "
            "enqueued_at, died_at, group_key, resolved_at) "
            f"select '{tenant}', gen_random_uuid(), '{self.queue}', 0, 0, 1, '1', 'buried', now(), "
            f"now() - interval '{days} days' + g * interval '1 ms', {group}, {resolved} "
            f"from generate_series(1, {count}) g"
        )

    def sweep(self):
        return self.plans.measure("sweep('dead', 100)")

    def left(self):
        count = "select count(*) from postrow.dead_letter where queue = %s"
        return self.plans.conn.execute(count, [self.queue]).fetchone()[0]


@pytest.fixture
def letters(full):
    """Those that are over a month old are swept."""
    with full.conn.transaction(force_rollback=True):
        full.conn.execute("select postrow.configure('dead_letter_days', '30')")
        made = Letters(full)
        made.sweep()  # marks what was rolled back, in the indexes that it reads for all queues
        yield made


@pytest.mark.parametrize("old", [{}, {"resolved": "now() - interval '50 days'"}, {"group": "'g' || g"}])
def test_the_sweep_of_dead_letters_reads_those_that_are_old(letters, old):
    letters.bury(20_000, 10)
    letters.bury(5_000, 60, resolved="now() - interval '10 days'")
    letters.bury(500, 40, **old)
    work = letters.sweep()
    assert letters.left() == 25_400
    work.assert_in_proportion(100)


def test_dead_letters_that_block_groups_are_not_read_by_each_sweep(letters):
    letters.plans.conn.execute("select postrow.register_consumer(%s, 'h', on_dead => 'block')", [letters.queue])
    letters.bury(20_000, 40, group="'g' || g")
    letters.bury(20_000, 40, group="'g' || g", tenant="u")
    work = letters.sweep()
    assert letters.left() == 40_000
    work.assert_in_proportion(0)


def test_show_finds_a_dead_letter_by_its_id_alone(letters):
    letters.bury(20_000, 10)
    one = "select id from postrow.dead_letter where queue = %s limit 1"
    [[found]] = letters.plans.conn.execute(one, [letters.queue]).fetchall()
    letters.plans.measure("show(gen_random_uuid())")
    work = letters.plans.measure(f"show('{found}')")
    assert work.given == 1
    work.assert_in_proportion(1)
    indexes = "select indexdef from pg_indexes where schemaname = 'postrow' and tablename = 'dead_letter'"
    beginnings = [row[0].split(" USING ")[1] for row in letters.plans.conn.execute(indexes)]
    assert len([text for text in beginnings if text.startswith("btree (id")]) == 1, "one index is enough"
