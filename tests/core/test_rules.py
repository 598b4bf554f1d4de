"""What the standard library and validation raise, causes, groups, and errors that fight back."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import marshmallow
import pydantic
import pytest
from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded
from celery.exceptions import TimeoutError as ResultTimeout
from hypothesis import given, strategies as st

from celery_guard import errors
from celery_guard.core.faults import Category, Configured, Fault, classify, fault_of
from celery_guard.core.rules import SHIPPED
from celery_guard.core.rules.retry_after import parse_retry_after
from tests.factories import NOON
from tests.rules.verdicts import NO, UNKNOWN, YES, Verdict, raised_by, verdict, verdict_on

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup, ExceptionGroup


class Surprise(Exception):
    """What no rule knows."""


def body(order_id: int, *, urgent: bool = False) -> None:
    """A task's body."""


class Order(pydantic.BaseModel):
    id: int


class OrderSchema(marshmallow.Schema):
    id = marshmallow.fields.Integer(required=True)


ERRORS = [
    (ConnectionError(), YES, "python_connection"),
    (ConnectionRefusedError(errno.ECONNREFUSED, "x"), YES, "python_connection"),
    (ConnectionResetError(), YES, "python_connection"),
    (BrokenPipeError(), YES, "python_connection"),
    (TimeoutError(), YES, "python_connection"),
    (TimeoutError("timed out"), YES, "python_connection"),
    (asyncio.TimeoutError(), YES, "python_connection"),
    (asyncio.IncompleteReadError(b"", 5), YES, "python_connection"),
    (concurrent.futures.TimeoutError(), YES, "python_connection"),
    (subprocess.TimeoutExpired("sleep", 1), YES, "python_connection"),
    (InterruptedError(), YES, "python_connection"),
    (BlockingIOError(), YES, "python_connection"),
    (socket.gaierror(socket.EAI_AGAIN, "x"), YES, "dns"),
    (OSError(errno.EHOSTUNREACH, "x"), YES, "os_errno"),
    (OSError(errno.ENETUNREACH, "x"), YES, "os_errno"),
    (OSError(errno.ENOSPC, "x"), YES, "os_errno"),
    (OSError(errno.EMFILE, "x"), YES, "os_errno"),
    (OSError(errno.EBUSY, "x"), YES, "os_errno"),
    (OSError(errno.EIO, "x"), YES, "os_errno"),
    (OSError(errno.EISDIR, "x"), NO, "os_errno"),
    (OSError(errno.EEXIST, "x"), NO, "os_errno"),
    (OSError(errno.ENAMETOOLONG, "x"), NO, "os_errno"),
    (OSError(errno.EROFS, "x"), NO, "os_errno"),
    (OSError(errno.EINVAL, "x"), NO, "os_errno"),
    (OSError(errno.ENOENT, "x"), UNKNOWN, "unknown"),
    (OSError("no number"), UNKNOWN, "unknown"),
    (OSError(123_456, "no such number"), UNKNOWN, "unknown"),
    (PermissionError(), NO, "permission"),
    (PermissionError(errno.EACCES, "x"), NO, "permission"),
    (OSError(errno.EPERM, "x"), NO, "permission"),
    (MemoryError(), YES, "memory"),
    (SystemExit(1), YES, "system_exit"),
    (SoftTimeLimitExceeded(), YES, "soft_time_limit"),
    (TimeLimitExceeded(5), YES, "time_limit"),
    (ResultTimeout(), YES, "result_timeout"),
    (ValueError(), NO, "python_value"),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), NO, "python_value"),
    (TypeError(), NO, "python_value"),
    (KeyError(), NO, "python_value"),
    (IndexError(), NO, "python_value"),
    (AttributeError(), NO, "python_value"),
    (ZeroDivisionError(), NO, "python_value"),
    (OverflowError(), NO, "python_value"),
    (AssertionError(), NO, "python_value"),
    (NotImplementedError(), NO, "python_value"),
    (NameError(), NO, "python_value"),
    (SyntaxError(), NO, "python_value"),
    (RuntimeError(), UNKNOWN, "unknown"),
    (EOFError(), UNKNOWN, "unknown"),
    (KeyboardInterrupt(), UNKNOWN, "unknown"),
    (asyncio.CancelledError(), UNKNOWN, "unknown"),
    (Surprise(), UNKNOWN, "unknown"),
    (errors.StoreUnavailable(), YES, "guard_store"),
    (errors.IdempotencyConflict(), NO, "guard_refusal"),
    (errors.RunNotFound(), NO, "guard_refusal"),
    (errors.DeadlineExceeded("failed_due_deadline"), UNKNOWN, "unknown"),
    (errors.RetryableError("x", 3), YES, "raised_retryable"),
    (errors.NonRetryableError("x"), NO, "raised_non_retryable"),
]


