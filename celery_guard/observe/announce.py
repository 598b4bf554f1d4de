"""Tells everybody who watches what happened to a run: after the commit, and without harm to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from celery_guard import signals
from celery_guard.core.states import TERMINAL, State
from celery_guard.observe.events import TaskEvent, event_of
from celery_guard.observe.logs import LEVELS, log_transition, logger
from celery_guard.observe.transitions import Transition

__all__ = ["announce"]

_SIGNALS: Mapping[State, Any] = {
    State.RUNNING: signals.run_started,
    State.RETRYING: signals.run_retrying,
    **dict.fromkeys(TERMINAL, signals.run_finished),
}


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
    if logger.isEnabledFor(LEVELS[transition.state]):
        _tell(transition, lambda: log_transition(transition, log_meta))
    signal = _SIGNALS.get(transition.state)
    if signal is not None and signal.receivers:
        _tell(transition, lambda: signal.send(sender=app.tasks.get(transition.type), run=transition))
    event = event_of(transition)
    if event is not None:
        _tell(transition, lambda: send_event(event))


def _tell(transition: Transition, tell: Callable[[], Any]) -> None:
    try:
        tell()
    except Exception:  # handlers and receivers are users' code; it may be the logging that is broken
        with suppress(Exception):
            logger.exception("%s[%s] a watcher failed", transition.type, transition.run_id)
