"""Each move of a run is told once: one log record, and a signal from its start on."""

from __future__ import annotations

from datetime import timedelta

import pytest

from celery_guard import Snooze, State, cancel, current_run, redrive, signals, submit_many
from celery_guard.core.decide import Lost
from celery_guard.flow.rescue import Rescuer, settle_for_child
from celery_guard.flow.settle import lost_fault
from celery_guard.flow.sweep import Sweeper
from celery_guard.observe.logs import logger

QUEUED, RUNNING, RETRYING = "queued", "running", "retrying"


def states(told):
    return [transition.state.value for transition in told]


def logged_states(logged):
    return [record.state for record in logged()]


def test_a_success_is_told_from_its_submission_to_its_end(shop, heard, logged):
    @shop.app.task
    def add(x, y):
        return x + y

    run = add.delay(1, 2)
    shop.work()

    assert states(heard) == [RUNNING, "succeeded"]
    assert [(record.task_id, record.state, record.attempt, record.made_by) for record in logged()] == [
        (run.id, "queued", 0, "submitter"),
        (run.id, "running", 1, "child"),
        (run.id, "succeeded", 1, "child"),
    ]


def test_each_attempt_is_told(shop, heard, logged):
    @shop.app.task(max_attempts=2, retryable=(OSError,))
    def fetch():
        raise OSError("no route")

    fetch.delay()
    shop.work()

    assert states(heard) == [RUNNING, RETRYING, RUNNING, "dead"]
    assert logged_states(logged) == [QUEUED, *states(heard)]
    dead = logged()[-1]
    assert (dead.reason, dead.attempt, dead.max_attempts) == ("failed_due_max_attempts", 2, 2)
    assert (dead.error_category, dead.error_type) == ("retryable", "OSError")
    assert dead.rule == heard[-1].fault.rule
    assert dead.levelname == "ERROR"


def test_a_retry_says_when_it_goes_on(shop, heard, logged):
    @shop.app.task(bind=True)
    def wait(self):
        if self.request.retries == 0:
            raise self.retry(countdown=30)

    run = wait.delay()
    shop.deliver(shop.message())

    waits = shop.run(run.id)
    assert heard[-1].next_retry_at == waits.next_retry_at
    assert logged()[-1].next_retry_at == waits.next_retry_at.isoformat()
    assert logged()[-1].deadline_at == waits.deadline_at.isoformat()


def test_a_snooze_is_told_and_costs_no_attempt(shop, heard, logged):
    @shop.app.task
    def poll():
        raise Snooze(30)

    poll.delay()
    shop.deliver(shop.message())

    assert [(told.state, told.attempt) for told in heard] == [(State.RUNNING, 1), (State.RETRYING, 0)]
    assert logged_states(logged) == [QUEUED, RUNNING, RETRYING]


def test_a_countdown_is_told_as_a_moment(shop, logged):
    @shop.app.task
    def later():
        pass

    run = later.apply_async(countdown=60)

    (queued,) = logged()
    assert queued.next_retry_at == shop.run(run.id).next_retry_at.isoformat()


def test_what_the_sweep_ends_is_told(any_shop, heard, logged):
    @any_shop.app.task(deadline=60)
    def late():
        pass

    late.apply_async(meta={"order": 7})
    any_shop.clock.advance(61)
    Sweeper(any_shop.guard).waiting()
    Sweeper(any_shop.guard).waiting()

    (dead,) = heard
    assert (dead.type, dead.state, dead.reason.value) == (late.name, State.DEAD, "failed_due_deadline")
    assert (dead.meta, dead.made_by) == ({"order": 7}, "worker")
    assert logged_states(logged) == [QUEUED, "dead"]


def test_a_message_that_comes_too_late_is_told_once(shop, heard, logged):
    @shop.app.task(deadline=60)
    def late():
        pass

    late.delay()
    shop.clock.advance(61)
    shop.work()

    assert states(heard) == ["dead"]
    assert logged_states(logged) == [QUEUED, "dead"]


def test_a_cancelled_wait_is_told_once(any_shop, heard, logged):
    @any_shop.app.task
    def send():
        pass

    run = send.apply_async(meta={"user": "ada"})
    for _ in range(2):
        cancel(run.id, app=any_shop.app)

    (cancelled,) = heard
    assert (cancelled.state, cancelled.made_by, cancelled.meta) == (State.CANCELLED, "canceller", {"user": "ada"})
    assert logged_states(logged) == [QUEUED, "cancelled"]


def test_a_cancelled_attempt_is_told_by_the_canceller_alone(shop, heard, logged):
    @shop.app.task
    def send():
        cancel(current_run().id, app=shop.app)

    send.delay()
    shop.work()

    assert states(heard) == [RUNNING, "cancelled"]
    assert logged_states(logged) == [QUEUED, RUNNING, "cancelled"]


def test_an_attempt_of_a_lost_process_is_told_by_who_rescues_it(shop, heard, logged):
    @shop.app.task
    def send():
        pass

    run = send.apply_async(meta={"user": "ada"})
    shop.guard.runs.claim(run.id, "token", worker_id="gone", fingerprint=None)
    (row,) = shop.guard.runs.running_on("gone")

    for _ in range(2):
        Rescuer(shop.guard).end(row, "its worker stopped beating")

    (retrying,) = heard
    assert (retrying.state, retrying.made_by, retrying.meta) == (State.RETRYING, "worker", {"user": "ada"})
    assert (logged()[-1].rule, logged()[-1].error_type) == ("worker_lost", "WorkerLost")