@pytest.mark.parametrize(("error", "category", "rule"), ERRORS, ids=lambda value: type(value).__name__)
def test_what_python_and_the_worker_raise(error, category, rule):
    found = verdict_on(error)

    assert (found.category, found.rule) == (category, rule)


@pytest.mark.parametrize(
    ("act", "rule"),
    [
        (lambda: body(), "call_arguments"),
        (lambda: body(1, 2), "call_arguments"),
        (lambda: body(1, order_id=1), "call_arguments"),
        (lambda: body(1, late=True), "call_arguments"),
        (lambda: Surprise().with_traceback(), "call_arguments"),
        (lambda: "1" + 1, "python_value"),
        (lambda: len(5), "python_value"),
        (lambda: Order(id="x"), "validation"),
        (lambda: Order.model_validate_json("{"), "validation"),
        (lambda: OrderSchema().load({"id": "x"}), "validation"),
        (lambda: os.listdir(__file__), "os_errno"),
        (lambda: int("x"), "python_value"),
        (lambda: b"\xff".decode(), "python_value"),
        (lambda: [][1], "python_value"),
    ],
)
def test_input_that_is_wrong_stays_wrong(act, rule):
    assert verdict(act) == Verdict(NO, rule)


def test_rule_names_are_short_and_there_is_one_rule_of_each_name():
    names = [rule.name for rule in SHIPPED]

    assert len(set(names)) == len(names)
    assert all(name.isidentifier() and len(name) <= 30 for name in names)


# Causes


def chained(*links: BaseException, explicitly: bool = True) -> BaseException:
    """The first error, caused by the second, and so on."""
    for outer, inner in itertools.pairwise(links):
        if explicitly:
            outer.__cause__ = inner
        else:
            outer.__context__ = inner
    return links[0]


@pytest.mark.parametrize("explicitly", [True, False])
def test_an_unknown_error_means_what_its_cause_means(explicitly):
    error = chained(Surprise(), Surprise(), ConnectionError(), ValueError(), explicitly=explicitly)

    assert verdict_on(error) == Verdict(YES, "python_connection")


def test_a_context_that_was_suppressed_says_nothing():
    def act() -> None:
        try:
            raise ConnectionError
        except ConnectionError:
            raise Surprise from None

    assert verdict(act) == Verdict(UNKNOWN, "unknown")


def test_a_known_error_is_not_asked_for_its_cause():
    assert verdict_on(chained(ValueError(), ConnectionError())).category is NO


def test_a_cause_outranks_a_context():
    error = Surprise()
    error.__context__, error.__cause__ = ValueError(), ConnectionError()

    assert verdict_on(error).category is YES


def test_causes_in_a_circle_end():
    one, other = Surprise(1), Surprise(2)
    one.__cause__, other.__cause__ = other, one

    assert verdict_on(one) == Verdict(UNKNOWN, "unknown")


def test_a_thousand_causes_are_no_harm():
    error = chained(*(Surprise(number) for number in range(1_000)), ConnectionError())

    assert verdict_on(error) == Verdict(UNKNOWN, "unknown")
    assert fault_of(error, classify(error, now=NOON), limit=200).error == "0"


# Groups


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([ConnectionError(), TimeoutError()], (YES, "python_connection")),
        ([ConnectionError(), Surprise(), TimeoutError()], (UNKNOWN, "unknown")),
        ([ConnectionError(), Surprise(), ValueError()], (NO, "python_value")),
        ([ConnectionError(), ExceptionGroup("inner", [MemoryError(), ValueError()])], (NO, "python_value")),
        ([ExceptionGroup("inner", [MemoryError(), TimeoutError()])], (YES, "memory")),
        ([errors.RetryableError("x", 3), errors.RetryableError("x", 9)], (YES, "raised_retryable", timedelta(0, 9))),
        ([chained(Surprise(), ConnectionError())], (YES, "python_connection")),
    ],
)
def test_a_group_is_as_bad_as_its_worst_member(members, expected):
    assert verdict_on(ExceptionGroup("several", members)) == Verdict(*expected)


def test_a_group_behind_an_unknown_error_counts():
    error = chained(Surprise(), BaseExceptionGroup("several", [SystemExit(1), TimeoutError()]))

    assert verdict_on(error) == Verdict(YES, "system_exit")


def test_a_group_that_the_task_declared_is_not_opened():
    group = ExceptionGroup("several", [ValueError()])

    assert classify(group, now=NOON, retryable=(ExceptionGroup,)).rule == "task_retryable"


def test_groups_in_groups_without_end_are_unknown():
    error: Exception = ConnectionError()
    for _ in range(200):
        error = ExceptionGroup("one", [error])

    assert verdict_on(error) == Verdict(UNKNOWN, "unknown")


def test_a_group_that_is_too_large_to_be_asked_about_is_unknown():
    assert verdict_on(ExceptionGroup("many", [TimeoutError()] * 100_000)) == Verdict(UNKNOWN, "unknown")


# Order: the body, the task, the configuration, the shipped rules


