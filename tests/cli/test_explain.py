"""``guard explain``: what an error means."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("error", "category"),
    [
        ("503", "retryable"),
        ("404", "non_retryable"),
        ("ValueError", "non_retryable"),
        ("celery_guard.RetryableError", "retryable"),
        ("tests.cli.test_explain.Odd", "unknown"),
        ("tests.cli.test_explain.Late", "retryable"),
    ],
)
def test_an_error_is_classified(shop, error, category):
    assert shop.json("explain", error)["category"] == category


class Odd(Exception):
    """No rule knows it."""


class Late(ConnectionResetError):
    """Its parent is known."""


def test_a_task_is_asked_with_its_own_settings(shop):
    text = shop.run("explain", "503", "--task", "shop.busy").stdout

    assert "as attempt 2 of 3" in text


def test_the_last_attempt_ends_the_run(shop):
    found = shop.json("explain", "503", "--task", "shop.busy", "--attempt", "3")

    assert found["outcome"] == "failed_due_max_attempts"


def test_a_class_that_can_not_be_imported_is_known_by_name_only(shop):
    result = shop.run("explain", "no.such.Error")

    assert result.exit_code == 0
    assert "only its name is known" in result.stderr


def test_nonsense_is_a_usage_error(shop):
    assert shop.run("explain", "a b").exit_code == 2


def test_an_unknown_task_is_not_found(shop):
    assert shop.run("explain", "503", "--task", "shop.nothing").exit_code == 1
