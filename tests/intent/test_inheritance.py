"""What a run hands down to those that it submits, and to those that follow it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from celery import chain, group

from celery_guard import NonRetryableError, current_run


@pytest.fixture
def child(any_shop):
    @any_shop.app.task(name="child")
    def child(*args):
        return 1

    return child


@pytest.fixture
def regret(any_shop):
    """An errback that is a run of its own: it takes an id."""

    @any_shop.app.task(name="child")
    def regret(failed_id):
        return failed_id

    return regret


@pytest.fixture
def parent(any_shop):
    """A task that has a minute, and does what it is told."""

    def make(work):
        @any_shop.app.task(name="parent", deadline=timedelta(minutes=1))
        def parent():
            return work()

        return parent

    return make


@pytest.fixture
def rows(any_shop):
    """Run everything; return the row of the parent, and those of its children."""

    def rows():
        any_shop.work()
        (above,) = [run for run in any_shop.rows() if run.type == "parent"]
        return above, [run for run in any_shop.rows() if run.type == "child"]

    return rows


@pytest.mark.parametrize("form", ["delay", "apply_async", "signature", "chain", "group"])
def test_what_a_body_submits_ends_no_later_than_it(parent, child, rows, form):
    forms = {
        "delay": lambda: child.delay() and None,
        "apply_async": lambda: child.apply_async() and None,
        "signature": lambda: child.s().apply_async() and None,
        "chain": lambda: chain(child.s(), child.s())() and None,
        "group": lambda: group(child.s(), child.s())() and None,
    }
    parent(forms[form]).delay()

    above, below = rows()

    assert below
    assert {run.deadline_at for run in below} == {above.deadline_at}
    assert {run.root_id for run in below} == {above.id}


def test_a_child_keeps_its_own_deadline_when_that_is_earlier(parent, child, rows):
    parent(lambda: child.apply_async(deadline=5) and None).delay()

    above, (below,) = rows()

    assert below.deadline_at < above.deadline_at - timedelta(seconds=30)


def test_a_child_may_outlive_its_parent_when_it_is_told_to(parent, child, rows):
    parent(lambda: child.apply_async(inherit_deadline=False) and None).delay()

    above, (below,) = rows()

    assert below.deadline_at > above.deadline_at + timedelta(hours=1)
    assert below.parent_id == above.id


@pytest.mark.parametrize("form", ["link", "chain"])
def test_what_follows_a_success_ends_no_later_than_it(parent, child, rows, form):
    task = parent(lambda: None)
    task.apply_async(link=child.s()) if form == "link" else chain(task.s(), child.s()).delay()

    above, (below,) = rows()

    assert below.deadline_at == above.deadline_at
    assert below.parent_id == above.id


def test_a_whole_chain_ends_no_later_than_its_first_task(parent, child, rows):
    chain(parent(lambda: None).s(), child.s(), child.s(), child.s()).delay()

    above, below = rows()

    assert len(below) == 3
    assert {run.deadline_at for run in below} == {above.deadline_at}
    assert {run.root_id for run in below} == {above.id}


def test_a_follower_of_a_chain_may_outlive_it_when_its_signature_says_so(parent, child, rows):
    chain(parent(lambda: None).s(), child.s().set(inherit_deadline=False)).delay()

    above, (below,) = rows()

    assert below.deadline_at > above.deadline_at + timedelta(hours=1)


def test_an_errback_inherits_no_deadline(parent, regret, rows):
    def fail():
        raise NonRetryableError("no")

    parent(fail).apply_async(link_error=regret.s())

    above, (below,) = rows()

    assert below.deadline_at > above.deadline_at + timedelta(hours=1)


def test_what_an_errback_follows_may_be_over_by_its_deadline(any_shop, regret):
    @any_shop.app.task(name="parent", deadline=timedelta(minutes=1))
    def parent():
        any_shop.clock.advance(120)

    parent.apply_async(link_error=regret.s())
    any_shop.work()

    assert {run.type: run.state.value for run in any_shop.rows()} == {"parent": "dead", "child": "succeeded"}


def test_meta_is_handed_down_to_an_errback(parent, regret, rows):
    def fail():
        raise NonRetryableError("no")

    parent(fail).apply_async(link_error=regret.s(), meta={"request": "r-1"})

    _, (below,) = rows()

    assert below.meta == {"request": "r-1"}


def test_a_grandchild_belongs_to_the_same_root(any_shop):
    @any_shop.app.task(name="leaf")
    def leaf():
        return None

    @any_shop.app.task(name="branch")
    def branch():
        leaf.delay()

    @any_shop.app.task(name="root")
    def root():
        branch.delay()

    root.delay()
    any_shop.work()

    by_type = {run.type: run for run in any_shop.rows()}
    assert by_type["leaf"].parent_id == by_type["branch"].id
    assert by_type["leaf"].root_id == by_type["branch"].root_id == by_type["root"].id


def test_a_parent_past_its_deadline_submits_nothing(any_shop, child, noted):
    @any_shop.app.task(name="parent", deadline=timedelta(minutes=1))
    def parent():
        any_shop.clock.advance(120)
        try:
            child.delay()
        except Exception as error:
            noted.append(type(error).__name__)
            raise

    parent.delay()
    any_shop.work()

    assert noted == ["DeadlineExceeded"]
    assert [run.type for run in any_shop.rows()] == ["parent"]


def test_a_retry_does_not_move_what_children_inherit(any_shop, child):
    @any_shop.app.task(bind=True, name="parent", deadline=timedelta(minutes=1))
    def parent(self):
        if current_run().attempt == 1:
            raise self.retry(countdown=10)
        child.delay()

    parent.delay()
    any_shop.work()

    above, below = any_shop.rows()
    assert below.deadline_at == above.deadline_at
