"""Tasks that end in every way there is."""

from __future__ import annotations

import time

from celery import Task
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import before_task_publish

from celery_guard import GuardedTask, RetryableError
from tests.acceptance.apps.stage import die, die_first, new_app, note, noted, wait_for_gate

app = new_app("life")


class Refused(Exception):
    """Permanent: a repeat can't help."""


class Surprise(Exception):
    """Nobody said what this means."""


@app.task
def succeed(value=None):
    with noted():
        return value


@app.task(concurrency=1)
def succeed_alone(value):
    with noted():
        return value


@app.task
def succeed_at(attempt, value=None):
    """Fail in a way that a repeat may help against, until this attempt."""
    with noted() as run:
        if run.attempt < attempt:
            raise RetryableError(f"attempt {run.attempt}")
        return value


@app.task
def retry_in(seconds):
    """Fail once and ask for the wait."""
    with noted() as run:
        if run.attempt == 1:
            raise RetryableError("busy", retry_after=seconds)
        return run.attempt


@app.task(non_retryable=(Refused,))
def refuse(text="no"):
    with noted():
        raise Refused(text)


@app.task
def surprise():
    with noted():
        raise Surprise("what is this?")


@app.task
def die_once(value=None):
    """Be killed in the first attempt."""
    with noted() as run:
        if run.attempt == 1:
            die()
        return value


@app.task
def oversleep(seconds=60):
    """Sleep in plain Python, far past the deadline."""
    with noted():
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.05)


@app.task
def oversleep_stubbornly(seconds=60):
    """Swallow every request to stop."""
    with noted() as run:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                time.sleep(0.05)
            except SoftTimeLimitExceeded:
                note("stopped softly", run.id)


@app.task
def hold(gate, value=None):
    """Wait for the test."""
    with noted():
        wait_for_gate(gate)
        return value


@app.task
def add(one, other):
    with noted():
        return one + other


@app.task
def total(numbers):
    with noted():
        return sum(numbers)


@app.task
def regret(failed_id):
    """Hear of a failure by its id: a run of its own."""
    with noted() as run:
        note("regret", run.id, of=failed_id)


@app.task
def regret_in_detail(request, error, traceback):
    """Hear of a failure in the process where it is told: a plain call."""
    note("regret", request.id, of=request.id, error=type(error).__name__, text=str(error))


@app.task(base=Task)
def unguarded(value=None):
    note("unguarded", "", value=value)
    return value


class Hooked(GuardedTask):
    """Note which hooks Celery calls."""

    abstract = True

    def before_start(self, task_id, args, kwargs):
        note("before_start", task_id, told=self.backend.get_task_meta(task_id)["status"])

    def on_success(self, retval, task_id, args, kwargs):
        note("on_success", task_id)

    def on_retry(self, exc, task_id, args, kwargs, einfo):
        note("on_retry", task_id)

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        note("on_failure", task_id)

    def after_return(self, status, retval, task_id, args, kwargs, einfo):
        note("after_return", task_id, status=status)


@app.task(base=Hooked)
def hooked(attempts=1, gate=None):
    """Succeed in this attempt; in none when it is more than there are."""
    with noted() as run:
        if gate is not None:
            wait_for_gate(gate)
        if run.attempt < attempts:
            raise RetryableError("not yet")
        return run.attempt


class DiesBeforeTheTail(GuardedTask):
    """A tail of a chain: whoever submits it for the first time dies instead, the head's row written."""

    abstract = True

    def apply_async(self, *args, **kwargs):
        die_first("before-the-tail")
        return super().apply_async(*args, **kwargs)


@app.task(base=DiesBeforeTheTail)
def tail_not_submitted(value):
    with noted():
        return value + 1


@app.task
def tail_not_published(value):
    with noted():
        return value + 1


@before_task_publish.connect
def die_before_the_message_of_the_tail(sender=None, **_):
    """The tail's row is written; its message never leaves."""
    if sender == tail_not_published.name:
        die_first("before-the-message")


class DiesInOnSuccess(GuardedTask):
    abstract = True

    def on_success(self, retval, task_id, args, kwargs):
        die_first("on-success")


@app.task(base=DiesInOnSuccess)
def head_dies_in_on_success(value):
    with noted():
        return value
