"""Celery on Redis with two prefork children: without results, with results in Redis, with results in PostgreSQL."""

from __future__ import annotations

from benchmarks.environment import RESULTS, job, postgres, redis
from benchmarks.systems import System

SYSTEMS = {
    "celery": System(share=1.5),
    "celery-late": System({"conf": {"task_acks_late": True}}, share=1.5, parts=("submit", "drain")),
    "celery-redis": System({"results": "redis"}, share=1.5),
    "celery-sql": System({"results": "sql"}, settled="SELECT count(*) FROM celery_taskmeta WHERE status = 'SUCCESS'"),
}


def _app(options):
    from celery import Celery

    backends = {"redis": redis(RESULTS), "sql": f"db+{postgres('psycopg2')}"}
    app = Celery("bench", broker=redis(), backend=backends.get(options.get("results")))
    app.conf.update(options.get("conf", {}))
    return app, app.task(name="job")(job)


def setup(options):
    if options.get("results") == "sql":
        from celery.backends.database.session import ResultModelBase
        from sqlalchemy import create_engine

        _ = _app(options)[0].backend
        ResultModelBase.metadata.create_all(create_engine(postgres("psycopg2")))


def submitter(options):
    return _app(options)[1].delay


def bulk_submitter(options):
    from celery import group

    _, task = _app(options)
    return lambda numbers: group([task.s(number) for number in numbers]).apply_async()


def worker(options, number):
    _app(options)[0].worker_main("worker -P prefork -c 2 -l WARNING".split())
