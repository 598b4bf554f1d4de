"""``self.replace(…)`` on a guarded task: the row is handed over, under the fence, to what takes the task's place."""

from __future__ import annotations

from typing import Any

from celery import chord
from celery.canvas import Signature, _chain

from celery_guard.core.decide import Finish
from celery_guard.core.states import Reason, State
from celery_guard.errors import RunCancelled
from celery_guard.flow.context import running_here
from celery_guard.flow.guard import guard_of
from celery_guard.observe.transitions import Transition

__all__ = ["hand_over_row"]


def hand_over_row(task: Any, replacement: Signature) -> None:
    """Give up the row for the task that will come under its id: the last one of the replacement.

    A guarded one finds the row vacant and moves in when it is submitted. One that is not guarded tells Celery its own
    ending, so the row ends here as succeeded.

    Raises:
        RunCancelled: the run is no longer this attempt's.
    """
    run = running_here()
    if run is None or run.held is None:
        return
    last = _last(replacement)
    successor = task.app.tasks.get(last.task) if last is not None else None
    is_guarded = "_guard_bound" in type(successor).__dict__
    if not run.held.vacate(for_a_successor=is_guarded):
        raise RunCancelled("cancelled", f"the run {run.id} is no longer this attempt's, and can't be replaced")
    if not is_guarded:
        success = Finish(State.SUCCEEDED, Reason.SUCCEEDED)
        ended = Transition.settled(run.type, run.held.claim, success, run.meta, made_by="child")
        guard_of(task.app).announce(ended)


def _last(signature: Any) -> Any:
    """Return the signature whose result is the whole one's."""
    if isinstance(signature, _chain):
        return _last(signature.tasks[-1]) if signature.tasks else None
    if isinstance(signature, chord):
        return _last(signature.body)
    return signature
