"""A small shop; as a module for ``celery -A``, its databases come from the environment."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from celery import Celery

from celery_guard import GuardedTask, RetryableError


def open_shop(runs: str, broker: str = "memory://", task_cls: Any = GuardedTask, **config: Any) -> Celery:
    """Make an app with tasks that end in every way, without waiting long for it."""
    app = Celery("shop", broker=broker, task_cls=task_cls, set_as_current=False)
    app.conf.update(guard_database_url=runs, guard_backoff_base=0.01, **config)

    @app.task(name="shop.add", shared=False)
    def add(one, other):
        return one + other

    @app.task(name="shop.busy", deadline=timedelta(minutes=5), max_attempts=3, shared=False)
    def busy(order="o"):
        raise RetryableError(f"busy with {order}")

    @app.task(name="shop.refuse", shared=False)
    def refuse(text="never"):
        raise ValueError(text)

    return app


if "SHOP_RUNS" in os.environ:
    app = open_shop(os.environ["SHOP_RUNS"], os.environ.get("SHOP_BROKER", "memory://"))
