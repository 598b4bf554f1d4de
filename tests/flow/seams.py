"""One app, its broker and a child of its worker, all in this process: each seam of a run's life without waiting."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from kombu import Connection, Queue
from kombu.exceptions import ChannelError
from kombu.message import Message

from celery_guard.flow.dispatch import Dispatcher
from celery_guard.flow.guard import Guard, guard_of
from celery_guard.store.records import TaskRun
from celery_guard.testing.clock import Clock
from celery_guard.testing.worker import Told, deliver


class Ticking(Clock):
    """The test's clock, which never shows the same moment twice: then rows have an order."""

    def __call__(self) -> datetime:
        self.advance(timedelta(milliseconds=1))
        return super().__call__()


class Shop:
    """A Celery app with its database of runs, its queue, and the parts of a worker that a test calls by hand."""

    def __init__(self, app: Celery, queue: str, clock: Clock) -> None:
        self.app = app
        self.queue = queue
        self.clock = clock
        guard_of(app).database.clock = clock

    @property
    def guard(self) -> Guard:
        return guard_of(self.app)

    def rows(self) -> list[TaskRun]:
        """Return every row, the first submitted first."""
        self.guard.runs.clock()  # the first use makes the tables
        return [self.run(run_id) for (run_id,) in self.sql("SELECT id FROM task_run ORDER BY created_at, id")]

    def run(self, run_id: str) -> TaskRun:
        """Return a row with its history."""
        found = self.guard.runs.find(run_id, history=True)
        assert found is not None, f"there is no row {run_id}"
        return found

    def one(self) -> TaskRun:
        """Return the only row."""
        (run,) = self.rows()
        return run

    def sql(self, text: str) -> list[Any]:
        """Run SQL on the database of runs, beside the guard."""
        with self.guard.database.connection() as connection:
            result = connection.exec_driver_sql(text)
            return [tuple(row) for row in result] if result.returns_rows else []

    def messages(self, queue: str | None = None) -> list[Message]:
        """Take all messages out of the queue."""
        found = []
        with Connection(self.app.conf.broker_url) as connection, connection.channel() as channel:
            box = Queue(queue or self.queue, channel=channel)
            try:
                box.queue_declare(passive=True)
            except (ChannelError, *connection.channel_errors):  # nobody has sent anything there
                return []
            while (message := box.get(no_ack=True, accept=self.app.conf.accept_content)) is not None:
                found.append(message)
        return found

    def message(self, queue: str | None = None) -> Message:
        """Take the only message out of the queue."""
        (message,) = self.messages(queue)
        return message

    def dispatch(self) -> int:
        """Publish what is due, as a worker's guard thread does."""
        return Dispatcher(self.guard).tick()

    def deliver(self, message: Message) -> Told:
        """Run one message as a worker's child does; say what Celery made of it."""
        return deliver(self.app, message)

    def work(self, limit: int = 30) -> list[Told]:
        """Deliver and dispatch until neither has anything to do; waits are left out by moving the clock."""
        told: list[Told] = []
        for _ in range(limit):
            messages = self.messages()
            told += [self.deliver(message) for message in messages]
            if not messages and not self.dispatch():
                waits = [run.next_retry_at for run in self.rows() if run.next_retry_at is not None]
                if not waits:
                    return told
                self.clock.move_to(min(waits))
        raise AssertionError(f"still busy after {limit} rounds: {self.rows()}")

    def close(self) -> None:
        """Close all connections."""
        self.guard.database.close()
        self.app.close()
