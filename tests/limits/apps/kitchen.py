"""Tasks with a concurrency limit, for real workers."""

from __future__ import annotations

import os
import time

from tests.acceptance.apps.stage import die_first, new_app, noted, wait_for_gate

app = new_app("kitchen")

#: A deploy may change it.
PLATES = int(os.environ.get("GUARD_TEST_PLATES", "2"))


@app.task(concurrency=5)
def fry(seconds=0.0):
    with noted():
        time.sleep(seconds)


@app.task(concurrency=PLATES)
def keep_warm(gate):
    with noted():
        wait_for_gate(gate)


@app.task(concurrency=PLATES, on_worker_lost="fail")
def burn(name):
    with noted():
        die_first(name)


@app.task(concurrency=1, concurrency_key="table-{table}")
def serve(table, gate=None):
    with noted():
        if gate is not None:
            wait_for_gate(gate)


@app.task(concurrency=1)
def sit_down():
    with noted():
        time.sleep(60)


@app.task
def clean():
    with noted():
        return "clean"
