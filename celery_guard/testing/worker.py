"""A worker in this process, which works when it is told to."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

from celery import states
from celery.app.trace import trace_task
from celery.utils.imports import symbol_by_name
from kombu.entity import Queue
from kombu.message import Message

from celery_guard.flow.dispatch import Dispatcher
from celery_guard.flow.guard import Guard
from celery_guard.flow.rescue import Rescuer
from celery_guard.flow.sweep import Sweeper
from celery_guard.testing.crash import Crashes, MortalRuns, WorkerDied

__all__ = ["InlineWorker", "Told", "deliver"]


@dataclass(frozen=True)
class Told:
    """What Celery's tracer made of one message."""

    state: str
    value: Any


def deliver(app: Any, message: Message) -> Told:
    """Run one message as a worker's child does; say what Celery made of it."""
    task = app.tasks[message.headers["task"]]
    request = symbol_by_name(task.Request)(message, app=app, task=task, hostname="child@test")
    context = {**request.request_dict, **message.payload[2], "is_eager": False}
    value, info, _, _ = trace_task(task, request.id, request.args, request.kwargs, context, app=app)
    return Told(states.SUCCESS, value) if info is None else Told(info.state, info.retval)


class InlineWorker:
    """What the workers of an app do, one step at a time. One of them may die; then the next one takes over."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.crashes = Crashes()
        guard.runs = MortalRuns(guard.runs, self.crashes)
        self._dispatcher, self._sweeper, self._rescuer = Dispatcher(guard), Sweeper(guard), Rescuer(guard)
        self._connection = guard.app.connection_for_read()
        self._channel = self._connection.channel()
        self._received: list[Message] = []
        #: The workers that died, and when the others will know.
        self.dead: dict[str, datetime] = {}
        self._boot()

    def step(self, only: Collection[str] | None = None) -> bool:
        """Do the next thing that can be done now. Return whether there was any.

        Args:
            only: run no messages but those of these runs.
        """
        message = self._next_message(only)
        if message is not None:
            self._work_on(message)
            return True
        return bool(self._dispatcher.tick() or self._look_after())

    def close(self) -> None:
        """Close the connection to the broker; what was received and not run is dropped with it."""
        self._connection.close()

    def _boot(self) -> None:
        self.guard.worker_id = uuid4().hex
        self.guard.workers.beat(self.guard.worker_id, host=socket.gethostname(), pid=os.getpid(), reserved=[])

    def _next_message(self, only: Collection[str] | None) -> Message | None:
        self._receive()
        wanted = (message for message in self._received if only is None or message.headers.get("id") in only)
        message = next(wanted, None)
        if message is not None:
            self._received.remove(message)
        return message

    def _receive(self) -> None:
        for name in list(self._channel.queues):
            queue = Queue(name, channel=self._channel)
            while (message := queue.get(accept=self.guard.app.conf.accept_content)) is not None:
                self._received.append(message)

    def _work_on(self, message: Message) -> None:
        name = message.headers["task"]
        if name not in self.guard.app.tasks:
            raise LookupError(f"a message is for the task {name!r}, which no module imported so far defines")
        self.crashes.at_work = True
        try:
            told = deliver(self.guard.app, message)
        except WorkerDied:
            message.requeue()  # as a broker does with what a lost connection has not acknowledged
            self._die()
        else:
            if told.state == states.REJECTED:
                message.requeue()
                raise told.value.reason
            message.ack()
        finally:
            self.crashes.at_work = False

    def _die(self) -> None:
        assert self.guard.worker_id is not None
        self.dead[self.guard.worker_id] = self.guard.runs.clock() + self.guard.settings.rescue_after
        self._boot()

    def _look_after(self) -> int:
        """Do what workers do for all runs: end what is late, rescue what died, let the followers of a key follow."""
        return self._rescue() + self._sweeper.waiting() + self._sweeper.running() + self._sweeper.followers()

    def _rescue(self) -> int:
        now = self.guard.runs.clock()
        known = [worker_id for worker_id, at in self.dead.items() if at <= now]
        for beat in self.guard.workers.alive():
            if beat.worker_id in known:
                self._rescuer.bury(beat)
                del self.dead[beat.worker_id]
        return len(known)
