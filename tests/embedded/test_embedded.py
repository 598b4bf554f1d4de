"""No server at all: a worker beside the web process, which ends when that does, however it ends."""

from __future__ import annotations

import os
import signal

import pytest
from celery import Celery

from celery_guard import GuardedTask, InvalidOption
from celery_guard.core.states import State
from celery_guard.embedded import Worker
from tests.acceptance.scenes import ids
from tests.infra.polling import eventually


def begun(kiosk, run_id):
    """Wait until a body has begun; return the worker's process."""

    def worker():
        found = kiosk.traces("parent", run_id)
        assert found, "the body has not begun"
        return found[-1]["worker"]

    return eventually(worker, within=60)


def all_gone(kiosk):
    eventually(lambda: kiosk.workers() == [], within=60)


def test_runs_end_and_the_worker_ends_with_the_block(kiosk):
    with Worker("tests.embedded.apps.kiosk:app"):
        results = [kiosk.tasks.print_ticket.delay(number) for number in range(10)]
        answers = [result.get(timeout=60) for result in results]

    assert answers == [f"ticket {number}" for number in range(10)]
    assert kiosk.workers() == []
    assert list((kiosk.folder / "home" / "messages").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_worker_ends_warm_when_its_web_process_does(kiosk, web_process, number):
    web = web_process()
    run = kiosk.tasks.print_slowly.delay("printer")
    begun(kiosk, run.id)

    web.signal(number)
    kiosk.open_gate("printer")

    all_gone(kiosk)
    assert kiosk.ends(run.id) == [("succeeded", "succeeded", 1)]


def test_a_body_that_outlives_the_patience_is_given_back(kiosk, web_process):
    web = web_process(patience=0.5)
    run = kiosk.tasks.print_slowly.delay("never")
    begun(kiosk, run.id)

    web.kill()

    all_gone(kiosk)
    assert kiosk.run(run.id).state in (State.RETRYING, State.QUEUED)
    with Worker("tests.embedded.apps.kiosk:app"):
        assert kiosk.ends(run.id) == [("succeeded", "succeeded", 2)]


def test_of_two_web_processes_one_has_the_worker_and_the_other_takes_over(kiosk, web_process):
    webs = [web_process(), web_process()]
    first = begun(kiosk, kiosk.tasks.print_slowly.delay("first").id)
    kiosk.open_gate("first")
    others = ids(kiosk.tasks.print_ticket.delay(number) for number in range(4))
    kiosk.ends(*others)
    starters = {trace["worker"]: trace["pid"] for trace in kiosk.traces("started")}

    next(web for web in webs if web.pid == starters[first]).kill()
    eventually(lambda: first not in kiosk.workers(), within=60)

    second = begun(kiosk, kiosk.tasks.print_slowly.delay("first").id)
    assert {first, second} == set(starters)


def test_a_worker_that_is_killed_is_started_again_and_rescues_its_run(kiosk, web_process):
    web_process()
    run = kiosk.tasks.print_slowly.delay("never")
    worker = begun(kiosk, run.id)

    os.kill(worker, signal.SIGKILL)

    assert kiosk.ends(run.id, within=90) == [("succeeded", "succeeded", 2)]


def test_an_app_that_is_not_embedded_is_refused(monkeypatch):
    app = Celery("shop", task_cls=GuardedTask, set_as_current=False)
    monkeypatch.setattr("tests.embedded.apps.other", app, raising=False)

    with pytest.raises(InvalidOption, match=r"tests\.embedded\.apps:other is not embedded: call .*configure"):
        Worker("tests.embedded.apps:other")
