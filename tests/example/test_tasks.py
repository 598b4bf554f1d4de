"""The shop's tasks, tested with the kit as any project would."""

from __future__ import annotations

from datetime import timedelta

import pytest

from example_project.outside_world import busy, gone, ok, slow_down

ORDER = {"lines": [[1001, "book", 2, "19.90"]]}


@pytest.fixture
def tasks(guard_app):
    """The shop's tasks."""
    from example_project import tasks

    return tasks


def test_an_export_waits_until_its_partner_answers(guard_kit, tasks, world, home):
    opened = world({"/orders/1001": [busy(), busy(), ok(ORDER)]})

    run = guard_kit.run_inline(tasks.export_order.delay(1001))

    assert (run.state, run.attempt) == ("succeeded", 3)
    assert (home / "exports/order-1001.csv").read_text().splitlines() == [
        "order,goods,quantity,price",
        "1001,book,2,19.90",
    ]
    assert opened.visits["/orders/1001"] == 3


def test_a_receipt_is_sent_when_the_mailbox_said(guard_kit, tasks, world):
    world({"/mailboxes/ada@example.org": [slow_down(seconds=20), ok({})]})
    before = guard_kit.clock()

    run = guard_kit.run_inline(tasks.send_receipt.delay(1003, "ada@example.org"))

    assert run.attempt == 2
    assert guard_kit.clock() - before >= timedelta(seconds=20)


def test_a_bad_address_is_not_tried_again(guard_kit, tasks, world):
    opened = world({"/mailboxes/nobody@example.org": [gone()]})

    run = guard_kit.run_inline(tasks.send_receipt.delay(1005, "nobody@example.org"))

    assert (run.state, run.error_type, sum(opened.visits.values())) == ("failed", "BadAddress", 1)


def test_a_coupon_is_worth_nothing_after_its_deadline(guard_kit, tasks, world, home):
    opened = world({})
    result = tasks.send_coupon.apply_async(("ada@example.org", 15), deadline=timedelta(seconds=3))

    guard_kit.clock.advance(3)
    run = guard_kit.run_inline(result)

    assert run.terminal_reason == "failed_due_deadline"
    assert not opened.visits


def test_an_export_survives_its_worker(guard_kit, tasks, world, home):
    world({"/orders/1001": [ok(ORDER)]})
    guard_kit.crash_at("after_body")

    run = guard_kit.run_inline(tasks.export_order.delay(1001))

    assert (run.state, run.attempt) == ("succeeded", 2)
    assert len(list((home / "exports").iterdir())) == 1


def test_a_transfer_is_never_repeated(guard_kit, tasks, world):
    opened = world({"/transfers/paper-mill": [ok({})]})
    guard_kit.crash_at("after_body")

    run = guard_kit.run_inline(tasks.pay_supplier.delay("paper-mill", 129_00))

    assert run.terminal_reason == "failed_due_worker_loss"
    assert opened.visits["/transfers/paper-mill"] == 1
