"""Chancy: one worker with two processes that it keeps, fetching as soon as one is free."""

from __future__ import annotations

import asyncio
import logging

from benchmarks.environment import job, postgres
from benchmarks.systems import System

SYSTEMS = {"chancy": System(settled="SELECT count(*) FROM chancy_jobs WHERE state = 'succeeded'", share=0.4)}


def run(number: int) -> None:
    """Be the job: Chancy wants annotations."""
    job(number)


def _chancy():
    import chancy

    log = logging.getLogger("bench")
    log.setLevel(logging.WARNING)
    return chancy.Chancy(postgres(), log=log), chancy.job(queue="q")(run).job


def setup(options):
    from chancy import Queue

    async def declare():
        async with _chancy()[0] as chancy:
            await chancy.migrate()
            keep = {"maximum_jobs_per_worker": 10**6}
            await chancy.declare(Queue("q", concurrency=2, eager_polling=True, executor_options=keep))

    asyncio.run(declare())


def submitter(options):
    chancy, task = _chancy()
    chancy.__enter__()
    return lambda number: chancy.sync_push(task.with_kwargs(number=number))


def bulk_submitter(options):
    chancy, task = _chancy()
    chancy.__enter__()
    return lambda numbers: list(chancy.sync_push_many([task.with_kwargs(number=number) for number in numbers]))


def worker(options, number):
    from chancy import Worker

    async def work():
        async with _chancy()[0] as chancy, Worker(chancy) as found:
            await found.wait_for_shutdown()

    asyncio.run(work())
