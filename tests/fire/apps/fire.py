"""Tasks that last, die, hang and misbehave, each as its test says."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time

import psycopg2
import redis
from celery import Task
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import task_internal_error, task_postrun

from celery_guard import GuardedTask, RetryableError
from celery_guard.flow import attempt, publish, settle
from celery_guard.flow.guard import guard_of
from tests.acceptance.apps.stage import IN_WORKER, die, die_first, new_app, note, noted, wait_for_gate

app = new_app("fire")

if IN_WORKER in os.environ:
    if app.conf.get("fire_lease"):
        publish.LEASE = tuple(app.conf.fire_lease)
    if app.conf.get("fire_patience"):
        settle.patiently.__defaults__ = (app.conf.fire_patience,)
        attempt.CLAIM_PATIENCE = app.conf.fire_patience
if app.conf.get("fire_opens_early"):  # connections that are there before the children are
    app.finalize(auto=True)
    guard_of(app).runs.clock()
    with guard_of(app).database.engine.connect() as kept:
        kept.exec_driver_sql("SELECT 1")
    inherited = guard_of(app).database.engine.connect()


@app.task
def succeed(value=None):
    with noted():
        return value


@app.task
def fill_the_result_backend(value):
    """Have the result backend refuse what is written next, until the tracer has stumbled over it."""
    with noted():
        redis.Redis.from_url(app.conf.result_backend).config_set("maxmemory", 1)
        return value


@task_internal_error.connect
def empty_the_result_backend(**_):
    redis.Redis.from_url(app.conf.result_backend).config_set("maxmemory", 0)


@app.task
def hold(gate, value=None, within=120):
    """Wait for the test; in each attempt at a gate of its own when the name says so."""
    with noted() as run:
        wait_for_gate(gate.format(attempt=run.attempt), within)
        return value.format(attempt=run.attempt) if isinstance(value, str) else value


@app.task
def hold_and_fail_until(gate, attempt):
    """Wait for the test, and fail before this attempt."""
    with noted() as run:
        wait_for_gate(gate)
        if run.attempt < attempt:
            raise RetryableError(f"attempt {run.attempt}")
        return run.attempt


@app.task
def last(seconds, value=None):
    """Take some time, in plain Python."""
    with noted():
        _spend(seconds)
        return value


@app.task
def fail_until(attempt, wait=None):
    """Fail in a way that a repeat may help against, before this attempt."""
    with noted() as run:
        if run.attempt < attempt:
            raise RetryableError(f"attempt {run.attempt}", retry_after=wait)
        return run.attempt


@app.task
def die_until(attempt):
    """Be killed in the attempts before this one."""
    with noted() as run:
        if run.attempt < attempt:
            die()
        return run.attempt


@app.task(on_worker_lost="fail")
def die_and_never_again():
    with noted():
        die()


@app.task
def leave(how):
    """Leave the process, politely or not."""
    with noted():
        if how == "SystemExit":
            raise SystemExit(3)
        os._exit(3)


@app.task(time_limit=1.5)
def exceed_its_time_limit(until_attempt):
    with noted() as run:
        if run.attempt < until_attempt:
            _spend(30)
        return run.attempt


@app.task
def swallow(seconds):
    """Take some time, whatever asks it to stop."""
    with noted():
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                pause(0.05)
            except SoftTimeLimitExceeded:
                continue
        return "late"


@app.task
def sleep_in_the_database(url, seconds):
    """Wait inside a driver written in C, which no Python signal handler can interrupt."""
    with noted():
        connection = psycopg2.connect(url.replace("+psycopg2", ""), application_name="body")
        connection.autocommit = True
        connection.cursor().execute("SELECT pg_sleep(%s)", (seconds,))


@app.task
def keep_the_interpreter(seconds):
    """Hold the GIL: no other thread of the process runs."""
    with noted():
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            ctypes.PyDLL(None).usleep(int((until - time.monotonic()) * 1e6))


@app.task
def killed_after_its_success():
    with noted():
        return "kept"


@task_postrun.connect
def kill_after_the_success(sender=None, **_):
    if sender is not None and sender.name == killed_after_its_success.name:
        die_first("after-the-success")


class Unhappy(GuardedTask):
    """Every hook raises."""

    abstract = True

    def before_start(self, task_id, args, kwargs):
        note("before_start", task_id)
        if kwargs.get("early"):
            raise RetryableError("before_start")

    def on_success(self, retval, task_id, args, kwargs):
        note("on_success", task_id)
        raise RuntimeError("on_success")

    def on_retry(self, exc, task_id, args, kwargs, einfo):
        note("on_retry", task_id)
        raise RuntimeError("on_retry")

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        note("on_failure", task_id)
        raise RuntimeError("on_failure")

    def after_return(self, status, retval, task_id, args, kwargs, einfo):
        note("after_return", task_id)
        raise RuntimeError("after_return")


@app.task(base=Unhappy)
def unhappy(attempts=1, early=False):
    """Succeed in this attempt."""
    with noted() as run:
        if run.attempt < attempts:
            raise RetryableError("not yet")
        return run.attempt


@app.task(base=Task)
def unguarded(value=None):
    note("unguarded", "", value=value)
    return value


def pause(seconds):
    """Sleep, also under a shifted clock, which breaks ``time.sleep``."""
    select.select([], [], [], seconds)


def _spend(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pause(0.02)


@app.task
def stop_oneself(gate):
    """Freeze this very process; who thaws it lets the body go on."""
    with noted() as run:
        os.kill(os.getpid(), signal.SIGSTOP)
        wait_for_gate(gate)
        return run.attempt
