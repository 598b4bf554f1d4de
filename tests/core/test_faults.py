"""What an error means, and how it is written down whatever it is made of."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from functools import partial

import pytest
from hypothesis import given, strategies as st

from celery_guard.core import faults
from celery_guard.core.faults import Category, Classification, cut, fault_of
from celery_guard.errors import NonRetryableError, RetryableError
from tests.factories import NOON

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup

classify = partial(faults.classify, now=NOON)


class Busy(Exception):
    """A user's own error."""


class VeryBusy(Busy):
    """A more special one."""


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class TextIsNoText(Exception):
    def __str__(self) -> str:
        return 7


class NoTextAtAnyPrice(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class NoRepr(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no repr for you")


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


HOSTILE = [
    NoText(),
    TextIsNoText(),
    NoTextAtAnyPrice(),
    NoRepr(NoRepr()),
    Endless(),
    ValueError("x" * 5_000_000),
    ValueError("\x00\ud800"),
    ValueError(b"\xff\x00"),
    KeyError(),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
]


def caught(error: BaseException) -> BaseException:
    """Give an error the traceback it has in a body."""
    try:
        raise error
    except BaseException as raised:
        return raised


def deep(levels: int) -> None:
    if levels:
        deep(levels - 1)
    else:
        the_line_that_failed()


def the_line_that_failed() -> None:
    raise ValueError("deep down")


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (ConnectionError(), Category.RETRYABLE),
        (ConnectionResetError(), Category.RETRYABLE),
        (BrokenPipeError(), Category.RETRYABLE),
        (TimeoutError(), Category.RETRYABLE),
        (InterruptedError(), Category.RETRYABLE),
        (SystemExit(1), Category.RETRYABLE),
        (MemoryError(), Category.RETRYABLE),
        (ValueError(), Category.NON_RETRYABLE),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), Category.NON_RETRYABLE),
        (json.JSONDecodeError("bad", "", 0), Category.NON_RETRYABLE),
        (TypeError(), Category.NON_RETRYABLE),
        (KeyError(), Category.NON_RETRYABLE),
        (IndexError(), Category.NON_RETRYABLE),
        (AttributeError(), Category.NON_RETRYABLE),
        (ZeroDivisionError(), Category.NON_RETRYABLE),
        (AssertionError(), Category.NON_RETRYABLE),
        (NotImplementedError(), Category.NON_RETRYABLE),
        (PermissionError(), Category.NON_RETRYABLE),
        (Exception(), Category.UNKNOWN),
        (RuntimeError(), Category.UNKNOWN),
        (FileNotFoundError(), Category.UNKNOWN),
        (Busy(), Category.UNKNOWN),
        (KeyboardInterrupt(), Category.UNKNOWN),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_the_shipped_rules_know_what_python_raises(error, category):
    found = classify(error)

    assert found.category is category
    assert (found.rule == "unknown") == (category is Category.UNKNOWN)


def test_a_declared_class_counts_for_its_children_too():
    assert classify(VeryBusy(), retryable=(Busy,)) == Classification(Category.RETRYABLE, "task_retryable")
    assert classify(VeryBusy(), non_retryable=(Busy,)) == Classification(Category.NON_RETRYABLE, "task_non_retryable")


def test_a_declaration_outranks_the_shipped_rules():
    assert classify(ValueError(), retryable=(ValueError,)).category is Category.RETRYABLE
    assert classify(ConnectionError(), non_retryable=(OSError,)).category is Category.NON_RETRYABLE


def test_what_is_declared_both_ways_is_permanent():
    found = classify(VeryBusy(), retryable=(VeryBusy,), non_retryable=(Busy,))

    assert found.category is Category.NON_RETRYABLE


def test_the_body_itself_has_the_first_word():
    declared = {"retryable": (NonRetryableError,), "non_retryable": (RetryableError,)}

    assert classify(RetryableError("busy"), **declared).rule == "raised_retryable"
    assert classify(NonRetryableError("gone"), **declared).rule == "raised_non_retryable"


@pytest.mark.parametrize(
    ("asked", "wait"),
    [
        (None, None),
        (30, timedelta(seconds=30)),
        (1.5, timedelta(seconds=1.5)),
        (timedelta(minutes=2), timedelta(minutes=2)),
    ],
)
def test_a_retryable_error_says_how_long_to_wait(asked, wait):
    assert classify(RetryableError("busy", asked)).retry_after == wait


@pytest.mark.parametrize("asked", [float("inf"), float("nan"), 1e300, "soon", "30", object(), [], b"1"])
def test_a_wait_that_makes_no_sense_leaves_a_retryable_error_retryable(asked):
    found = classify(RetryableError("busy", asked))

    assert found.category is Category.RETRYABLE
    assert found.retry_after is None or found.retry_after > timedelta(0)


def test_a_fault_holds_the_words_of_its_error():
    error = caught(Busy("the printer is on fire"))

    fault = fault_of(error, classify(error, retryable=(Busy,)), limit=2_000)

    assert (fault.category, fault.rule) == (Category.RETRYABLE, "task_retryable")
    assert fault.summary == "Busy: the printer is on fire"
    assert "Busy: the printer is on fire" in fault.traceback
    assert "in caught" in fault.traceback


def test_an_error_without_words_is_summed_up_by_its_type():
    assert fault_of(Busy(), classify(Busy()), limit=100).summary == "Busy"


@pytest.mark.parametrize("error", HOSTILE, ids=lambda error: type(error).__name__)
def test_any_error_becomes_text_that_a_database_takes(error):
    error = caught(error)

    fault = fault_of(error, classify(error), limit=200)

    for text, limit in ((fault.error_type, 200), (fault.error, 200), (fault.traceback, 1_600)):
        assert len(text) <= limit
        assert "\x00" not in text
        text.encode("utf-8")


def test_an_error_whose_text_can_not_be_had_says_so():
    error = NoText()

    assert "NoText" in fault_of(error, classify(error), limit=200).error


def test_a_group_of_errors_is_one_fault():
    error = caught(ExceptionGroup("several", [ConnectionError(1), Busy(2)]))

    fault = fault_of(error, classify(error), limit=2_000)

    assert (fault.category, fault.error_type) == (Category.UNKNOWN, "ExceptionGroup")


def test_the_traceback_of_a_deep_stack_shows_where_it_failed():
    try:
        deep(60)
    except ValueError as error:
        fault = fault_of(error, classify(error), limit=2_000)

    assert "in the_line_that_failed" in fault.traceback


def test_a_cut_traceback_keeps_the_line_that_failed():
    try:
        deep(25)
    except ValueError as error:
        fault = fault_of(error, classify(error), limit=100)

    assert "deep down" in fault.traceback


@given(st.text(st.characters(), max_size=50), st.integers(1, 20))
def test_cut_text_is_never_longer_than_its_limit_and_always_valid(text, limit):
    clean = cut(text, limit)

    assert len(clean) <= limit
    assert "\x00" not in clean
    clean.encode("utf-8")


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=50))
def test_text_that_is_short_and_clean_is_left_alone(text):
    assert cut(text, 50) == text


def test_cut_text_shows_that_it_was_cut():
    assert cut("abcdef", 4) == "abc…"


@pytest.mark.parametrize("category", Category)
def test_a_category_is_stored_as_its_text(category):
    assert str(category) == f"{category}" == category.value
