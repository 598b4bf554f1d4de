"""celery_guard on the same Celery, Redis and PostgreSQL; by default without a result backend: a row has its result."""

from __future__ import annotations

from benchmarks.environment import RESULTS, job, postgres, redis
from benchmarks.systems import System

_SETTLED = "SELECT count(*) FROM task_run WHERE state = 'succeeded'"

_SLOW_DISK = "-c commit_delay=2000 -c commit_siblings=0"

SYSTEMS = {
    "guarded": System(settled=_SETTLED),
    # What settling successes together saves; beside a disk that takes two milliseconds to flush, too.
    "guarded-within": System({"within": 0.01}, settled=_SETTLED, parts=("submit", "drain")),
    "guarded-slow-disk": System({"session": _SLOW_DISK}, settled=_SETTLED, parts=("submit", "drain")),
    "guarded-slow-disk-within": System(
        {"session": _SLOW_DISK, "within": 0.01}, settled=_SETTLED, parts=("submit", "drain")
    ),
    "guarded-redis": System({"results": "redis"}, settled=_SETTLED),
    # What a commit costs: not waited for (a crash of PostgreSQL may take the last ones), or waited for together.
    "guarded-no-wait": System({"session": "-c synchronous_commit=off"}, settled=_SETTLED, parts=("submit", "drain")),
    "guarded-together": System(
        {"session": "-c commit_delay=500 -c commit_siblings=1"}, settled=_SETTLED, parts=("submit", "drain")
    ),
}


def _app(options):
    from celery import Celery

    from celery_guard import GuardedTask

    backend = redis(RESULTS) if options.get("results") else None
    app = Celery("bench", broker=redis(), backend=backend, task_cls=GuardedTask)
    app.conf.guard_database_url = postgres("psycopg2")
    app.conf.guard_settle_within = options.get("within")
    app.conf.guard_database_engine_options = {"connect_args": {"options": options.get("session", "")}}
    return app, app.task(name="job")(job)


def setup(options):
    from celery_guard.flow.guard import guard_of
    from celery_guard.store.migrations import migrate

    migrate(guard_of(_app(options)[0]).database)


def submitter(options):
    return _app(options)[1].delay


def bulk_submitter(options):
    from celery_guard import submit_many

    _, task = _app(options)
    return lambda numbers: submit_many(task, [(number,) for number in numbers])


def worker(options, number):
    _app(options)[0].worker_main("worker -P prefork -c 2 -l WARNING".split())
