from datetime import timedelta

import pytest

CENTURY = timedelta(days=36_500)


def seconds(number):
    return timedelta(seconds=number)


def delay(pg, attempt, retry="exponential", *, base=10, factor=2, cap=3600, jitter=False):
    return pg.value(
        "retry_delay",
        attempt=attempt,
        retry=retry,
        base=base if isinstance(base, timedelta) else seconds(base),
        factor=float(factor),
        cap=cap if isinstance(cap, timedelta) else seconds(cap),
        jitter=jitter,
    )


def test_exponential_multiplies_until_the_cap(pg):
    assert [delay(pg, n) for n in range(1, 12)] == [
        seconds(n) for n in (10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600)
    ]


def test_linear_adds_until_the_cap(pg):
    assert [delay(pg, n, "linear", cap=25) for n in (1, 2, 3)] == [seconds(n) for n in (10, 20, 25)]


def test_constant_stays(pg):
    assert {delay(pg, n, "constant", factor=9) for n in (1, 2, 1000)} == {seconds(10)}


@pytest.mark.parametrize("retry", ["exponential", "linear", "constant"])
def test_a_base_of_nothing_is_no_delay(pg, retry):
    assert delay(pg, 5, retry, base=0) == seconds(0)


@pytest.mark.parametrize("attempt", [0, -1])
@pytest.mark.parametrize("retry", ["exponential", "linear", "constant"])
def test_an_attempt_below_one_counts_as_the_first(pg, attempt, retry):
    assert delay(pg, attempt, retry) == seconds(10)


def test_a_factor_of_one_does_not_grow(pg):
    assert delay(pg, 1000, factor=1) == seconds(10)


def test_a_base_of_the_cap_is_the_cap(pg):
    assert delay(pg, 1, base=60, cap=60) == seconds(60)


@pytest.mark.parametrize("attempt", [1_000, 2**31 - 1])
@pytest.mark.parametrize("factor", [1.0001, 2, 1000])
@pytest.mark.parametrize("retry", ["exponential", "linear"])
def test_no_attempt_overflows_a_cap_of_a_century(pg, attempt, factor, retry):
    found = delay(pg, attempt, retry, factor=factor, cap=CENTURY)

    assert seconds(10) <= found <= CENTURY
    assert pg.query("select postrow.clock() + %s as moment", [found])[0].moment.year <= 2200


@pytest.mark.parametrize("retry", ["exponential", "linear", "constant"])
def test_the_smallest_base_and_the_largest_cap_do_not_overflow(pg, retry):
    found = delay(pg, 2**31 - 1, retry, base=timedelta(microseconds=1), factor=1000, cap=timedelta(days=365_000))

    assert seconds(0) <= found <= timedelta(days=365_000)


def test_jitter_is_between_half_and_all_of_it_and_differs(pg):
    found = pg.query(
        "select postrow.retry_delay(3, 'exponential', '10 s', 2, '1 hour', true) as delay from generate_series(1, 200)"
    )
    delays = [row.delay for row in found]

    assert seconds(20) <= min(delays) < seconds(25)
    assert seconds(35) < max(delays) <= seconds(40)
    assert len(set(delays)) > 190


def test_jitter_comes_after_the_cap(pg):
    delays = [delay(pg, 1_000, jitter=True) for _ in range(50)]

    assert seconds(1800) <= min(delays)
    assert max(delays) <= seconds(3600)
    assert len(set(delays)) > 40


def test_attempt_1000_with_a_cap_of_a_century_gives_a_valid_timestamp(pg, clock):
    pg.rows("register_consumer", queue="q", handler="h", max_attempts=2_000, retry_cap=CENTURY)
    sent = pg.put()
    pg.query("update postrow.message set attempt = 999 where id = %s", [sent])
    claimed = pg.take()
    assert claimed[0].attempt == 1_000

    assert pg.settle("fail", claimed, errors=["x"]) == ["accepted"]
    wait = pg.find("message", sent).available_at - clock.now
    assert CENTURY / 2 - seconds(1) <= wait <= CENTURY + seconds(1)
