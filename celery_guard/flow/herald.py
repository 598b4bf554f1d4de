"""In the worker's main process: Celery's events for what no child tells, so that Flower shows what the rows say."""

from __future__ import annotations

import os
import queue
from typing import Any

from celery.worker import state as worker_state

from celery_guard.core.states import State
from celery_guard.flow.guard import Guard
from celery_guard.flow.inhand import guarded_requests
from celery_guard.observe.events import TaskEvent, event_of
from celery_guard.observe.transitions import Transition
from celery_guard.store.records import TaskRun

__all__ = ["Herald"]


class Herald:
    """Sends events by the worker's own dispatcher and on its event loop, so under the worker's name.

    Args:
        guard: the app's guard.
        worker: Celery's worker; its consumer has the dispatcher.
    """

    def __init__(self, guard: Guard, worker: Any) -> None:
        self._guard = guard
        self._worker = worker
        self._pid = os.getpid()
        self._dropped: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def send(self, event: TaskEvent) -> None:
        """Send an event, from whichever thread; without a listener, or in a fork of the worker, do nothing."""
        task = self._guard.app.tasks.get(event.fields["name"])
        if self._is_heard() and getattr(task, "send_events", True):
            consumer = self._worker.consumer
            consumer.call_soon(consumer.event_dispatcher.send, event.name, **event.fields)

    def note_dropped(self, request: Any) -> None:
        """Remember a message that came to nothing: the row says what is to be seen of its run."""
        if self._is_heard():
            self._dropped.put(request)

    def tick(self) -> None:
        """Tell what the main process alone could not know; costs a statement for each message in doubt."""
        while not self._dropped.empty():
            self._correct(self._dropped.get())
        for request in guarded_requests() if self._is_heard() else ():
            if request.may_be_a_copy and request.time_start and not request.is_delivery:
                self._tell_started(request)

    def _is_heard(self) -> bool:
        dispatcher = getattr(getattr(self._worker, "consumer", None), "event_dispatcher", None)
        return self._pid == os.getpid() and dispatcher is not None and bool(dispatcher.enabled)

    def _tell_started(self, request: Any) -> None:
        state, token = self._guard.runs.holder(request.id)
        if state is State.RUNNING and token == request.token:
            self._worker.consumer.call_soon(_start, request)

    def _correct(self, request: Any) -> None:
        run = self._guard.runs.find(request.id)
        if run is None:
            return
        _, token = self._guard.runs.holder(request.id)
        if not run.is_terminal or run.state is State.CANCELLED or token == request.token:
            event = event_of(_last_move(run))
            if event is not None:
                self.send(event)


def _start(request: Any) -> None:
    if request in worker_state.active_requests:  # else it has ended meanwhile
        request.tell_started()


def _last_move(run: TaskRun) -> Transition:
    return Transition(
        run.id,
        run.type,
        run.state,
        run.attempt,
        run.max_attempts,
        run.deadline_at,
        made_by="worker",
        reason=run.terminal_reason,
        next_retry_at=run.next_retry_at,
    )
