"""Checks of what people will see."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from celery_guard.cli.preflight.finding import Finding, ok, warn
from celery_guard.observe.logs import logger

__all__ = ["events", "logs", "metrics"]


def metrics(app: Any, guard: Any) -> Iterator[Finding]:
    """Somebody must notice that dead or running grows."""
    if find_spec("prometheus_client") is None:
        yield warn(
            "prometheus_client is not installed, so nobody measures how dead and running grow",
            "pip install 'celery-guard[prometheus]', or watch the output of: guard stats --json",
        )
    else:
        yield ok("prometheus_client is installed; guard stats --json gives the same counts")


def logs(app: Any, guard: Any) -> Iterator[Finding]:
    """The logger says why each run ended."""
    if (
        logger.disabled
        or logger.getEffectiveLevel() > logging.WARNING
        or (not logger.propagate and not logger.handlers)
    ):
        yield warn(
            f"the logger {logger.name!r} is silent: nothing says why a run is dead or still running",
            "let its records of level WARNING and above through to a handler",
        )
    elif app.conf.worker_hijack_root_logger is False and not logger.hasHandlers():
        yield warn(
            "worker_hijack_root_logger is off and no handler is set up", "configure logging before the worker starts"
        )
    else:
        yield ok(f"the logger {logger.name!r} tells each retry and ending with its reason, rule and deadline")


def events(app: Any, guard: Any) -> Iterator[Finding]:
    """Flower lives on events."""
    if app.conf.worker_send_task_events:
        yield ok("workers send task events")
    else:
        yield warn("workers send no task events, so Flower shows none", "set worker_send_task_events = True, or use -E")