def test_a_child_lost_before_its_claim_is_told_as_one_move(shop, heard):
    @shop.app.task
    def send():
        pass

    run = send.delay()

    settle_for_child(shop.guard, send, run.id, "token", Lost(lost_fault("worker_lost", "gone")), attempts_before=0)

    assert states(heard) == [RETRYING]


def test_a_settlement_that_lost_is_not_told(shop, heard):
    @shop.app.task
    def send():
        shop.sql("UPDATE task_run SET claim_token = 'another'")

    send.delay()
    shop.deliver(shop.message())

    assert states(heard) == [RUNNING]


def test_a_copy_is_not_told(shop, heard, logged):
    @shop.app.task
    def send():
        pass

    send.delay()
    message = shop.message()
    shop.deliver(message)
    before = len(heard), len(logged())

    shop.deliver(message)

    assert (len(heard), len(logged())) == before


def test_a_redrive_is_told_as_a_new_run(shop, logged):
    @shop.app.task
    def send():
        pass

    old = send.delay()
    shop.work()

    new = redrive(old.id, app=shop.app)

    assert (logged()[-1].task_id, logged()[-1].state) == (new.id, "queued")


def test_a_submission_that_meets_its_key_is_not_told_again(shop, logged):
    @shop.app.task
    def send():
        pass

    for _ in range(2):
        send.apply_async(idempotency_key="once")

    assert logged_states(logged) == [QUEUED]


def test_many_submissions_are_told_one_by_one(shop, logged):
    @shop.app.task
    def send(number):
        pass

    runs = submit_many(send, [[1], [2], [3]])

    assert sorted(record.task_id for record in logged()) == sorted(run.id for run in runs)


def test_a_row_that_takes_over_an_ending_is_told(shop, heard, logged):
    @shop.app.task
    def send():
        pass

    send.apply_async(idempotency_key="once")
    send.apply_async(idempotency_key="once", task_id="copy")
    shop.deliver(shop.message())
    Sweeper(shop.guard).followers()

    assert [told.run_id for told in heard if told.state is State.SUCCEEDED][-1] == "copy"
    assert [record.state for record in logged() if record.task_id == "copy"] == ["queued", "succeeded"]


def test_an_eager_run_is_told_too(shop, heard, logged):
    @shop.app.task
    def send():
        pass

    send.apply()

    assert states(heard) == [RUNNING, "succeeded"]
    assert logged_states(logged) == [QUEUED, *states(heard)]


# What watchers may do


@pytest.mark.parametrize("name", ["run_started", "run_retrying", "run_finished"])
def test_a_receiver_that_raises_harms_nothing(shop, heard, name):
    @shop.app.task(bind=True, max_attempts=3)
    def send(self):
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return "sent"

    def broken(**_):
        raise LookupError("a hook of the user's")

    signal = getattr(signals, name)
    signal.connect(broken)
    try:
        run = send.delay()
        shop.work()
    finally:
        signal.disconnect(broken)

    assert shop.run(run.id).state is State.SUCCEEDED
    assert states(heard) == [RUNNING, RETRYING, RUNNING, "succeeded"]


def test_the_sender_is_the_task(shop):
    senders = []

    @shop.app.task
    def send():
        pass

    @shop.app.task
    def other():
        pass

    def listen(sender, **_):
        senders.append(sender)

    signals.run_finished.connect(listen, sender=shop.app.tasks[send.name])
    try:
        send.delay()
        other.delay()
        shop.work()
    finally:
        signals.run_finished.disconnect(listen, sender=shop.app.tasks[send.name])

    assert senders == [shop.app.tasks[send.name]]


def test_a_log_handler_that_raises_harms_nothing(shop, heard):
    @shop.app.task
    def send():
        return 1

    def broken(record):
        raise LookupError("a filter of the user's")

    logger.addFilter(broken)
    try:
        run = send.delay()
        shop.work()
    finally:
        logger.removeFilter(broken)

    assert shop.run(run.id).state is State.SUCCEEDED
    assert states(heard) == [RUNNING, "succeeded"]


# What may be read in a log


def test_only_the_named_entries_of_meta_are_logged(open_shop, logged):
    shop = open_shop(guard_log_meta=("request_id", "tenant"))

    @shop.app.task
    def send():
        pass

    send.apply_async(meta={"request_id": "r-1", "card": "4111"})
    shop.work()

    assert [record.meta for record in logged()] == [{"request_id": "r-1"}] * 3


def test_no_argument_result_or_error_text_is_logged(shop, logged, caplog):
    @shop.app.task(bind=True, max_attempts=2)
    def send(self, password):
        if self.request.retries == 0:
            raise OSError("refused hunter2")
        return "hunter2"

    send.delay("hunter2")
    shop.work()

    assert len(logged()) == 5
    assert not [record for record in logged() if "hunter2" in str(vars(record))]


def test_a_record_reads_well(shop, logged):
    @shop.app.task(name="shop.send", max_attempts=1, retryable=(OSError,), deadline=timedelta(minutes=1))
    def send():
        raise OSError("no route")

    send.apply_async(task_id="run-1")
    shop.work()

    assert [record.getMessage() for record in logged()] == [
        "shop.send[run-1] queued",
        "shop.send[run-1] running, attempt 1 of 1",
        "shop.send[run-1] dead, failed_due_max_attempts after attempt 1 of 1: OSError (task_retryable)",
    ]
