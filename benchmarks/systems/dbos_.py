"""DBOS Transact: one workflow per job, two worker processes; its default queue, and one that polls each 50 ms."""

from __future__ import annotations

import threading

from benchmarks.environment import job, postgres
from benchmarks.systems import System

_SETTLED = "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'"

SYSTEMS = {
    "dbos": System({}, workers=2, settled=_SETTLED),
    "dbos-fast": System({"polling_interval_sec": 0.05, "worker_concurrency": 100}, workers=2, settled=_SETTLED),
}


def _launch(options, number):
    from dbos import DBOS

    DBOS(
        config={
            "name": "bench",
            "system_database_url": postgres(),
            "log_level": "WARNING",
            "executor_id": f"w{number}",
            "application_version": "1",
        }
    )
    DBOS.workflow(name="job")(job)
    DBOS.launch()
    DBOS.register_queue("q", **options)


def setup(options):
    from dbos import DBOS

    _launch(options, 9)
    DBOS.destroy()


def submitter(options):
    from dbos import DBOSClient

    client = DBOSClient(system_database_url=postgres())
    return lambda number: client.enqueue({"workflow_name": "job", "queue_name": "q"}, number)


def bulk_submitter(options):
    """It has no call for many: its documented way is many in one transaction."""
    from dbos import DBOSClient
    from sqlalchemy import create_engine

    client, engine = DBOSClient(system_database_url=postgres()), create_engine(postgres("psycopg"))

    def send(numbers):
        with engine.begin() as connection:
            for number in numbers:
                client.enqueue_in_transaction(connection, {"workflow_name": "job", "queue_name": "q"}, number)

    return send


def worker(options, number):
    _launch(options, number)
    threading.Event().wait()
