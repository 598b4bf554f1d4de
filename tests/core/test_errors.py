"""What users raise and catch travels between processes and keeps its facts."""

from __future__ import annotations

import pickle
from datetime import timedelta

import pytest
from kombu.serialization import dumps, loads

from celery_guard import errors
from celery_guard.errors import GuardError, NonRetryableError, RetryableError, RunEnded, Snooze

ALL = [getattr(errors, name) for name in errors.__all__]
ENDINGS = [kind for kind in ALL if issubclass(kind, RunEnded)]
PLAIN = [kind for kind in ALL if kind not in (*ENDINGS, RetryableError)]

EXAMPLES = [
    *(kind("what happened") for kind in PLAIN),
    *(kind("failed_due_deadline", "ConnectionError: refused") for kind in ENDINGS),
    *(kind() for kind in ALL if kind is not Snooze),
    Snooze(5),
    Snooze(timedelta(minutes=1)),
    RetryableError("busy", 30),
    RetryableError("busy", timedelta(minutes=1)),
]


def name(error: BaseException) -> str:
    return f"{type(error).__name__}{len(error.args)}"


@pytest.mark.parametrize("error", EXAMPLES, ids=name)
def test_an_error_survives_pickle_with_all_its_facts(error):
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert (copy.args, vars(copy), str(copy)) == (error.args, vars(error), str(error))


@pytest.mark.parametrize(
    "error", [error for error in EXAMPLES if not isinstance(error, (RetryableError, Snooze))], ids=name
)
def test_an_error_is_rebuilt_from_its_arguments_as_result_backends_do(error):
    content_type, encoding, body = dumps(list(error.args), serializer="json")

    copy = type(error)(*loads(body, content_type, encoding))

    assert str(copy) == str(error)


@pytest.mark.parametrize("kind", ALL)
def test_what_the_guard_raises_is_a_guard_error_and_what_a_body_raises_is_not(kind):
    assert issubclass(kind, GuardError) == (kind not in (RetryableError, NonRetryableError, Snooze))


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.InvalidOption, ValueError),
        (errors.UnserializableArgument, TypeError),
        (errors.RunNotFound, LookupError),
    ],
)
def test_an_error_about_input_is_also_the_builtin_that_fits(kind, builtin):
    assert issubclass(kind, builtin)


@pytest.mark.parametrize("kind", ENDINGS)
def test_an_ending_names_its_reason_first(kind):
    error = kind("failed_due_deadline", "ConnectionError: refused")

    assert (error.reason, error.message) == ("failed_due_deadline", "ConnectionError: refused")
    assert str(error) == "failed_due_deadline: ConnectionError: refused"
    assert str(kind("cancelled")) == "cancelled"


def test_a_retryable_error_reads_as_its_message_alone():
    error = RetryableError("busy", retry_after=30)

    assert str(error) == "busy"
    assert error.retry_after == 30


@pytest.mark.parametrize("kind", ALL)
def test_every_public_error_is_drawn_in_the_tree_and_says_what_it_means(kind):
    assert kind.__name__ in errors.__doc__
    assert kind.__doc__
