"""Checks of the broker, the worker and the result backend."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from celery_guard.cli.preflight.finding import Finding, fail, guarded_tasks, ok, warn
from celery_guard.cli.preflight.tasks import longest_attempt
from celery_guard.core.wording import spell
from celery_guard.flow.guard import task_settings

__all__ = [
    "acknowledgement",
    "confirms",
    "consumer_timeout",
    "pool",
    "prefetch",
    "reachable",
    "result_expiry",
    "visibility_timeout",
]

#: What a broker waits for an acknowledgement when nobody says otherwise, in seconds.
_REDIS_DEFAULT, _RABBITMQ_DEFAULT = 3_600.0, 1_800.0

#: What kombu calls the transports that the tests use; Valkey speaks Redis.
_TESTED = ("amqp", "filesystem", "redis", "valkey")

#: How long to try to reach the broker, in seconds.
_PATIENCE = 3


def reachable(app: Any, guard: Any) -> Iterator[Finding]:
    """Open a connection."""
    kind = _kind(app)
    if kind == "memory":
        yield warn("memory:// connects nobody but this process", "set broker_url")
        return
    if kind not in _TESTED:
        yield warn(
            f"celery_guard is not tested on kombu's {kind} transport",
            "use Redis or RabbitMQ, or try your tasks on it under load and with killed workers",
        )
    with app.connection_for_write() as connection:
        where = connection.as_uri()
        connection.connect_timeout = _PATIENCE
        if kind == "redis":
            connection.transport_options.setdefault("socket_connect_timeout", _PATIENCE)
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=_PATIENCE)
        except Exception as away:  # each transport has errors of its own
            yield fail(f"{where} can't be reached: {away}", "start the broker, or correct broker_url")
        else:
            yield ok(f"{where} answers")


def visibility_timeout(app: Any, guard: Any) -> Iterator[Finding]:
    """Redis gives a message to another worker when it is not acknowledged in time."""
    if _kind(app) != "redis":
        return
    patience = float((app.conf.broker_transport_options or {}).get("visibility_timeout", _REDIS_DEFAULT))
    name, longest = _longest(app)
    if longest > patience:
        yield warn(
            f"an attempt of {name} may take {_said(longest)}, and Redis delivers its message again after"
            f" {_said(patience)}; the copy is dropped, but it takes a slot to find out",
            "raise broker_transport_options['visibility_timeout'], or shorten time_limit or deadline",
        )
    else:
        yield ok(f"{_said(patience)}, and the longest attempt takes {_said(longest)}; waits are rows, not messages")


def consumer_timeout(app: Any, guard: Any) -> Iterator[Finding]:
    """RabbitMQ closes the channel of a consumer that does not acknowledge in time."""
    if _kind(app) != "amqp":
        return
    name, longest = _longest(app)
    patience = _configured_consumer_timeout(app)
    if longest > patience:
        yield warn(
            f"an attempt of {name} may take {_said(longest)}, and RabbitMQ closes the channel after {_said(patience)}"
            " (its default, where the queue says nothing else)",
            "raise consumer_timeout on the server (x-consumer-timeout on a queue), or shorten time_limit or deadline",
        )
    else:
        yield ok(f"{_said(patience)}, and the longest attempt takes {_said(longest)}")


def confirms(app: Any, guard: Any) -> Iterator[Finding]:
    """Without confirms a message that RabbitMQ loses is missed only when its row's lease is over."""
    if _kind(app) != "amqp":
        return
    if (app.conf.broker_transport_options or {}).get("confirm_publish"):
        yield ok("RabbitMQ confirms what is published")
    else:
        yield warn(
            "publishing is not confirmed: a lost message is sent again only once its row's lease (15 to 30 s) is over",
            "set broker_transport_options = {'confirm_publish': True}",
        )


def acknowledgement(app: Any, guard: Any) -> Iterator[Finding]:
    """The guard sees to it; a broker connection that is lost should stop what runs."""
    if app.conf.task_always_eager:
        yield warn("task_always_eager: nothing is sent to workers at all", "leave it to tests")
        return
    late = all(task.acks_late and not task.reject_on_worker_lost for task in guarded_tasks(app))
    if late:
        yield ok("guarded tasks acknowledge late, whatever task_acks_late says; the row decides about repeats")
    else:
        yield fail("a guarded task was made to acknowledge early after it was bound", "leave acks_late alone")


def prefetch(app: Any, guard: Any) -> Iterator[Finding]:
    """A run that lies reserved in a busy worker uses up its time."""
    multiplier = app.conf.worker_prefetch_multiplier
    if multiplier == 0:
        yield warn("worker_prefetch_multiplier=0: one worker may reserve every run", "set it to 1")
    elif multiplier > 1:
        yield warn(
            f"worker_prefetch_multiplier={multiplier}: each slot reserves {multiplier} runs, which wait while others"
            " are idle and their deadlines come nearer",
            "set it to 1 unless tasks are short",
        )
    else:
        yield ok("each slot reserves one run")


def pool(app: Any, guard: Any) -> Iterator[Finding]:
    """What can be stopped at the deadline depends on the pool."""
    kind = str(app.conf.worker_pool or "prefork").rpartition(":")[2].lower()
    weak = {
        "threads": "threads are stopped only while they run Python code, and never killed",
        "solo": "solo stops nothing: the row ends in time, the body goes on",
        "gevent": "greenlets are stopped only when they yield",
        "eventlet": "greenlets are stopped only when they yield",
    }
    why = next((text for name, text in weak.items() if name in kind), None)
    if why is None:
        yield ok("prefork stops and kills what runs past its limits; solo, threads and greenlets do less")
    else:
        yield warn(why, "use the prefork pool for tasks that may hang, or give their calls timeouts")


def result_expiry(app: Any, guard: Any) -> Iterator[Finding]:
    """A chord or a caller that waits until the last deadline needs the first result to be there still."""
    from celery.backends.base import DisabledBackend

    if isinstance(app.backend, DisabledBackend):
        yield ok("no result backend: get() reads the row")
        return
    expires = app.conf.result_expires
    if not expires:
        yield ok("results don't expire")
        return
    seconds = expires.total_seconds() if isinstance(expires, timedelta) else float(expires)
    deadlines = [(task_settings(task).deadline.total_seconds(), task.name) for task in guarded_tasks(app)]
    longest, name = max(deadlines, default=(0.0, ""))
    if longest > seconds:
        yield warn(
            f"results expire after {_said(seconds)}, and {name} may take {_said(longest)}: a chord may miss its first"
            " results",
            "raise result_expires, or shorten the deadline",
        )
    else:
        yield ok(f"results are kept for {_said(seconds)}")


def _kind(app: Any) -> str:
    return str(app.connection_for_write().transport.driver_type)


def _longest(app: Any) -> tuple[str, float]:
    times = [(longest_attempt(task, task_settings(task)), task.name) for task in guarded_tasks(app)]
    longest, name = max(times, default=(0.0, "no task"))
    return name, longest


def _configured_consumer_timeout(app: Any) -> float:
    told = [(queue.queue_arguments or {}).get("x-consumer-timeout") for queue in app.amqp.queues.values()]
    known = [float(milliseconds) / 1_000 for milliseconds in told if milliseconds]
    return min(known) if known and len(known) == len(told) else min([*known, _RABBITMQ_DEFAULT])


def _said(seconds: float) -> str:
    return spell(timedelta(seconds=seconds))
