"""In the caller: a run that waits has no message yet, so nobody else tells Flower of it."""

from __future__ import annotations

from typing import Any

from celery_guard.flow.beside import beside
from celery_guard.observe.events import TaskEvent
from celery_guard.observe.logs import logger

__all__ = ["tell_that_it_waits"]


def tell_that_it_waits(app: Any, event: TaskEvent) -> None:
    """Send ``task-sent`` where the configuration asks for it; the caller does not wait, and may lose it."""
    if app.conf.task_send_sent_event:
        beside(lambda: _send(app, event))


def _send(app: Any, event: TaskEvent) -> None:
    try:
        with app.producer_pool.acquire(block=True, timeout=5) as producer:
            dispatcher = app.events.Dispatcher(producer.connection, enabled=False, buffer_while_offline=False)
            dispatcher.publish(event.name, event.fields, producer)
    except Exception as error:  # whatever the transport raises, the run is accepted
        logger.debug("%s[%s] task-sent was not sent: %r", event.fields["name"], event.fields["uuid"], error)
