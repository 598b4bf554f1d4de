"""What one writes by hand: a late-acknowledging Celery task that keeps a row of its run with bare psycopg2.

It is the least that one row per run can be inside Celery: three single-row statements on a table with a primary key
only. No deadline, no attempts, no rescue, no key, and a success that is told before anybody asks who holds the row.
"""

from __future__ import annotations

import os
import uuid

from benchmarks.environment import job, postgres, redis
from benchmarks.systems import System

SYSTEMS = {
    "by-hand": System(
        settled="SELECT count(*) FROM by_hand WHERE state = 'succeeded'", parts=("submit", "drain", "latency")
    )
}

_TABLE = """
CREATE TABLE by_hand (
    id text PRIMARY KEY, args text NOT NULL, state text NOT NULL, attempt int NOT NULL DEFAULT 0, token text,
    created_at timestamptz NOT NULL DEFAULT now(), started_at timestamptz, finished_at timestamptz)
"""
_SUBMIT = "INSERT INTO by_hand (id, args, state) VALUES (%s, '[1]', 'queued')"
_CLAIM = (
    "UPDATE by_hand SET state = 'running', attempt = attempt + 1, token = %s, started_at = now()"
    " WHERE id = %s AND state = 'queued' RETURNING attempt"
)
_SETTLE = "UPDATE by_hand SET state = 'succeeded', finished_at = now() WHERE id = %s AND token = %s"

_open = None


def _execute(*statement):
    global _open
    if _open is None or _open[0] != os.getpid():
        import psycopg2

        connection = psycopg2.connect(postgres())
        connection.autocommit = True
        _open = os.getpid(), connection.cursor()
    _open[1].execute(*statement)
    assert _open[1].rowcount


def _by_hand(self, number):
    _execute(_CLAIM, ("t" * 16, self.request.id))
    job(number)
    _execute(_SETTLE, (self.request.id, "t" * 16))


def _app(options):
    from celery import Celery

    app = Celery("bench", broker=redis())
    return app, app.task(name="job", bind=True, acks_late=True)(_by_hand)


def setup(options):
    _execute(_TABLE)


def submitter(options):
    _, task = _app(options)

    def send(number):
        run_id = str(uuid.uuid4())
        _execute(_SUBMIT, (run_id,))
        task.apply_async((number,), task_id=run_id)

    return send


def worker(options, number):
    _app(options)[0].worker_main("worker -P prefork -c 2 -l WARNING".split())
