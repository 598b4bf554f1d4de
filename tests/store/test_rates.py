"""A limited retry rate: each retry has a slot of its own, the first that is free from when it wanted to come."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings, strategies as some
from sqlalchemy import text

from celery_guard.store.rates import RateStore
from tests.store.lives import NAMESPACE, after
from tests.store.races import at_once

FAR = after(1_000_000)
HOUR = 3_600.0


@pytest.fixture
def rates(database):
    return RateStore(database, NAMESPACE)


def slots(rates, *wanted, every=1.0, before=FAR, task="shop.pay"):
    """Take slots, one after the other, and tell how many seconds after noon they are."""
    found = (rates.slot(task, after(seconds), every, before=before) for seconds in wanted)
    return [None if slot is None else (slot - after(0)).total_seconds() for slot in found]


def rows(database):
    with database.connection() as connection:
        return connection.scalar(text("SELECT count(*) FROM task_rate"))


def test_a_retry_gets_the_moment_it_wants_where_that_is_free(rates):
    assert slots(rates, 0.25, 10, 5.5) == [0.25, 10, 5.5]


def test_retries_that_want_one_moment_come_one_after_the_other(rates, database):
    assert slots(rates, 3, 3, 3, 3) == [3, 4, 5, 6]
    assert rows(database) == 1


def test_a_retry_far_away_holds_up_none_that_comes_before_it(rates):
    assert slots(rates, HOUR, 1, 1, HOUR, 2) == [HOUR, 1, 2, HOUR + 1, 3]


def test_a_gap_that_is_too_small_is_left_empty(rates):
    assert slots(rates, 1, 2.5, 0.5, 1, 2) == [1, 2.5, 3.5, 4.5, 5.5]
    assert slots(rates, 0) == [0]


def test_a_slot_that_comes_too_late_is_not_taken(rates):
    assert slots(rates, 1, 1, 1, before=after(3)) == [1, 2, None]
    assert slots(rates, 1, 1) == [3, 4]


def test_each_task_and_each_namespace_has_slots_of_its_own(rates, database):
    other = RateStore(database, "warehouse")

    assert slots(rates, 1) == slots(rates, 1, task="shop.mail") == slots(other, 1) == [1]


@pytest.mark.parametrize("every", [1 / 3, 0.0004, HOUR / 7])
def test_a_rate_is_kept_to_the_microsecond_and_never_exceeded(rates, every):
    found = slots(rates, *[0] * 50, every=every)

    assert all(round(later - earlier, 6) >= every for earlier, later in pairwise(found))
    assert found[-1] == pytest.approx(49 * every, abs=1e-4)


def test_a_rate_that_was_changed_counts_for_what_comes_after(rates):
    assert slots(rates, 0, 0) == [0, 1]
    assert slots(rates, 0, 0, every=10) == [2, 12]
    assert slots(rates, 0, 0, 0, every=0.5) == [22, 22.5, 23]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=some.lists(some.integers(0, 40), max_size=25), seed=some.integers(0, 99))
def test_each_slot_is_the_first_that_is_free(database, wanted, seed):
    """Whatever is wanted in whatever order: no two are closer than the rate, and none could have come earlier."""
    rates, every = RateStore(database, f"ns-{random.Random(seed).random()}-{wanted}"), 1.5
    taken = []
    for moment in wanted:
        [slot] = slots(rates, moment / 4, every=every)
        fits = [moment / 4, *(earlier + every for earlier in taken)]
        free = [at for at in fits if at >= moment / 4 and all(abs(at - other) >= every for other in taken)]
        assert slot == min(free)
        taken.append(slot)


def test_workers_that_ask_at_once_get_different_slots(rates):
    found = at_once(*[lambda: slots(rates, *[2] * 10)] * 8)

    assert sorted(slot for some_slots in found for slot in some_slots) == [2 + number for number in range(80)]


def test_slots_that_touch_are_one_row_however_many(rates, database):
    slots(rates, *range(50))
    assert rows(database) == 1

    assert slots(rates, 0, 52, 53, 0, 0) == [50, 52, 53, 51, 54]
    assert rows(database) == 2


def test_what_is_over_is_forgotten(rates, database):
    slots(rates, 1, 1, 10)

    assert rates.prune(after(2.5)) == 0
    assert rates.prune(after(3)) == 1
    assert rows(database) == 1
    assert slots(rates, 10) == [11]


def test_what_is_over_in_another_namespace_is_not_ours_to_forget(rates, database):
    slots(RateStore(database, "warehouse"), 1)

    assert rates.prune(after(HOUR)) == 0
    assert rows(database) == 1
