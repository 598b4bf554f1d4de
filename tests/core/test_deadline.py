"""Deadlines as users write them, and which of two counts."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, strategies as st

from celery_guard.core.deadline import Deadline, aware

durations = st.timedeltas(timedelta(microseconds=1), timedelta(days=36_500))
moments = st.datetimes(datetime(1970, 1, 2), datetime(9000, 1, 1), timezones=st.just(timezone.utc))
deadlines = st.builds(Deadline, at=st.none() | moments, after=st.none() | durations)


@pytest.mark.parametrize("value", [90, 90.0, timedelta(seconds=90)])
def test_seconds_and_timedelta_are_a_duration_from_submission(value):
    assert Deadline.of(value) == Deadline(after=timedelta(seconds=90))


def test_an_aware_moment_is_kept_in_utc():
    moment = datetime(2026, 6, 1, 14, 0, tzinfo=timezone(timedelta(hours=2)))

    deadline = Deadline.of(moment)

    assert deadline == Deadline(at=datetime(2026, 6, 1, 12, 0, tzinfo=timezone.utc))
    assert deadline.at.tzinfo is timezone.utc


def test_a_naive_moment_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"eta must carry a time zone.*timezone\.utc"):
        Deadline.of(datetime(2026, 6, 1), name="eta")


@pytest.mark.parametrize("value", [0, -1, -0.0, timedelta(0), timedelta(seconds=-1), 1e-9])
def test_a_duration_of_nothing_or_less_is_refused(value):
    with pytest.raises(ValueError, match="more than 0"):
        Deadline.of(value)


@pytest.mark.parametrize("value", [True, False, None, "60", [60], object(), 1j])
def test_another_type_is_refused_with_what_is_accepted(value):
    with pytest.raises(ValueError, match="deadline must be a timedelta, seconds or an aware datetime"):
        Deadline.of(value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e300, 10**20])
def test_a_number_that_is_no_duration_is_refused(value):
    with pytest.raises(ValueError, match="out of range"):
        Deadline.of(value)


@pytest.mark.parametrize(
    "moment",
    [
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),
    ],
)
def test_a_moment_that_has_no_utc_is_refused(moment):
    with pytest.raises(ValueError, match="deadline"):
        aware(moment)


@pytest.mark.parametrize(
    ("mine", "other", "expected"),
    [
        (Deadline(after=timedelta(1)), None, Deadline(after=timedelta(1))),
        (Deadline(after=timedelta(2)), Deadline(after=timedelta(1)), Deadline(after=timedelta(1))),
        (Deadline(after=timedelta(1)), Deadline(after=timedelta(2)), Deadline(after=timedelta(1))),
        (Deadline(), Deadline(after=timedelta(2)), Deadline(after=timedelta(2))),
    ],
)
def test_the_shorter_of_two_durations_counts(mine, other, expected):
    assert mine.narrowed_to(other) == expected


def test_the_earlier_of_two_moments_counts(now):
    early, late = Deadline(at=now), Deadline(at=now + timedelta(seconds=1))

    assert late.narrowed_to(early) == early
    assert early.narrowed_to(late) == early


def test_a_moment_and_a_duration_are_both_kept(now):
    assert Deadline(at=now).narrowed_to(Deadline(after=timedelta(1))) == Deadline(at=now, after=timedelta(1))


@given(deadlines, deadlines)
def test_narrowing_is_the_same_from_both_sides(one, other):
    assert one.narrowed_to(other) == other.narrowed_to(one)


@given(deadlines, deadlines)
def test_narrowing_never_moves_a_deadline_further_away(one, other):
    narrowed = one.narrowed_to(other)

    assert one.at is None or narrowed.at <= one.at
    assert one.after is None or narrowed.after <= one.after


@given(deadlines)
def test_narrowing_by_itself_changes_nothing(deadline):
    assert deadline.narrowed_to(deadline) == deadline
