"""Compare: ``python -m example_project.charge_once``.

A client posts one order three times, the worker's process is killed right after its first charge, and the broker
delivers a message twice: once to a plain Celery task, once to a guarded one. The exit code is 0 when the guarded task
charged once and the plain one more often. ``SHOP_BROKER_URL`` and ``SHOP_DATABASE_URL`` choose the servers; without
them, files in a temporary folder do.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery.signals import before_task_publish

from example_project.charge_once.ledger import charges, open_ledger
from example_project.charge_once.tasks import charge_guarded, charge_plainly
from example_project.processes import celery

__all__ = ["main"]

ORDER = 42
POSTS = 3

#: One charge per post, and one more for the killed process or for the copy: Celery sees that they are the same task.
EXPECTED_OF_CELERY = POSTS + 1


def main() -> int:
    """Run the comparison and return the exit code."""
    with tempfile.TemporaryDirectory(prefix="charge-once-") as home:
        os.environ["SHOP_HOME"] = home  # Celery reads its configuration on first use, so here is early enough
        open_ledger()
        flags = ["worker", "--concurrency=1", "--loglevel=INFO"]
        with celery("worker", flags, home=Path(home), app="example_project.charge_once") as worker:
            worker.wait_until(lambda: worker.says(" ready."), seconds=30)
            run = _post_all()
            _wait(lambda: run.run.is_terminal and charges("plain") >= EXPECTED_OF_CELERY, seconds=60)
        plain, guarded = charges("plain"), charges("guarded")
    print(f"Posted {POSTS} times, killed once, one message delivered twice:")
    print(f"  plain Celery charged order {ORDER} {plain} times")
    print(f"  celery_guard charged order {ORDER} {guarded} {'time' if guarded == 1 else 'times'}")
    return 0 if guarded == 1 < plain else 1


def _post_all() -> Any:
    """Post the order to both tasks, and let the broker deliver the first message of each again; return the one run."""
    posts = [_delivered_twice(charge_guarded), *(charge_guarded.delay(ORDER) for _ in range(POSTS - 1))]
    _delivered_twice(charge_plainly)
    for _ in range(POSTS - 1):
        charge_plainly.delay(ORDER)
    (run,) = {post.id: post for post in posts}.values()
    return run


def _delivered_twice(task: Any) -> Any:
    """Submit, and publish the very same message again, as a broker does that lost an acknowledgement."""
    sent: list[dict[str, Any]] = []

    def keep(body: Any = None, headers: Any = None, properties: Any = None, **where: Any) -> None:
        sent.append({"body": body, "headers": headers, **properties})

    before_task_publish.connect(keep)
    result = task.delay(ORDER)
    before_task_publish.disconnect(keep)
    with task.app.producer_or_acquire() as producer:
        producer.publish(
            **sent[0], routing_key=task.app.conf.task_default_queue, exchange="", serializer="json", retry=True
        )
    return result


def _wait(over: Callable[[], bool], *, seconds: float) -> None:
    limit = time.monotonic() + seconds
    while not over() and time.monotonic() < limit:
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
