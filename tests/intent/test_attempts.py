"""How often a body starts, however the number was given."""

from __future__ import annotations

import pytest

from celery_guard import InvalidOption, RetryableError, current_run
from tests.infra.naming import shown


@pytest.fixture
def bodies(any_shop, noted):
    """Submit a task that always fails; return how often its body started, at most ten times."""

    def count(options=None, **call):
        @any_shop.app.task(name="busy", **{"backoff": [0.001], **(options or {})})
        def busy():
            noted.append(1)
            if len(noted) < 10:
                raise RetryableError("busy")

        busy.apply_async(**call)
        any_shop.work(limit=60)
        return len(noted)

    return count


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 5),
        ({"max_attempts": None}, 5),
        ({"max_attempts": 1}, 1),
        ({"max_attempts": 2}, 2),
        ({"max_retries": 0}, 1),
        ({"max_retries": 1}, 2),
        ({"max_retries": 2}, 3),
        ({"max_retries": None}, 10),
        ({"max_retries": 7, "max_attempts": 2}, 2),
    ],
    ids=shown,
)
def test_a_decorator_says_how_often(bodies, options, count):
    assert bodies(options) == count


@pytest.mark.parametrize("name", ["max_attempts", "max_retries"])
@pytest.mark.parametrize("value", [-1, True, False, "3", 1.5, object()], ids=shown)
def test_a_decorator_that_says_no_number_is_refused_by_name(bodies, noted, name, value):
    with pytest.raises(InvalidOption, match=name):
        bodies({name: value})

    assert noted == []


def test_no_attempt_at_all_is_refused(bodies):
    with pytest.raises(InvalidOption, match="max_attempts"):
        bodies({"max_attempts": 0})


@pytest.mark.parametrize(("value", "count"), [(None, 5), (1, 1), (2, 2)])
def test_a_call_says_how_often(bodies, value, count):
    assert bodies(max_attempts=value) == count


@pytest.mark.parametrize("value", [0, -1, True, "3", 1.5], ids=shown)
def test_a_call_that_says_no_number_is_refused_by_name(bodies, value):
    with pytest.raises(InvalidOption, match="max_attempts"):
        bodies(max_attempts=value)


def test_the_configuration_says_how_often_for_all(open_shop, store_url, noted):
    shop = open_shop(url=store_url, guard_max_attempts=3)

    @shop.app.task
    def busy():
        noted.append(current_run().max_attempts)
        raise RetryableError("busy")

    busy.delay()
    shop.work()

    assert noted == [3, 3, 3]