def known(error: BaseException, **declared: Any) -> tuple[Category, str]:
    found = classify(error, now=NOON, **declared)
    return found.category, found.rule


def says(category: Any) -> Callable[[BaseException], Any]:
    return lambda error: category


SHOP = Configured(
    retryable=("shop.errors.Busy", "ValueError"), non_retryable=("TimeoutError",), classifiers=(says("unknown"),)
)


def test_the_task_is_asked_before_the_configuration_and_the_configuration_before_the_shipped_rules():
    assert known(ValueError(), configured=SHOP) == (YES, "configured_retryable")
    assert known(TimeoutError(), configured=SHOP) == (NO, "configured_non_retryable")
    assert known(KeyError(), configured=SHOP) == (UNKNOWN, "configured_classifier")
    assert known(ValueError(), configured=SHOP, non_retryable=(ValueError,)) == (NO, "task_non_retryable")
    assert known(ValueError(), configured=SHOP, classifier=says("unknown")) == (UNKNOWN, "task_classifier")
    assert known(ValueError(), retryable=(ValueError,), classifier=says("unknown")) == (YES, "task_retryable")
    assert known(errors.NonRetryableError(), retryable=(Exception,)) == (NO, "raised_non_retryable")


def test_a_class_is_known_by_its_dotted_name_and_so_are_its_children():
    busy = type("Busy", (Exception,), {"__module__": "shop.errors"})
    very_busy = type("VeryBusy", (busy,), {"__module__": "shop.more"})

    assert known(very_busy(), configured=SHOP) == (YES, "configured_retryable")


@pytest.mark.parametrize(
    "name", ["pydantic.ValidationError", "pydantic_core.ValidationError", "ValueError", "builtins.ValueError"]
)
def test_any_imported_module_may_offer_the_class(name):
    error = raised_by(lambda: Order(id="x"))

    assert known(error, configured=Configured(retryable=(name,))) == (YES, "configured_retryable")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("retryable", (YES, "task_classifier")),
        (Category.NON_RETRYABLE, (NO, "task_classifier")),
        (classify(errors.RetryableError("x", 7), now=NOON), (YES, "raised_retryable")),
        (Fault(NO, "shop_rule", "x", "x"), (NO, "shop_rule")),
        (None, (NO, "python_value")),
    ],
)
def test_a_classifier_gives_a_category_or_a_fault_or_passes(said, expected):
    assert known(ValueError(), classifier=says(said)) == expected


@pytest.mark.parametrize("said", ["soon", 7, True, YES.name, object()])
def test_a_classifier_that_says_nonsense_leaves_the_error_unknown(said):
    found = classify(ValueError(), now=NOON, classifier=says(said))

    assert (found.category, found.rule) == (UNKNOWN, "classifier_error")
    assert "must return a category" in str(found.trouble)


@pytest.mark.parametrize("broken", [KeyError("x"), SystemExit(1), RecursionError()])
def test_a_classifier_that_raises_leaves_the_error_unknown_and_says_why(broken):
    def judge(error: BaseException) -> None:
        raise broken

    found = classify(ValueError(), now=NOON, classifier=judge)

    assert (found.category, found.rule) == (UNKNOWN, "classifier_error")
    assert "judge" in str(found.trouble)
    assert type(broken).__name__ in str(found.trouble)


# Retry-After


class Response:
    def __init__(self, status: Any, **headers: Any) -> None:
        self.status_code = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Answered(Exception):
    def __init__(self, response: Any) -> None:
        self.response = response


def test_what_a_server_asks_for_counts_for_a_declared_class_too():
    error = Answered(Response(404, Retry_After="7"))

    assert classify(error, now=NOON, retryable=(Answered,)).retry_after == timedelta(seconds=7)
    assert classify(error, now=NOON).retry_after is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7),
        (" 7 ", 7),
        (7, 7),
        ("0", None),
        ("", None),
        (None, None),
        (True, None),
        (b"7", None),
        ("1e9", None),
        ("9" * 30, None),
        ("9" * 5_000_000, None),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30),
        ("Thu, 01 Jan 2026 14:00:30 +0200", 30),
        ("Thu, 01 Jan 2026 12:00:30 -0000", 30),
        ("Thursday, 01-Jan-26 12:00:30 GMT", 30),
        ("Thu, 01 Jan 2026 11:59:59 GMT", None),
        ("Thu, 99 Jan 2026 12:00:30 GMT", None),
        ("\x00\ud800", None),
    ],
)
def test_a_header_asks_in_seconds_or_by_a_date(value, seconds):
    assert parse_retry_after(value, NOON) == (None if seconds is None else timedelta(seconds=seconds))


@given(st.text(max_size=70) | st.integers() | st.none())
def test_no_header_breaks_anything(value):
    found = parse_retry_after(value, datetime(2026, 1, 1, tzinfo=timezone.utc))

    assert found is None or found > timedelta(0)
