"""What the configuration says about errors, and ``explain()`` for a task."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_guard import GuardedTask, InvalidOption, explain
from celery_guard.core.faults import Category, classify
from celery_guard.settings import Settings
from tests.factories import NOON

URL = "sqlite:////tmp/nobody-opens-this.db"


class Busy(Exception):
    """A user's own error."""


def judge(error: BaseException) -> str | None:
    """A user's own classifier."""
    return "retryable" if isinstance(error, Busy) else None


def read(**given: Any) -> Settings:
    return Settings.read(given, default_url=URL, default_namespace="shop")


def an_app(**config: Any) -> Celery:
    app = Celery("shop", broker="memory://", task_cls=GuardedTask, set_as_current=False)
    app.conf.update({"guard_database_url": URL, **config})
    return app


@pytest.mark.parametrize("key", ["guard_retryable_errors", "guard_non_retryable_errors"])
@pytest.mark.parametrize("names", [(), ("shop.errors.Busy",), ["TimeoutError"], {"a.b.C", "ValueError"}])
def test_classes_are_named_by_dotted_names_or_as_built_ins(key, names):
    settings = read(**{key: names})

    assert set(getattr(settings, key.removeprefix("guard_"))) == set(names)


@pytest.mark.parametrize("key", ["guard_retryable_errors", "guard_non_retryable_errors"])
@pytest.mark.parametrize(
    "names", ["shop.errors.Busy", ("Busy",), ("shop.errors.",), ("shop errors",), (ValueError,), ("print",), 7, None]
)
def test_other_ways_to_name_classes_are_refused(key, names):
    with pytest.raises(InvalidOption, match=f"{key} must be a tuple of dotted class names, not"):
        read(**{key: names})


def test_the_refusal_tells_which_name_is_wrong():
    with pytest.raises(
        InvalidOption, match=r"'Busy' is neither a dotted name such as 'shop\.errors\.Busy' nor a built-in"
    ):
        read(guard_retryable_errors=("shop.errors.Slow", "Busy"))


@pytest.mark.parametrize("classifiers", [judge, "shop.judge", ("judge",), (7,), (None,), {"a.b": 1}])
def test_other_things_than_classifiers_are_refused(classifiers):
    with pytest.raises(InvalidOption, match="guard_classifiers must be a tuple of callables or of their dotted names"):
        read(guard_classifiers=classifiers)


@pytest.mark.parametrize("classifier", [judge, f"{__name__}.judge"])
def test_a_classifier_is_given_itself_or_by_name(classifier):
    configured = read(guard_classifiers=(classifier,)).configured

    assert classify(Busy(), now=NOON, configured=configured).category is Category.RETRYABLE


@pytest.mark.parametrize("name", ["no.such.module", f"{__name__}.no_such_name", f"{__name__}.URL"])
def test_a_classifier_that_can_not_be_imported_breaks_no_run(name):
    configured = read(guard_classifiers=(name,)).configured

    found = classify(Busy(), now=NOON, configured=configured)

    assert (found.category, found.rule) == (Category.UNKNOWN, "classifier_error")
    assert name in str(found.trouble)


def test_explain_reads_what_the_task_and_the_configuration_say():
    app = an_app(guard_retryable_errors=("KeyError",), guard_backoff_jitter="none")

    @app.task(max_attempts=3, non_retryable=(ConnectionError,))
    def send() -> None:
        """A body."""

    assert str(explain(KeyError("x"), send)) == (
        "KeyError is retryable (rule configured_retryable): retry after 1 s, as attempt 2 of 3"
    )
    assert explain(ConnectionError, send).outcome == "failed_non_retryable"
    assert explain(503, send, attempt=3).outcome == "failed_due_max_attempts"
    assert explain(503, send, remaining=timedelta(seconds=0.5)).outcome == "failed_due_deadline"
