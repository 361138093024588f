import dataclasses
import math
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

import postrow
from postrow import durations
from postrow.errors import BadArgumentError, BadNameError
from postrow.models import RetryPolicy

POLICIES = [postrow.Exponential, postrow.Linear, postrow.Constant]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_has_defaults_and_a_kind(policy):
    retry = policy()
    assert retry.kind == policy.__name__.lower()
    assert (retry.base, retry.factor, retry.cap, retry.jitter) == (10, 2, 3600, True)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "options",
    [
        {"base": -1},
        {"base": timedelta(days=-1)},
        {"base": 10, "cap": 9},
        {"base": "10"},
        {"base": None},
        {"base": True},
        {"base": math.nan},
        {"cap": math.inf},
        {"cap": 1e300},
        {"factor": 0},
        {"factor": 0.5},
        {"factor": 1001},
        {"factor": math.nan},
        {"factor": "2"},
        {"factor": None},
        {"factor": True},
        {"jitter": None},
        {"jitter": 1},
    ],
    ids=str,
)
def test_a_policy_outside_its_range_is_refused(policy, options):
    with pytest.raises(BadArgumentError) as caught:
        policy(**options)
    assert caught.value.hint or "too long" in str(caught.value)


def test_a_policy_takes_its_edges():
    postrow.Exponential(base=0, cap=0, factor=1)
    postrow.Exponential(base=timedelta(seconds=5), cap=timedelta(days=36500), factor=1000)


def test_a_policy_without_a_kind_is_refused():
    with pytest.raises(BadArgumentError, match="has a kind"):
        RetryPolicy()


def test_a_policy_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        postrow.Linear().base = 1


def test_a_retry_says_why_and_when():
    assert postrow.Retry().after is None
    assert postrow.Retry(after=60).after == timedelta(minutes=1)
    assert postrow.Retry("smtp is down", after=timedelta(0)).reason == "smtp is down"
    assert str(postrow.Retry("smtp is down")) == "smtp is down"


@pytest.mark.parametrize("after", [-1, timedelta(microseconds=-1), math.nan, math.inf, timedelta.max, "60", True, []])
def test_a_retry_that_no_clock_can_reach_is_refused(after):
    with pytest.raises(BadArgumentError, match="after is"):
        postrow.Retry(after=after)


def test_a_snooze_is_until_a_moment_or_for_a_time():
    moment = datetime(2050, 1, 1, tzinfo=UTC)
    assert postrow.Snooze(moment).until == moment
    assert postrow.Snooze(30).until == timedelta(seconds=30)
    assert postrow.Snooze(until=timedelta(days=36525)).until == timedelta(days=36525)


@pytest.mark.parametrize(
    "until",
    [
        datetime(2050, 1, 1),  # noqa: DTZ001  # that is the case
        datetime(2100, 1, 1, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        -1,
        timedelta.max,
        None,
        "tomorrow",
        math.nan,
    ],
    ids=str,
)
def test_a_snooze_that_no_clock_can_reach_is_refused(until):
    with pytest.raises(BadArgumentError, match="until"):
        postrow.Snooze(until)


@pytest.mark.parametrize("reason", [None, 7, b"x", ValueError("x")])
def test_a_reason_is_a_text(reason):
    with pytest.raises(BadArgumentError, match="reason is"):
        postrow.Bury(reason)
    with pytest.raises(BadArgumentError, match="reason is"):
        postrow.Retry(reason)


def test_a_reason_may_be_any_text():
    for text in ("", "card closed", "\0\ud800"):  # what Postgres cannot store is cleaned by who writes it
        assert postrow.Bury(text).reason == text


def message(extended):
    moment = datetime.now(UTC)

    async def extend(lease):
        extended.append(lease)

    fields = dict.fromkeys(field.name for field in dataclasses.fields(postrow.Message))
    given = {"id": uuid4(), "attempt": 1, "enqueued_at": moment, "claim_token": uuid4(), "_extend": extend}
    return postrow.Message(**(fields | given))


async def test_a_message_is_extended_by_seconds_or_a_timedelta():
    extended = []
    await message(extended).extend(300)
    await message(extended).extend(timedelta(days=366))
    assert extended == [timedelta(minutes=5), timedelta(days=366)]


@pytest.mark.parametrize("lease", [0, -1, timedelta(days=367), None, "300", math.inf])
def test_a_lease_outside_its_range_is_refused(lease):
    with pytest.raises(BadArgumentError, match="lease is"):
        message([]).extend(lease)


def test_a_message_does_not_show_its_token():
    shown = message([])
    assert str(shown.claim_token) not in repr(shown)


@pytest.mark.parametrize("value", ["", "ü", "x" * 5000])
def test_a_text_is_taken_as_it_is(value):
    assert durations.text("subject", value) == value


def test_a_member_of_an_enum_of_texts_is_its_value():
    import enum

    class Tenant(str, enum.Enum):  # noqa: UP042  # not every project has StrEnum
        ACME = "acme"

    found = durations.name("tenant", Tenant.ACME)
    assert (found, type(found)) == ("acme", str)


@pytest.mark.parametrize("value", [None, 0, False, b"x", UUID(int=0), [], "a\0b", "\ud800"], ids=repr)
def test_what_is_no_text_is_refused_by_its_name(value):
    with pytest.raises(BadArgumentError, match="subject is"):
        durations.text("subject", value)
    with pytest.raises((BadArgumentError, BadNameError), match="queue"):
        durations.name("queue", value)
