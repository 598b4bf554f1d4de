"""What the database allows: the three statements of a run from bare psycopg2 cursors, without any broker.

``limit`` sends celery_guard's own statements, whole. ``verbs`` are the verbs of its store, which keep the plans of
these, and pay for a pool and for records of what came back. ``limit-least`` sends the least that a row per task could
be, on a table with a primary key only. ``-fused`` settles a run and claims the next in one commit, ``-eight`` claims
and settles eight at a time: neither is a queue, both show what a commit costs.
"""

from __future__ import annotations

import os
import time
import uuid

from benchmarks.environment import WARM, WARM_UP, job, postgres
from benchmarks.systems import System

_SETTLED = "SELECT count(*) FROM task_run WHERE state = 'succeeded'"
_PARTS = ("submit", "drain")

SYSTEMS = {
    name: System(options, workers=2, settled=_SETTLED, share=1.5, parts=_PARTS)
    for name, options in {
        "limit": {"statements": "ours"},
        "verbs": {"statements": "verbs"},
        "limit-least": {"statements": "least"},
        "limit-least-fused": {"statements": "least", "way": "fused"},
        "limit-least-eight": {"statements": "least", "way": "eight"},
    }.items()
}

_TABLE = """
CREATE TABLE task_run (
    id uuid PRIMARY KEY, name text NOT NULL, args jsonb NOT NULL, state text NOT NULL, attempt int NOT NULL DEFAULT 0,
    worker text, created_at timestamptz NOT NULL DEFAULT now(), started_at timestamptz, finished_at timestamptz)
"""
_SUBMIT = "INSERT INTO task_run (id, name, args, state) VALUES (%(id)s, 'job', '[1]', 'queued')"
_CLAIM = (
    "UPDATE task_run SET state = 'running', attempt = attempt + 1, worker = 'w', started_at = now()"
    " WHERE id = %(id)s AND state = 'queued' RETURNING attempt"
)
_SETTLE = (
    "UPDATE task_run SET state = 'succeeded', finished_at = now()"
    " WHERE id = %(id)s AND state = 'running' AND attempt = 1"
)


def _ours():
    """Return celery_guard's statements, with the values of a typical run."""
    from sqlalchemy import create_engine

    from celery_guard.store import statements as sql

    engine, run = create_engine(postgres("psycopg2")), vars(_typical())
    mine = {"worker_id": "w" * 32, "token": "t" * 16, "successor": "t" * 16, "result": "null", "owed": False}
    values = {**run, **mine}
    return [(text, {**constants, **values}) for text, constants in (
        statement.compiled(engine) for statement in (sql.SUBMIT, sql.CLAIM, sql.SUCCEED)
    )]  # fmt: skip


def _typical():
    from celery_guard.store.records import NewRun

    options = '{"serializer": "json", "reply_to": "b0a3c4f0-9f6a-3b1c-8f0e-0123456789ab", "ignore_result": false}'
    return NewRun(
        "", "bench", "job", "celery", "[[1], {}]", options, "p:" + "0" * 32, 5, deadline_after=86_400, lease=20
    )


class Store:
    """The three verbs of celery_guard's store."""

    def __init__(self):
        from celery_guard.core.decide import Finish
        from celery_guard.core.states import Reason, State
        from celery_guard.store.database import Database
        from celery_guard.store.runs import RunStore

        self.runs, self.run = RunStore(Database(postgres("psycopg2")), "bench"), vars(_typical())
        self.success = Finish(State.SUCCEEDED, Reason.SUCCEEDED)

    def do(self, number, run_id):
        from celery_guard.store.records import NewRun

        if number == 0:
            assert self.runs.submit(NewRun(**{**self.run, "id": run_id}))
        elif number == 1:
            told = {"fingerprint": self.run["fingerprint"], "type_": self.run["type"]}
            self.claim = self.runs.claim(run_id, "t" * 16, worker_id="w" * 32, **told).claim
        else:
            assert self.runs.settle(self.claim, self.success, result="null")


class Verbs:
    """The three statements on one cursor."""

    def __init__(self, options):
        import psycopg2

        least = [(text, {}) for text in (_SUBMIT, _CLAIM, _SETTLE)]
        self.statements = _ours() if options["statements"] == "ours" else least
        connection = psycopg2.connect(postgres())
        connection.autocommit = True
        self.cursor = connection.cursor()

    def do(self, number, run_id):
        text, values = self.statements[number]
        self.cursor.execute(text, {**values, "id": run_id})
        assert self.cursor.rowcount == 1


def _id(position):
    return str(uuid.UUID(int=position))


def setup(options):
    if options["statements"] != "least":
        from celery_guard.store.database import Database
        from celery_guard.store.migrations import migrate

        return migrate(Database(postgres("psycopg2")))
    import psycopg2

    with psycopg2.connect(postgres()) as connection:
        connection.cursor().execute(_TABLE)


def _verbs(options):
    return Store() if options["statements"] == "verbs" else Verbs(options)


def submitter(options):
    verbs, positions = _verbs(options), iter(range(10**9))
    return lambda number: verbs.do(0, _id(next(positions)))


def worker(options, number):
    """Claim and settle every second run, once the other worker is ready, too."""
    verbs, total = _verbs(options), int(os.environ["BENCH_RUNS"]) + WARM_UP
    todo = [(_id(position), max(position - WARM_UP, WARM)) for position in range(total)][number::2]
    gate = os.environ["BENCH_MARKS"] + ".ready{}"
    open(gate.format(number), "w").close()
    while not os.path.exists(gate.format(1 - number)):
        time.sleep(0.001)
    {"fused": _fused, "eight": _eight}.get(options.get("way"), _one_by_one)(verbs, todo)
    time.sleep(600)


def _one_by_one(verbs, todo):
    for run_id, number in todo:
        verbs.do(1, run_id)
        job(number)
        verbs.do(2, run_id)


def _fused(verbs, todo):
    before = ""
    for run_id, number in todo:
        verbs.cursor.execute(before + _CLAIM, {"id": run_id})
        job(number)
        before = verbs.cursor.mogrify(_SETTLE, {"id": run_id}).decode() + ";"
    verbs.cursor.execute(before)


def _eight(verbs, todo):
    several = "id = ANY(%(id)s::uuid[])"
    for first in range(0, len(todo), 8):
        part = todo[first : first + 8]
        ids = {"id": [run_id for run_id, _ in part]}
        verbs.cursor.execute(_CLAIM.replace("id = %(id)s", several), ids)
        for _, number in part:
            job(number)
        verbs.cursor.execute(_SETTLE.replace("id = %(id)s", several), ids)
