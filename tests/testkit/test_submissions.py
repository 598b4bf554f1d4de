"""What a test can ask about submissions."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from unittest.mock import ANY

import pytest

from celery_guard import InvalidOption


def test_a_submission_is_found_however_its_arguments_are_spelt(guard_kit, shop):
    run = shop.send.delay(42)

    assert guard_kit.assert_submitted(shop.send, 42).id == run.id
    assert guard_kit.assert_submitted("shop.send", order_id=42, copies=1).id == run.id
    assert guard_kit.assert_submitted(shop.send, ANY).id == run.id


@pytest.mark.parametrize(
    "value", [(1, 2), {"a": (1,)}, datetime(2026, 1, 1, tzinfo=timezone.utc), 1.5, None], ids=lambda value: repr(value)
)
def test_what_the_serializer_makes_of_an_argument_counts_as_the_same(guard_kit, shop, value):
    shop.send.delay(value)

    guard_kit.assert_submitted(shop.send, value)


def test_the_run_of_a_submission_says_how_it_was_submitted(guard_kit, shop):
    shop.send.apply_async((42,), idempotency_key="receipt-42", meta={"user": 7}, deadline=60, queue="mail")

    run = guard_kit.assert_submitted(shop.send, 42)

    assert (run.idempotency_key, run.meta, run.queue) == ("receipt-42", {"user": 7}, "mail")
    assert run.deadline_at == guard_kit.clock() + timedelta(seconds=60)


def test_a_failure_lists_what_was_submitted(guard_kit, shop):
    shop.send.apply_async((41,), idempotency_key="receipt-41")
    guard_kit.run_inline(shop.fail.delay("permanent"))

    with pytest.raises(AssertionError) as failure:
        guard_kit.assert_submitted(shop.send, 42)

    assert str(failure.value).splitlines() == [
        "shop.send(42) was not submitted. What was:",
        "  shop.send(41)  queued, key 'receipt-41'",
        "  shop.fail('permanent')  failed, failed_non_retryable",
    ]


def test_a_failure_says_when_nothing_was_submitted(guard_kit, shop):
    with pytest.raises(
        AssertionError, match=r"shop.send\(order_id=42\) was not submitted. What was:\n  nothing at all"
    ):
        guard_kit.assert_submitted(shop.send, order_id=42)


def test_a_task_can_be_expected_not_to_be_submitted(guard_kit, shop):
    guard_kit.assert_not_submitted(shop.send)
    shop.send.delay(42)

    with pytest.raises(AssertionError, match=r"shop.send was submitted:\n  shop.send\(42\)  queued"):
        guard_kit.assert_not_submitted(shop.send)


def test_of_several_runs_the_latest_is_returned_and_all_are_listed(guard_kit, shop):
    shop.send.delay(42)
    latest = shop.send.delay(42)
    shop.pay.delay()

    assert guard_kit.assert_submitted(shop.send, 42).id == latest.id
    assert [one.args for one in guard_kit.submitted(shop.send)] == [(42,), (42,)]
    assert len(guard_kit.submitted()) == 3


def test_submissions_come_in_their_order(guard_kit, shop):
    for number in range(20):
        shop.send.apply_async((number,), task_id=f"run-{19 - number:02}")

    assert [one.args[0] for one in guard_kit.submitted()] == list(range(20))


def test_a_key_used_twice_is_one_submission(guard_kit, shop):
    for _ in range(2):
        shop.send.apply_async((42,), idempotency_key="receipt-42")

    assert len(guard_kit.submitted(shop.send)) == 1


@pytest.mark.parametrize("task", ["shop.sned", None, 42, len], ids=["a typo", "None", "a number", "a function"])
def test_what_is_no_task_is_refused(guard_kit, shop, task):
    with pytest.raises(InvalidOption, match="must be a task of the app 'shop' or the name of one"):
        guard_kit.assert_submitted(task)


def test_a_task_that_is_not_guarded_is_refused(guard_kit, guard_app):
    from celery import Task

    @guard_app.task(name="shop.plain", base=Task)
    def plain() -> None: ...

    with pytest.raises(InvalidOption, match=r"shop\.plain is not guarded"):
        guard_kit.assert_not_submitted(plain)
