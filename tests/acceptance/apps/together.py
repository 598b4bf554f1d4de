"""Tasks whose successes nobody waits for, and some whose successes somebody hears of."""

from __future__ import annotations

import logging

from celery_guard import GuardedTask
from tests.acceptance.apps.stage import new_app, note, noted, wait_for_gate

app = new_app("together")


@app.task
def succeed(value=None):
    with noted():
        return value


@app.task
def hold(gate, value=None):
    with noted():
        wait_for_gate(gate)
        return value


@app.task
def fail_after_the_body():
    """Return, and have Celery's tracer fail afterwards."""
    with noted():
        return "returned"


def refuse_to_say(record: logging.LogRecord) -> bool:
    if record.name == "celery.app.trace" and "'returned'" in record.getMessage():
        raise RuntimeError("the tracer fails")
    return True


logging.getLogger("celery.app.trace").addFilter(refuse_to_say)


class Hearing(GuardedTask):
    abstract = True

    def on_success(self, retval, task_id, args, kwargs):
        state = self.AsyncResult(task_id).run.state
        note("heard", task_id, state=str(state))


@app.task(base=Hearing)
def be_heard(value=None):
    with noted():
        return value
