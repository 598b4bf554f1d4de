"""How long to wait before the next attempt."""

from __future__ import annotations

import math
import random
from datetime import timedelta
from statistics import fmean

import pytest
from hypothesis import given, strategies as st

from celery_guard.core.backoff import Backoff, compute_backoff_delay

JITTERS = ["none", "full", "equal", 0, 0.0, 0.25, 0.5, 1, 1.0]
BEYOND_THE_CAP = [30, 63, 64, 1_000, 1_023, 1_024, 1_025, 10**6, 2**31, 2**63, 10**30]

attempts = st.integers(1, 2**31)
bases = st.floats(0.001, 86_400)
jitters = st.sampled_from(["none", "full", "equal"]) | st.floats(0, 1)


@given(attempts, bases, st.floats(1, 1_000), jitters, st.integers(0, 2**32))
def test_a_delay_is_more_than_nothing_and_within_its_cap(attempt, base, ratio, jitter, seed):
    backoff = Backoff(base, base * ratio, jitter)

    delay = backoff.delay(attempt, random.Random(seed))

    assert timedelta(0) < delay <= timedelta(seconds=backoff.cap)


@given(st.integers(1, 200), bases, st.floats(1, 1_000))
def test_without_jitter_a_later_attempt_never_waits_less(attempt, base, ratio):
    backoff = Backoff(base, base * ratio, "none")
    rng = random.Random(0)

    assert backoff.delay(attempt, rng) <= backoff.delay(attempt + 1, rng)


@given(attempts, jitters, st.integers(0, 2**32))
def test_a_seed_repeats_its_delays(attempt, jitter, seed):
    backoff = Backoff(1, 300, jitter)

    assert backoff.delay(attempt, random.Random(seed)) == backoff.delay(attempt, random.Random(seed))


def test_without_jitter_the_delay_doubles_up_to_the_cap(rng):
    backoff = Backoff(base=1, cap=20, jitter="none")

    delays = [backoff.delay(attempt, rng).total_seconds() for attempt in range(1, 8)]

    assert delays == [1, 2, 4, 8, 16, 20, 20]


@pytest.mark.parametrize("attempt", BEYOND_THE_CAP)
@pytest.mark.parametrize("base", [0.001, 1, 7.3])
def test_far_beyond_the_cap_the_ceiling_is_the_cap_itself(base, attempt):
    assert Backoff(base, 300).ceiling(attempt) == 300


def test_base_equal_to_cap_never_doubles(rng):
    backoff = Backoff(base=5, cap=5, jitter="none")

    assert {backoff.delay(attempt, rng) for attempt in (1, 2, 2**31)} == {timedelta(seconds=5)}


@pytest.mark.parametrize(
    ("jitter", "lowest", "mean", "highest"),
    [
        ("none", 8, 8, 8),
        ("full", 0, 4, 8),
        ("equal", 4, 6, 8),
        (0.0, 8, 8, 8),
        (0.25, 6, 8, 10),
        (0.5, 4, 8, 12),
        (1.0, 0, 8, 16),
    ],
)
def test_jitter_spreads_as_its_formula_says(jitter, lowest, mean, highest, rng):
    backoff = Backoff(base=1, cap=100, jitter=jitter)

    delays = [backoff.delay(4, rng).total_seconds() for _ in range(4_000)]

    width = highest - lowest
    assert lowest <= min(delays) <= lowest + width * 0.01
    assert highest - width * 0.01 <= max(delays) <= highest
    assert fmean(delays) == pytest.approx(mean, abs=0.01 + width * 0.02)


@pytest.mark.parametrize("jitter", [0.5, 1.0])
def test_the_cap_holds_after_jitter(jitter, rng):
    backoff = Backoff(base=1, cap=10, jitter=jitter)

    delays = [backoff.delay(9, rng).total_seconds() for _ in range(1_000)]

    assert max(delays) == 10


class Extreme(random.Random):
    """Chance that always falls on the same side."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self.value = value

    def random(self) -> float:
        return self.value


@pytest.mark.parametrize("luck", [0.0, math.nextafter(1.0, 0.0)])
@pytest.mark.parametrize("jitter", JITTERS)
def test_no_luck_makes_a_retry_immediate_or_later_than_the_cap(jitter, luck):
    backoff = Backoff(base=0.001, cap=2, jitter=jitter)

    delays = [backoff.delay(attempt, Extreme(luck)) for attempt in (1, 5, 50, 2**31)]

    assert all(timedelta(0) < delay <= timedelta(seconds=2) for delay in delays)


@pytest.mark.parametrize("base", [0, -1, math.inf, math.nan])
def test_a_base_that_is_no_positive_number_is_refused(base):
    with pytest.raises(ValueError, match="base"):
        Backoff(base=base)


@pytest.mark.parametrize("cap", [0, -1, 0.5, math.inf, math.nan, 1e300])
def test_a_cap_below_the_base_or_without_end_is_refused(cap):
    with pytest.raises(ValueError, match="cap"):
        Backoff(base=1, cap=cap)


@pytest.mark.parametrize("jitter", ["", "half", "FULL", -0.1, 1.1, math.nan, math.inf, True, False, None])
def test_an_unknown_jitter_is_refused(jitter):
    with pytest.raises(ValueError, match="jitter"):
        Backoff(jitter=jitter)


@pytest.mark.parametrize("attempt", [0, -1, -(2**31)])
def test_attempts_count_from_one(attempt, rng):
    with pytest.raises(ValueError, match="from 1"):
        Backoff().delay(attempt, rng)


def test_the_public_function_is_the_same_formula():
    delay = compute_backoff_delay(3, 2.0, 60.0, 0.5, rng=random.Random(7))

    assert delay == Backoff(2.0, 60.0, 0.5).delay(3, random.Random(7))


def test_the_public_function_spreads_around_the_doubled_base():
    delays = [compute_backoff_delay(3).total_seconds() for _ in range(200)]

    assert all(2 <= delay <= 6 for delay in delays)
    assert len(set(delays)) > 100


@pytest.mark.parametrize(
    "arguments",
    [{"attempt": 0}, {"base_seconds": 0}, {"cap_seconds": 0.5}, {"jitter": 2}, {"jitter": "some"}],
)
def test_the_public_function_refuses_what_is_out_of_range(arguments):
    with pytest.raises(ValueError):
        compute_backoff_delay(**{"attempt": 1, **arguments})
