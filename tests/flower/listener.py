"""What Flower hears: the events of an app, and what Celery's own state machine makes of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from celery.events.state import State, Task


class Listener:
    """Hears all events of an app, in a thread."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._state = State()

    def __call__(self, event: dict[str, Any]) -> None:
        self._state.event(dict(event))
        self.events.append(event)

    def task(self, run_id: str) -> Task:
        """Return a task as Flower shows it."""
        task = self._state.tasks.get(run_id)
        assert task is not None, f"nothing was heard of {run_id}"
        return task

    def told(self, run_id: str) -> list[str]:
        """Return the events of a run, without their prefix, as they came."""
        return [event["type"].removeprefix("task-") for event in self.events if event.get("uuid") == run_id]

    def workers(self) -> set[str]:
        """Return what looks like a worker."""
        return set(self._state.workers)


@contextmanager
def listening(app: Celery) -> Iterator[Listener]:
    """Listen until the block ends."""
    listener, ready = Listener(), threading.Event()
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": listener})
        receiver.on_consume_ready = lambda *args, **kwargs: ready.set()
        thread = threading.Thread(target=receiver.capture, kwargs={"limit": None, "timeout": None}, daemon=True)
        thread.start()
        assert ready.wait(30), "the receiver of events is not ready"
        try:
            yield listener
        finally:
            receiver.should_stop = True
            thread.join(30)
