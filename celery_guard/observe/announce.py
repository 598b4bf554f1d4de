"""Tells everybody who watches what happened to a run: after the commit, and without harm to it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from celery_guard import signals
from celery_guard.core.states import State
from celery_guard.observe.events import TaskEvent, event_of
from celery_guard.observe.logs import log_transition, logger
from celery_guard.observe.transitions import Transition

__all__ = ["announce"]


def announce(
    transition: Transition, app: Any, *, log_meta: Collection[str], send_event: Callable[[TaskEvent], None]
) -> None:
    """Tell each watcher; what one of them raises is logged, and keeps neither the run nor the others.

    Args:
        transition: a move that was won, and is committed.
        app: the Celery app.
        log_meta: the entries of ``meta`` that may be logged.
        send_event: sends Celery's event for it, where Celery does not do so itself.
    """
    watchers: tuple[Callable[[], None], ...] = (
        lambda: log_transition(transition, log_meta),
        lambda: _send_signal(transition, app),
        lambda: _send_event(transition, send_event),
    )
    for tell in watchers:
        try:
            tell()
        except Exception:  # handlers and receivers are users' code; it may be the logging that is broken
            with suppress(Exception):
                logger.exception("%s[%s] a watcher failed", transition.type, transition.run_id)


def _send_event(transition: Transition, send_event: Callable[[TaskEvent], None]) -> None:
    event = event_of(transition)
    if event is not None:
        send_event(event)


def _send_signal(transition: Transition, app: Any) -> None:
    if transition.is_terminal:
        signal = signals.run_finished
    elif transition.state is State.RETRYING:
        signal = signals.run_retrying
    elif transition.state is State.RUNNING:
        signal = signals.run_started
    else:
        return
    if signal.receivers:
        signal.send(sender=app.tasks.get(transition.type), run=transition)
