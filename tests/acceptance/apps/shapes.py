"""The ways to define a task."""

from __future__ import annotations

from celery import shared_task
from pydantic import BaseModel

from celery_guard import GuardedTask
from tests.acceptance.apps.stage import new_app, note, noted

app = new_app("shapes")


def _seen_by(task, **more):
    note("seen", task.request.id, of=task.request.id, task=task.name, attempt=task.request.retries + 1, **more)


@app.task
def by_default(value):
    with noted():
        return value


@app.task(bind=True)
def bound(self, value):
    with noted():
        _seen_by(self)
        return value


@shared_task(base=GuardedTask, bind=True)
def shared(self, value):
    with noted():
        _seen_by(self)
        return value


class ByClass(GuardedTask):
    name = "by_class"

    def run(self, value):
        with noted():
            _seen_by(self)
            return value


class WithItsOwnCall(GuardedTask):
    abstract = True

    def __call__(self, *args, **kwargs):
        _seen_by(self, where="call")
        return super().__call__(*args, **kwargs)


@app.task(base=WithItsOwnCall, bind=True)
def with_its_own_call(self, value):
    with noted():
        _seen_by(self)
        return value


class Order(BaseModel):
    value: str


@app.task(pydantic=True, bind=True)
def with_pydantic(self, order: Order) -> Order:
    with noted():
        _seen_by(self, got=type(order).__name__)
        return order


@app.task(bind=True, ignore_result=True)
def with_its_result_ignored(self, value):
    with noted():
        _seen_by(self)
        return value


@app.task(bind=True)
def calling_another_and_itself(self, value, again=True):
    """Call tasks as plain functions: they belong to this very run."""
    with noted():
        _seen_by(self)
        return calling_another_and_itself(by_default(value), again=False) if again else value


by_class = app.register_task(ByClass())
