"""Dramatiq on Redis, without results: two processes with eight threads each (the default), or with one."""

from __future__ import annotations

import os
import sys

from benchmarks.environment import job, redis
from benchmarks.systems import System

_PARTS = ("submit", "drain", "latency")

SYSTEMS = {
    "dramatiq": System({"threads": 8}, share=2, parts=_PARTS),
    "dramatiq-1": System({"threads": 1}, share=2, parts=_PARTS),
}


def _actor():
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    dramatiq.set_broker(RedisBroker(url=redis()))
    return dramatiq.actor(job, actor_name="job")


if "BENCH_DRAMATIQ" in os.environ:  # its worker imports this module
    _actor()


def setup(options):
    pass


def submitter(options):
    return _actor().send


def worker(options, number):
    os.environ["BENCH_DRAMATIQ"] = "1"
    command = [sys.executable, "-m", "dramatiq", __name__, "-p", "2", "-t", str(options["threads"])]
    os.execv(sys.executable, command)
