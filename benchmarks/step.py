"""One step of one system, in a process of its own: ``python -m benchmarks.step NAME STEP NUMBER``.

Steps are setup, worker, submit, bulk and latency; the number is that of the worker, or how many jobs to send.

A sender says "ready" once it is connected, waits for a line, sends, and says how it went as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks.environment import WARM, WARM_UP
from benchmarks.systems import every_system

#: How many jobs are submitted at once where the system can.
BATCH = 500

#: Seconds between two jobs whose latency is taken: the worker is idle.
GAP = 0.05


def main(name: str, step: str, number: int) -> None:
    """Do it."""
    system = every_system()[name]
    module: Any = import_module(system.module)
    if step == "setup":
        module.setup(system.options)
    elif step == "worker":
        module.worker(system.options, number)
    else:
        _send(module, system.options, step, number)


def _send(module: Any, options: Any, step: str, number: int) -> None:
    if step == "bulk":
        send = module.bulk_submitter(options)
        send([WARM] * WARM_UP)
    else:
        send = module.submitter(options)
        for _ in range(WARM_UP):
            send(WARM)
    print("ready", flush=True)
    sys.stdin.readline()
    began, used = time.time(), time.process_time()
    answer = {"submit": _one_by_one, "bulk": _together, "latency": _now_and_then}[step](send, number)
    spent = {"seconds": time.time() - began, "cpu": time.process_time() - used}
    print(json.dumps({**spent, **answer}), flush=True)
    os._exit(0)  # nobody needs what clients do at their end


def _one_by_one(send: Callable[[int], Any], number: int) -> dict[str, Any]:
    for each in range(number):
        send(each)
    return {}


def _together(send: Callable[[list[int]], Any], number: int) -> dict[str, Any]:
    for first in range(0, number, BATCH):
        send(list(range(first, min(first + BATCH, number))))
    return {}


def _now_and_then(send: Callable[[int], Any], number: int) -> dict[str, Any]:
    sent, began = [], time.time()
    for each in range(number):
        time.sleep(max(0, began + each * GAP - time.time()))
        sent.append(time.time_ns())
        send(each)
    return {"sent": sent}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
