"""Tasks with keys, followers, retries and errors of every kind, for real workers."""

from __future__ import annotations

import builtins
import json
import os
from pathlib import Path

from celery import Task, chain, group
from celery.exceptions import Ignore, Reject

from celery_guard import GuardedTask, NonRetryableError, RetryableError, Snooze, current_run
from tests.acceptance.apps.stage import die, new_app, note, noted, wait_for_gate

app = new_app("shop")


class Busy(Exception):
    """A repeat may help."""


class Odd(Exception):
    """Nobody said what this means."""


class Unpicklable(Exception):
    def __init__(self, one, other):
        super().__init__(f"{one} {other}")
        self.held = lambda: None


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@app.task
def give(value=None, gate=None):
    with noted():
        if gate:
            wait_for_gate(gate)
        return value


@app.task
def refuse(value=None, gate=None):
    with noted():
        if gate:
            wait_for_gate(gate)
        raise NonRetryableError("no")


@app.task
def give_up(value=None):
    with noted():
        raise RetryableError("busy")


@app.task
def total(numbers):
    with noted():
        return sum(numbers)


@app.task
def regret(failed_id):
    with noted() as run:
        note("regret", run.id, of=failed_id)


@app.task(base=Task, name="plain")
def plain(value, gate=None):
    if gate:
        wait_for_gate(gate)
    note("plain", "", value=value)
    return value


@app.task(bind=True)
def replaced(self, kind, value):
    with noted():
        by = {
            "guarded": lambda: give.s(value),
            "chain": lambda: chain(give.s(value), add.s(1), add.s(1)),
            "group": lambda: group(give.s(value), give.s(value)),
            "unguarded": lambda: plain.s(value),
            "slow": lambda: plain.s(value, "replacement"),
            "failing": lambda: refuse.s(value),
        }
        raise self.replace(by[kind]())


@app.task
def add(one, other):
    with noted():
        return one + other


# Errors


@app.task(bind=True, autoretry_for=(Exception,), max_attempts=4)
def retry_twice_over(self):
    with noted():
        raise self.retry(countdown=0)


@app.task(bind=True, max_attempts=2, retryable=(Busy,))
def leak(self, name):
    with noted() as run:
        if name == "a" and run.attempt == 1:
            raise self.retry(max_retries=5, countdown=0)
        if name == "b":
            raise Busy(name)


@app.task
def put_off(times):
    with noted() as run:
        if len(_begun(run.id)) <= times:
            raise Snooze(0.05)
        if run.attempt == 1:
            raise RetryableError("busy")
        return run.attempt


@app.task(bind=True, max_attempts=2)
def raise_it(self, what):
    """Raise one of the errors that are hard to carry."""
    with noted():
        errors = {
            "unpicklable": lambda: Unpicklable("a", "b"),
            "unspeakable": Unspeakable,
            "large": lambda: ValueError("x" * 5_000_000),
            "nul": lambda: ValueError("a\x00b"),
            "surrogate": lambda: ValueError("\ud800"),
            "memory": lambda: MemoryError("all of it"),
            "exit": lambda: SystemExit(3),
            "interrupt": lambda: KeyboardInterrupt(),
            "group": lambda: _several("several", [ValueError("one"), OSError("other")]),
            "deep": _deep,
            "ignore": Ignore,
            "reject": lambda: Reject("no", requeue=False),
            "odd": lambda: Odd("what is this?"),
            "base": lambda: BaseException("of everything"),
        }
        raise errors[what]()


def _several(text, errors):
    """Raise a group where Python has groups."""
    group_of = getattr(builtins, "ExceptionGroup", None)
    return group_of(text, errors) if group_of else errors[0]


def _deep():
    error = ValueError("innermost")
    for depth in range(1_000):
        outer = ValueError(f"depth {depth}")
        outer.__cause__ = error
        error = outer
    return error


def _begun(run_id):
    path = Path(os.environ["GUARD_TEST_FOLDER"], "traces")
    traces = [json.loads(line) for line in path.read_text().splitlines()]
    return [trace for trace in traces if trace["what"] == "begin" and trace["run"] == run_id]


@app.task(max_attempts=3, backoff=[0.05])
def fail_behind_a_gate(gate):
    with noted() as run:
        if run.attempt == 1:
            wait_for_gate(gate)
            raise RetryableError("busy")
        return run.attempt


@app.task(retry_rate="4/s", max_attempts=2, backoff=[0.01])
def limited():
    with noted() as run:
        if run.attempt == 1:
            raise RetryableError("busy")


class Existing(Task):
    """An application's own base, as it was written for Celery."""

    abstract = True
    max_retries = 2
    default_retry_delay = 0.5

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        note("on_failure", task_id, error=type(exc).__name__)

    def on_retry(self, exc, task_id, args, kwargs, einfo):
        note("on_retry", task_id)


#: With no wait at all, plain Celery may write RETRY over the ending that another child has written already.
SOON = 0.5


class Guarded(Existing, GuardedTask):
    """The same, guarded: nothing but the base has changed."""

    abstract = True


def _existing(base, name):
    @app.task(bind=True, base=base, name=f"{name}.by_hand")
    def by_hand(self):
        note("begin", self.request.id)
        try:
            raise Busy("busy")
        except Busy as error:
            raise self.retry(exc=error) from error

    @app.task(
        base=base, name=f"{name}.by_itself", autoretry_for=(Busy,), retry_kwargs={"max_retries": 1, "countdown": SOON}
    )
    def by_itself():
        note("begin", current_request_id(by_itself))
        raise Busy("busy")

    @app.task(bind=True, base=base, name=f"{name}.second_time_lucky")
    def second_time_lucky(self):
        note("begin", self.request.id)
        if self.request.retries == 0:
            raise self.retry(countdown=SOON)
        return self.request.retries

    @app.task(base=base, name=f"{name}.expected", throws=(KeyError,))
    def expected():
        note("begin", current_request_id(expected))
        raise KeyError("k")

    return {"by_hand": by_hand, "by_itself": by_itself, "second_time_lucky": second_time_lucky, "expected": expected}


def current_request_id(task):
    return task.request.id


plainly, guarded = _existing(Existing, "plainly"), _existing(Guarded, "guarded")


# One charge per order


@app.task(max_attempts=5)
def die_between(what):
    """Be killed in the first attempt, after a step."""
    with noted() as run:
        run.step("charge", lambda: note("charge", run.id))
        if run.attempt == 1:
            die()
        return current_run().attempt
