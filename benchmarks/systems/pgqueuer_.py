"""PgQueuer: two worker processes on uvloop and asyncpg, ten jobs a batch (the default), each a coroutine."""

from __future__ import annotations

from benchmarks.environment import job, postgres
from benchmarks.systems import System

SYSTEMS = {
    "pgqueuer": System(
        {"batch_size": 10},
        workers=2,
        settled="SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'",
        share=4,
    )
}


async def _connection():
    import asyncpg
    from pgqueuer.db import AsyncpgDriver

    return AsyncpgDriver(await asyncpg.connect(postgres()))


def _queries():
    import uvloop
    from pgqueuer.queries import Queries

    loop = uvloop.new_event_loop()
    return loop.run_until_complete, Queries(loop.run_until_complete(_connection()))


def setup(options):
    run, queries = _queries()
    run(queries.install())


def submitter(options):
    run, queries = _queries()
    return lambda number: run(queries.enqueue("job", b"%d" % number))


def bulk_submitter(options):
    run, queries = _queries()
    return lambda numbers: run(
        queries.enqueue(["job"] * len(numbers), [b"%d" % number for number in numbers], [0] * len(numbers))
    )


def worker(options, number):
    import uvloop
    from pgqueuer import PgQueuer

    async def work():
        manager = PgQueuer(await _connection())

        @manager.entrypoint("job")
        async def run(task):
            job(int(task.payload))

        await manager.run(**options)

    uvloop.run(work())
