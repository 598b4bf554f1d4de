"""What would happen next, told by the code that decides about real errors."""

from __future__ import annotations

from datetime import timedelta

import pytest

from celery_guard.core.backoff import Backoff
from celery_guard.core.decide import Policy
from celery_guard.core.explain import explain
from celery_guard.core.faults import Category, Classification
from celery_guard.errors import RetryableError
from tests.factories import NOON, a_claim

POLICY = Policy(unknown_max_attempts=2, backoff=Backoff(base=2, cap=60, jitter="equal"))

LAST = a_claim(attempt=5, max_attempts=5)
NEARLY_OVER = a_claim(deadline_at=NOON + timedelta(seconds=1.5))
OVER_SOON = a_claim(deadline_at=NOON + timedelta(seconds=0.5))


def told(subject, claim=None, **options):
    return str(explain(subject, POLICY, claim or a_claim(), now=NOON, **options))


@pytest.mark.parametrize(
    ("subject", "claim", "sentence"),
    [
        (
            ConnectionError("refused"),
            a_claim(),
            "ConnectionError is retryable (rule python_connection): retry after 1 to 2 s, as attempt 2 of 5",
        ),
        (
            ConnectionError,
            a_claim(attempt=3),
            "ConnectionError is retryable (rule python_connection): retry after 4 to 8 s, as attempt 4 of 5",
        ),
        (
            "redis.exceptions.AuthenticationError",
            a_claim(),
            "redis.exceptions.AuthenticationError is non-retryable (rule permission): the run ends as"
            " failed_non_retryable",
        ),
        (
            "not.imported.anywhere.Busy",
            a_claim(unknown_faults=1),
            "not.imported.anywhere.Busy is unknown (rule unknown): the run ends as failed_due_max_attempts",
        ),
        (503, a_claim(), "HTTP 503 is retryable (rule http_status): retry after 1 to 2 s, as attempt 2 of 5"),
        ("404", a_claim(), "HTTP 404 is non-retryable (rule http_status): the run ends as failed_non_retryable"),
        (429, LAST, "HTTP 429 is retryable (rule http_status): the run ends as failed_due_max_attempts"),
        (429, OVER_SOON, "HTTP 429 is retryable (rule http_status): the run ends as failed_due_deadline"),
        ("KeyError", a_claim(), "KeyError is non-retryable (rule python_value): the run ends as failed_non_retryable"),
    ],
)
def test_one_sentence_tells_category_rule_and_what_happens_next(subject, claim, sentence):
    assert told(subject, claim) == sentence


def test_a_wait_that_the_error_asked_for_is_told_as_such():
    explanation = explain(RetryableError("busy", 90), POLICY, a_claim(), now=NOON)

    assert explanation.asked
    assert explanation.shortest >= timedelta(seconds=90)
    assert explanation.next.startswith("retry after 90 ")
    assert ", as the error asks, as attempt 2 of 5" in explanation.next


def test_a_retry_that_only_luck_lets_start_before_the_deadline_is_told_as_one():
    explanation = explain(503, POLICY, NEARLY_OVER, now=NOON)

    assert (explanation.outcome, explanation.shortest) == ("retrying", timedelta(seconds=1))


def test_the_task_may_classify_errors_its_own_way():
    broken = Classification(Category.UNKNOWN, "classifier_error", trouble="the classifier judge raised KeyError: 'x'")

    sentence = told(ValueError(), ask=lambda error: broken)

    assert sentence.startswith("ValueError is unknown (rule classifier_error): retry after")
    assert sentence.endswith("(the classifier judge raised KeyError: 'x')")


@pytest.mark.parametrize("subject", ["no name", "", "shop.", 99, 600, "1234", True, None, object(), 5.03, int])
def test_what_is_no_error_is_refused(subject):
    with pytest.raises(ValueError, match=r"is needed|HTTP status"):
        told(subject)


@pytest.mark.parametrize("name", ["UnicodeDecodeError", "OSError", "httpx.HTTPStatusError", "grpc.RpcError", "a.b.C"])
def test_a_class_stands_for_itself_whatever_its_constructor_wants(name):
    assert told(name).startswith(f"{name} is ")
