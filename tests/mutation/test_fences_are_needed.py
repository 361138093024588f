"""Each fence of the SQL, taken out in turn, makes a named test fail: so each fence is needed, and each test sees it."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from postrow import sql

pytestmark = pytest.mark.mutation

ROOT = Path(__file__).parents[2]
FENCES = "tests/races/test_fences.py::"
GROUPS = "tests/races/test_groups.py::"
LIMITS = "tests/races/test_limits.py::"
AT = "tests/races/test_ack_at.py::"
AT_ALONE = "tests/sql/test_ack_at.py::"
CLAIM = "tests/plans/test_claim.py::"
SETTLE = "tests/plans/test_settle.py::"


@dataclass(frozen=True, slots=True)
class Mutation:
    """What to replace in a function file (a pattern and its replacement), and the tests that have to fail then."""

    file: str
    change: dict[str, str]
    tests: tuple[str, ...]
    function: str | None = None

    def apply(self):
        """The statements of the file, changed, as one script."""
        [file] = [file for file in sql.functions() if file.name == self.file]
        statements = []
        matched = set()
        for statement in file.statements:
            changed = statement
            if self.function is None or f"function postrow.{self.function}(" in statement:
                for old, new in self.change.items():
                    changed, count = re.subn(old, lambda _, new=new: new, changed)
                    matched |= {old} if count else set()
            statements.append(changed)
        assert matched == set(self.change), "this mutation changes nothing: bring it up to date"
        return ";\n".join(statements)


# Forced plans have two fences each, made at each call (or kept, where a place is looked up) and by few kinds of scan:
# one alone holds in what we could find (tests/plans), so both are taken out together; and the kinds of scan alone,
# where that does harm.
KEPT = {r" ?set plan_cache_mode = \w+": ""}
SCANS = {r" ?set enable_\w+ = \w+": ""}
WHOLE_INDEX = {r"enable_bitmapscan = on": "enable_bitmapscan = off", r"enable_indexscan = off": "enable_indexscan = on"}
BY_KEY = SCANS | {r"m\.ctid = w\.tid and ": ""}
TWO_ACKS = FENCES + "test_of_two_acks_at_once_one_is_accepted"
SWEPT = FENCES + "test_an_ack_that_waited_for_the_sweep_is_stale"
EXTEND = FENCES + "test_extend_does_not_wait_for_an_ack_that_is_not_committed"
UNCOUNTED = {r"v_gone\.count < cardinality\(finish\.tids\)": "false"}  # `finish` sees what it does not find, and raises
PASSES_BY = FENCES + "test_a_claim_passes_by_what_another_has_locked"

MUTATIONS = {
    "the token is not compared": Mutation(
        "70_settle",
        {r"m\.claim_token is not distinct from w\.token": "true"},
        (FENCES + "test_a_stale_token_is_refused_and_changes_nothing",),
        "take",
    ),
    "a settlement does not lock its rows": Mutation(
        "70_settle", {r"for update\) l\) t": ") l) t"} | UNCOUNTED, (TWO_ACKS, SWEPT)
    ),
    "a settlement that shall not wait does not lock its rows": Mutation(
        "70_settle", {r"for update skip locked": ""}, (EXTEND,), "take"
    ),
    "a settlement that shall not wait waits": Mutation("70_settle", {r" skip locked": ""}, (EXTEND,), "take"),
    "the outcome is read with the snapshot from before the wait": Mutation(
        "70_settle",
        {
            r"v_taken  record := ": "v_seen jsonb := (select jsonb_object_agg(o.id, o.outcome) "
            "from postrow.outcomes(ack.tenants, ack.ids, ack.tokens, '{}') o);\n    v_taken record := ",
            r"return query select \* from": "return query select o.tenant, o.id, case o.outcome when 'accepted' "
            "then 'accepted' else v_seen ->> o.id::text end from",
            r"ack\.tokens, v_taken\.taken\);": "ack.tokens, v_taken.taken) o;",
        },
        (SWEPT,),
        "ack",
    ),
    "an ack by place does not compare the token": Mutation(
        "70_settle",
        {r" +and m\.claim_token = ack_at\.tokens\[w\.n\]\n": ""},
        (
            AT_ALONE + "test_another_token_is_stale_and_changes_nothing",
            AT_ALONE + "test_a_free_message_is_stale_and_stays_as_it_is",
            AT_ALONE + "test_a_message_that_was_claimed_again_at_the_place_that_it_has_now_is_stale",
        ),
        "ack_at",
    ),
    "an ack by place takes what nobody holds for what a null token holds": Mutation(
        "70_settle",
        {r"m\.claim_token = ack_at\.": "m.claim_token is not distinct from ack_at."},
        (AT_ALONE + "test_a_null_token_is_not_that_of_a_message_that_nobody_holds",),
        "ack_at",
    ),
    "an ack by place does not ask which message is there": Mutation(
        "70_settle",
        {r"m\.tenant = w\.tenant and m\.id = ack_at\.ids\[w\.n\]": "true"},
        (
            AT_ALONE + "test_the_place_of_another_message_does_no_harm",
            AT_ALONE + "test_one_id_in_two_tenants_is_two_messages_at_two_places",
        ),
        "ack_at",
    ),
    "an ack by place believes in the place alone": Mutation(
        "70_settle",
        {
            r"m\.tenant = w\.tenant and m\.id = ack_at\.ids\[w\.n\]": "true",
            r" +and m\.claim_token = ack_at\.tokens\[w\.n\]\n": "",
        },
        (
            AT_ALONE + "test_a_message_that_took_the_place_of_one_that_is_gone_is_never_acknowledged_for_it",
            AT_ALONE + "test_a_message_that_moved_is_acknowledged_when_another_has_its_place",
        ),
        "ack_at",
    ),
    "an ack by place does not look for what has moved": Mutation(
        "70_settle",
        {r"n <> all \(v_taken\)": "false"},
        (
            AT_ALONE + "test_a_message_whose_lease_was_renewed_has_moved_and_is_accepted",
            AT_ALONE + "test_a_place_where_nothing_is_does_no_harm",
        ),
        "ack_at",
    ),
    "an ack by place does not lock its rows": Mutation(
        "70_settle",
        {r"(?<=ack_at\.tokens\[w\.n\]\n) +for update skip locked": ""} | UNCOUNTED,
        (AT + "test_what_another_has_in_hand_is_busy_and_nothing_waits[at their places-another ack_at]",),
    ),
    "an ack by place waits": Mutation(
        "70_settle",
        {r" skip locked": ""},
        (AT + "test_what_another_has_in_hand_is_busy_and_nothing_waits[at their places-extend]",),
        "ack_at",
    ),
    "an ack by place waits for what has moved": Mutation(
        "70_settle",
        {r"unnest\(v_others\) n\), false\)": "unnest(v_others) n), true)"},
        (AT + "test_what_another_has_in_hand_is_busy_and_nothing_waits[elsewhere-extend]",),
        "ack_at",
    ),
    "an ack by place does not see what stands twice under two tokens": Mutation(
        "70_settle",
        {r" +perform postrow\.check_settle\(.*\);\n": ""},
        (AT_ALONE + "test_a_message_that_stands_twice_is_refused_as_ack_refuses_it",),
        "ack_at",
    ),
    "what is settled is not counted": Mutation(
        "70_settle", UNCOUNTED, (AT_ALONE + "test_a_message_that_stands_twice_is_refused_as_ack_refuses_it",), "finish"
    ),
    "what is settled does not let its group go on": Mutation(
        "70_settle",
        {r"if v_gone\.grouped then": "if false then"},
        (AT_ALONE + "test_the_next_of_a_group_is_set_free",),
        "finish",
    ),
    "what is settled does not tell that there is room": Mutation(
        "70_settle",
        {r"if v_limited then": "if false then"},
        ("tests/sql/test_tap.py::test_an_ack_within_a_limit_taps_for_the_room_that_it_makes",),
        "finish",
    ),
    "history is kept where the consumer wants none": Mutation(
        "70_settle",
        {r"where v_all or postrow\.keeps_history\(m\.queue, m\.tenant\)": ""},
        (
            AT_ALONE + "test_no_history_is_kept_where_the_consumer_says_so",
            "tests/sql/test_settle.py::test_ack_keeps_no_history_where_the_consumer_says_so",
        ),
        "finish",
    ),
    "an ack by place finds its messages by their keys, by any plan": Mutation(
        "70_settle", KEPT | BY_KEY, (SETTLE + "test_an_ack_of_a_batch_by_its_places",), "ack_at"
    ),
    "what is settled is taken out by any plan": Mutation(
        "70_settle",
        KEPT | SCANS | {r"m\.ctid = w\.tid": "m.ctid::text = w.tid::text"},
        (SETTLE + "test_an_ack_of_a_batch_by_its_places",),
        "finish",
    ),
    "a claim waits for locked rows": Mutation("60_claim", {r" skip locked": ""}, (PASSES_BY,), "pick"),
    "a claim of lanes waits for locked rows": Mutation("60_claim", {r" skip locked": ""}, (PASSES_BY,), "claim_lanes"),
    "attempts have no bound": Mutation(
        "75_fail",
        {r"m\.attempt >= coalesce\(m\.max_attempts, c\.max_attempts, 5\) as spent": "false as spent"},
        (
            FENCES + "test_a_message_that_kills_its_worker_runs_out_of_attempts",
            FENCES + "test_a_failed_message_runs_out_of_attempts",
        ),
        "retry_or_kill",
    ),
    "a claim marks its messages by their keys, by any plan": Mutation(
        "60_claim", KEPT | BY_KEY, (CLAIM + "test_claim_from_a_deep_lane[refilled-null-'t']",), "mark"
    ),
    "a claim keeps plans, of any kind": Mutation(
        "60_claim",
        KEPT | SCANS,
        (CLAIM + "test_claim_from_a_deep_lane[old plans-null-null]", CLAIM + "test_lanes_reads_one_message_a_lane"),
    ),
    "a settlement keeps plans, of any kind": Mutation(
        "70_settle", KEPT | SCANS, (SETTLE + "test_a_settlement_of_a_batch[old plans-ack]",)
    ),
    "a failure keeps plans, of any kind": Mutation(
        "75_fail", KEPT | SCANS, (SETTLE + "test_a_settlement_of_a_batch[old plans-bury]",)
    ),
    "a settlement finds its messages in a join": Mutation(
        "70_settle",
        {
            r"cross join lateral \(": "join (",
            r"where m\.tenant = w\.tenant and m\.id = w\.id": "where true",
            r"select m\.ctid from": "select m.ctid, m.tenant, m.id, m.claim_token from",
            r" and m\.claim_token is not distinct from w\.token\n": "\n",
            r"for update( skip locked)?\) l\) t": ") l on l.tenant = w.tenant and l.id = w.id "
            "and l.claim_token is not distinct from w.token) t",
        },
        (SETTLE + "test_a_settlement_of_a_batch[refilled-ack]",),
        "take",
    ),
    "a failure may read an index from its beginning": Mutation(
        "75_fail", WHOLE_INDEX, (SETTLE + "test_a_settlement_of_a_batch[refilled-fail]",)
    ),
    "two claims may have one group": Mutation(
        "59_group",
        {r"where pg_try_advisory_xact_lock\(.*\);": ";"},
        (GROUPS + "test_two_claims_that_meet_different_messages_of_a_group_do_not_both_get_it",),
        "in_turn",
    ),
    "what stands in front is not locked while others are set behind it": Mutation(
        "59_group",
        {r" for key share skip locked\) o\)\);": ") o));"},
        (
            GROUPS + "test_an_ack_waits_for_a_claim_that_sets_others_behind_it",
            GROUPS + "test_nothing_is_set_behind_a_message_that_is_being_settled",
        ),
        "in_turn",
    ),
    "a dead letter that blocks is not locked while others are set behind it": Mutation(
        "59_group",
        {r"limit 1 for key share skip locked": "limit 1"},
        (GROUPS + "test_a_decision_waits_for_a_claim_that_sets_others_behind_a_dead_letter[redrive]",),
        "in_turn",
    ),
    "a limit is counted without a lock": Mutation(
        "62_limit",
        {r"v_locked := pg_try_advisory_xact_lock\(.*\);": "v_locked := true;"},
        (LIMITS + "test_two_claims_at_once_get_no_more_than_the_limit[{'max_in_flight': 4}]",),
        "claim_limited",
    ),
    "claims may be compiled": Mutation(
        "60_claim", {r" set jit = off": ""}, (CLAIM + "test_every_hot_function_forbids_compilation_and_kept_plans",)
    ),
    "settlements may be compiled": Mutation(
        "70_settle", {r" set jit = off": ""}, (CLAIM + "test_every_hot_function_forbids_compilation_and_kept_plans",)
    ),
    "failures may be compiled": Mutation(
        "75_fail", {r" set jit = off": ""}, (CLAIM + "test_every_hot_function_forbids_compilation_and_kept_plans",)
    ),
}


def run(tests, folder, *, script=None):
    """Runs tests in a process of their own, on the SQL with a mutation, and gives (name, failure, error) of each."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env.pop("POSTROW_TEST_MUTATION", None)
    env["POSTROW_TEST_MANY"] = "60_000"  # messages of the tests of plans: what reads all of them is seen as well
    if script is not None:
        (folder / "mutation.sql").write_text(script, encoding="utf-8")
        env["POSTROW_TEST_MUTATION"] = str(folder / "mutation.sql")
    report = folder / "report.xml"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *tests],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert report.exists(), done.stdout + done.stderr
    cases = list(ET.parse(report).iter("testcase"))
    assert cases, done.stdout + done.stderr
    return [(case.get("name"), case.find("failure"), case.find("error")) for case in cases]


def test_the_named_tests_pass_with_all_fences(tmp_path):
    named = sorted({name for mutation in MUTATIONS.values() for name in mutation.tests})
    assert [name for name, failure, error in run(named, tmp_path) if failure is not None or error is not None] == []


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_without_the_fence_a_test_fails(mutation, tmp_path):
    found = run(mutation.tests, tmp_path, script=mutation.apply())
    assert [name for name, _, error in found if error is not None] == [], "an error, and not a failure, of"
    failed = {name.split("[")[0]: failure.get("message") for name, failure, _ in found if failure is not None}
    expected = {name.split("::")[1].split("[")[0] for name in mutation.tests}
    assert set(failed) == expected, "did not see it"
    for message in failed.values():
        assert message.startswith(("AssertionError", "assert", "Failed")), message
