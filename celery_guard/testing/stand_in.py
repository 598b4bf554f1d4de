"""An app for the length of a test: a database, a broker and a result backend of its own, all in this process."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu import pools
from kombu.transport import memory, virtual

from celery_guard.flow.guard import Guard, guard_of, set_guard
from celery_guard.observe.transitions import Transition
from celery_guard.testing.clock import Clock

__all__ = ["WatchedGuard", "stand_in"]


class WatchedGuard(Guard):
    """A guard that remembers what was submitted in which order: the clock of a test may not tell."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.submissions: list[str] = []

    def announce(self, transition: Transition) -> None:
        """Take note of a submission, and tell everybody."""
        if transition.made_by == "submitter" and transition.run_id not in self.submissions:
            self.submissions.append(transition.run_id)
        super().announce(transition)


@contextmanager
def stand_in(app: Any, database_url: str, clock: Clock) -> Iterator[WatchedGuard]:
    """Let an app work on a database of runs under a clock, and on nothing else outside; then put back what it had.

    Yields:
        The app's guard for that time. Its namespace is its own, so rows of other tests are not seen.
    """
    app.finalize()
    app.conf.get("broker_url")  # this loads the configuration
    before, guard_before = dict(app.conf.changes), guard_of(app)
    app.conf.update(_spelt(app.conf, _configuration(app, database_url)))
    _forget_connections(app)
    guard = WatchedGuard(app)
    set_guard(app, guard)
    guard.database.clock = clock
    try:
        yield guard
    finally:
        guard.database.close()
        _drop_broker(app)
        app.conf.changes.clear()
        app.conf.changes.update(before)
        _forget_connections(app)
        set_guard(app, guard_before)


def _configuration(app: Any, database_url: str) -> dict[str, Any]:
    ours: dict[str, Any] = {
        "broker_url": "memory://localhost//",
        "broker_read_url": "memory://localhost//",
        "broker_write_url": "memory://localhost//",
        "broker_transport": _private_broker(),
        "broker_transport_options": {},
        "broker_use_ssl": False,
        "result_backend": "cache+memory://",
        "task_always_eager": False,
        "guard_database_url": database_url,
        "guard_namespace": f"test-{secrets.token_hex(8)}",
    }
    if database_url.startswith("sqlite"):
        ours["guard_database_engine_options"] = {}  # the app's own may be for a server
    return ours


def _spelt(conf: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Name keys as a configuration with a prefix does, so that they come before its own."""
    prefix = conf.prefix or ""
    return {f"{prefix}{name.upper() if prefix.isupper() else name}": value for name, value in values.items()}


def _private_broker() -> Any:
    """Make kombu's broker in memory anew: its queues are attributes of its classes."""
    channel = type("Channel", (memory.Channel,), {"queues": {}, "events": defaultdict(set)})
    return type("Transport", (memory.Transport,), {"Channel": channel, "global_state": virtual.BrokerState()})


def _forget_connections(app: Any) -> None:
    """Have the app look into its configuration again."""
    app._pool = app._backend_cache = None
    app.amqp._producer_pool = None
    app._local.__dict__.pop("backend", None)
    for task in app.tasks.values():
        task.__trace__ = None  # it keeps the backend


def _drop_broker(app: Any) -> None:
    connection = app.connection_for_write()
    for group in (pools.producers, pools.connections):
        pool = group.pop(connection, None)
        if pool is not None:
            pool.force_close_all()
