"""The shops of the flow tests, and what was told of their runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_guard import Transition, signals
from tests.flow.conftest import (  # noqa: F401
    _apps_of_their_own,
    any_shop,
    clock,
    one_database,
    open_shop,
    postgres_url,
    shop,
)


@pytest.fixture
def heard() -> Iterator[list[Transition]]:
    """What the signals sent, in order."""
    told: list[Transition] = []

    def listen(sender: Any, run: Transition, **_: Any) -> None:
        told.append(run)

    every = (signals.run_started, signals.run_retrying, signals.run_finished)
    for signal in every:
        signal.connect(listen)
    yield told
    for signal in every:
        signal.disconnect(listen)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[Any]]:
    """Return the records of transitions logged so far, in order."""
    caplog.set_level(logging.INFO, logger="celery_guard")
    return lambda: [record for record in caplog.records if hasattr(record, "task_id")]
