"""A worker reads what a message says of its run, and goes on whatever that is."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from celery.utils.imports import symbol_by_name

from celery_guard.flow.publish import HEADER


@pytest.fixture
def receive(shop):
    """Take a message as a worker does, its header changed."""

    @shop.app.task(name="work")
    def work(): ...

    def receive(**changes):
        work.delay()
        message = shop.message()
        message.headers[HEADER] = {**message.headers[HEADER], **changes}
        return symbol_by_name(work.Request)(message, app=shop.app, task=shop.app.tasks["work"], hostname="w")

    return receive


def test_the_deadline_is_shown_as_what_expires_and_nothing_expires_by_it(receive):
    request = receive(deadline="2020-01-01T00:00:00+00:00")

    assert request.expires == datetime(2020, 1, 1, tzinfo=timezone.utc)
    assert not request.maybe_expire()
    assert not request.revoked()


@pytest.mark.parametrize("deadline", ["soon", 42, None, "2020-01-01T00:00:00"], ids=repr)
def test_a_deadline_that_is_none_is_no_limit_of_its_own(receive, deadline):
    request = receive(deadline=deadline)

    assert request.expires is None
    assert request.time_limits[1] > 80_000


@pytest.mark.parametrize(
    ("event", "may_be_a_copy"), [("created", False), ("retry", False), ("republish", True), ("deliver", True)]
)
def test_a_message_that_is_sent_again_may_be_a_copy(receive, event, may_be_a_copy):
    assert receive(event=event).may_be_a_copy is may_be_a_copy


@pytest.mark.parametrize("header", ["text", ["a", "list"], None], ids=repr)
def test_a_header_that_is_none_of_ours_is_not_read(shop, header):
    @shop.app.task(name="work")
    def work(): ...

    work.delay()
    message = shop.message()
    message.headers[HEADER] = header
    request = symbol_by_name(work.Request)(message, app=shop.app, task=shop.app.tasks["work"], hostname="w")

    assert (request.expires, request.is_delivery, request.may_be_a_copy) == (None, False, False)
