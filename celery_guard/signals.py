"""Signals for users' hooks, connected like Celery's own: each is sent once for a move that was won, after its commit.

A receiver is called as ``receiver(sender=task, run=transition, **kwargs)`` in the process that made the move:
``sender`` is the task, or None where that process does not know it; ``run`` is a :class:`~celery_guard.Transition`.
What a receiver raises is logged, and changes nothing.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

__all__ = ["run_finished", "run_retrying", "run_started"]

#: A claim is won, and the body is about to run.
run_started = Signal(name="run_started", providing_args={"run"})

#: The run waits for another attempt: after a fault, or put off.
run_retrying = Signal(name="run_retrying", providing_args={"run"})

#: The run is in a terminal state, whoever ended it.
run_finished = Signal(name="run_finished", providing_args={"run"})
