"""The bodies of the chaos run. Each is the same under guard and in plain Celery; a file says what they did."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from celery import Celery, Task
from celery.exceptions import SoftTimeLimitExceeded

from celery_guard import GuardedTask
from tests.chaos.settings import FOLDER, IN_WORKER, PLAIN, configuration

IS_PLAIN = PLAIN in os.environ


class Busy(Exception):
    """A repeat helps."""


class Refused(Exception):
    """No repeat helps."""


class App(Celery):
    def task(self, *args, **options):
        return super().task(*args, **{"shared": False, **options})


app = App("chaos", task_cls=Task if IS_PLAIN else GuardedTask)
app.conf.update(configuration())

if IN_WORKER in os.environ and not IS_PLAIN:  # what a production worker takes half a minute for, it does in seconds
    from celery_guard.flow import attempt, deliver, held, publish

    publish.LEASE = (3.0, 6.0)
    attempt.TELLING_LEASE = deliver.TELLING_LEASE = held.TELLING_LEASE = 8.0

#: What a body may need, in each of the two worlds.
ROBUST = {"max_retries": 30, "autoretry_for": (Busy,), "retry_backoff": False, "default_retry_delay": 1}
OURS = {"retryable": (Busy,), "non_retryable": (Refused,)}
PATIENT = ROBUST if IS_PLAIN else {**OURS, "max_attempts": 30}
HURRIED = {"soft_time_limit": 3, "time_limit": 4, **ROBUST} if IS_PLAIN else {**OURS, "max_attempts": 30}
FRAGILE = {"reject_on_worker_lost": False, **ROBUST} if IS_PLAIN else {**OURS, "max_attempts": 2}


def note(what: str, run: str, attempt: int) -> None:
    """Append one whole line, there even if this process dies next."""
    line = f"{what} {run} {attempt} {os.getpid()} {time.monotonic():.6f}\n"
    file = os.open(Path(os.environ[FOLDER], "effects"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@contextmanager
def noted(task: Task) -> Iterator[None]:
    """Note that a body begins and ends: ``done`` when it did its work, ``end`` when it raised."""
    run, number = task.request.id, task.request.retries + 1
    if not IS_PLAIN:
        from celery_guard import current_run

        number = current_run().attempt
    note("begin", run, number)
    try:
        yield
    except BaseException:
        note("end", run, number)
        raise
    note("done", run, number)


def first_time(task: Task, what: str) -> bool:
    """Say once, over all processes, that this is the first time."""
    try:
        os.close(os.open(Path(os.environ[FOLDER], f"{what}-{task.request.id}"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def die() -> None:
    assert IN_WORKER in os.environ
    os.kill(os.getpid(), signal.SIGKILL)


def spend(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.02)


@app.task(bind=True, **PATIENT)
def quick(self, value):
    with noted(self):
        return value


@app.task(bind=True, **PATIENT)
def slow(self, seconds):
    with noted(self):
        spend(seconds)
        return seconds


@app.task(bind=True, **PATIENT)
def busy(self, times):
    """Fail in a way that a repeat helps against."""
    with noted(self):
        spend(0.2)
        for number in range(times):
            if first_time(self, f"busy{number}"):
                raise Busy(f"time {number + 1}")
        return times


@app.task(bind=True, **PATIENT)
def killed(self):
    """Kill one's process, once."""
    with noted(self):
        spend(0.1)
        if first_time(self, "killed"):
            die()
        return "alive"


@app.task(bind=True, **FRAGILE)
def poison(self):
    """Kill one's process, always."""
    with noted(self):
        die()


@app.task(bind=True, **PATIENT)
def refuse(self):
    with noted(self):
        raise Refused("no")


@app.task(bind=True, **HURRIED)
def late(self):
    """Take longer than there is."""
    with noted(self):
        spend(8)


@app.task(bind=True, **HURRIED)
def stubborn(self):
    """The same, and don't listen."""
    with noted(self):
        until = time.monotonic() + 8
        while time.monotonic() < until:
            try:
                time.sleep(0.02)
            except SoftTimeLimitExceeded:
                continue


@app.task(bind=True, **PATIENT)
def add(self, one, other):
    with noted(self):
        spend(0.1)
        return one + other
