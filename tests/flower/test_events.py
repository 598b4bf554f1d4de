"""Flower hears of runs that wait, and of endings that no child tells; a dropped copy is not shown as work."""

from __future__ import annotations

from datetime import timedelta

from celery_guard import cancel
from celery_guard.flow.guard import guard_of
from celery_guard.flow.publish import message_header, publish
from tests.infra.polling import eventually

LONG = 60.0


def shows(heard, run_id, state, result=None):
    """Wait until a run is shown in a state."""

    def assertion():
        task = heard.task(run_id)
        assert (task.state, task.result) == (state, result), heard.told(run_id)
        return task

    return eventually(assertion, within=LONG)


def test_a_run_is_shown_as_what_it_is_wherever_its_moves_are_made(life, heard):
    waits = life.tasks.succeed.apply_async(countdown=3_600)
    shows(heard, waits.id, "PENDING", f"next attempt at {waits.run.next_retry_at:%Y-%m-%d %H:%M:%S} UTC")
    assert heard.workers() == set()
    worker = life.worker()
    revoked = life.tasks.succeed.apply_async(countdown=3_600)
    late = life.tasks.succeed.apply_async(queue="nobody-listens", deadline=timedelta(seconds=1))
    retrying, lost, refused = (
        life.tasks.retry_in.delay(3_600),
        life.tasks.die_once.delay("done"),
        life.tasks.refuse.delay(),
    )

    cancel(waits.id, app=life.app)
    life.app.control.revoke(revoked.id)

    assert not shows(heard, waits.id, "REVOKED", "cancelled").started
    shows(heard, revoked.id, "REVOKED", "cancelled")
    assert shows(heard, late.id, "FAILURE", "failed_due_deadline").started is None
    shown = shows(heard, retrying.id, "RETRY", f"next attempt at {retrying.run.next_retry_at:%Y-%m-%d %H:%M:%S} UTC")
    assert shown.eta == retrying.run.next_retry_at.isoformat()
    assert shown.expires == retrying.run.deadline_at.isoformat()
    shows(heard, refused.id, "FAILURE", "failed_non_retryable")
    shows(heard, lost.id, "SUCCESS", "'done'")
    assert [told for told in heard.told(lost.id) if told in ("started", "retried", "succeeded")] == [
        "started",
        "retried",
        "started",
        "succeeded",
    ]
    assert heard.workers() == {worker.hostname}


def test_a_copy_that_is_dropped_is_not_shown_as_work(life, heard):
    life.worker()
    done, retrying = life.tasks.succeed.delay("done"), life.tasks.retry_in.delay(3_600)
    began = shows(heard, done.id, "SUCCESS", "'done'").started
    next_attempt = eventually(lambda: heard.task(retrying.id).state == "RETRY" and heard.task(retrying.id).result, LONG)

    for result, event in ((done, "republish"), (retrying, "created")):
        send_copy(life, result, event)

    eventually(lambda: heard.told(done.id).count("received") == 2, LONG)
    eventually(lambda: heard.told(retrying.id).count("retried") == 2, LONG)
    assert shows(heard, done.id, "SUCCESS", "'done'").started == began
    assert heard.told(done.id).count("started") == heard.told(done.id).count("succeeded") == 1
    shows(heard, retrying.id, "RETRY", next_attempt)


def test_a_message_sent_again_for_lost_shows_its_work(life, heard):
    life.worker()
    result = life.tasks.hold.apply_async(("go", "done"), countdown=3_600)
    guard_of(life.app).runs.requeue(result.id)

    send_copy(life, result, "republish", args=["go", "done"])

    eventually(lambda: heard.task(result.id).state == "STARTED", LONG)
    life.open_gate("go")
    shows(heard, result.id, "SUCCESS", "'done'")


def send_copy(life, result, event, args=()):
    """Send the message of a run once more."""
    run = result.run
    header = message_header(run.id, event, deadline_at=run.deadline_at, fingerprint="", attempt=run.attempt)
    publish(life.app, run.id, run.type, list(args), {}, {"queue": life.app.conf.task_default_queue}, header)
