"""Procrastinate: two worker processes, one job at a time in each (the default), or ten asynchronous ones."""

from __future__ import annotations

from benchmarks.environment import job, postgres
from benchmarks.systems import System

_SETTLED = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'"

SYSTEMS = {
    "procrastinate": System(workers=2, settled=_SETTLED, share=0.5),
    "procrastinate-10": System({"concurrency": 10}, workers=2, settled=_SETTLED, share=0.5),
}


def _app(options, connector):
    import procrastinate

    app = procrastinate.App(connector=getattr(procrastinate, connector)(conninfo=postgres()))
    if "concurrency" in options:

        async def run(number):
            job(number)
    else:

        def run(number):
            job(number)

    return app, app.task(name="job")(run)


def setup(options):
    with _app(options, "SyncPsycopgConnector")[0].open() as app:
        app.schema_manager.apply_schema()


def submitter(options):
    app, task = _app(options, "SyncPsycopgConnector")
    app.open()
    return lambda number: task.defer(number=number)


def bulk_submitter(options):
    app, task = _app(options, "SyncPsycopgConnector")
    app.open()
    return lambda numbers: task.batch_defer(*[{"number": number} for number in numbers])


def worker(options, number):
    _app(options, "PsycopgConnector")[0].run_worker(name=f"w{number}", **options)
