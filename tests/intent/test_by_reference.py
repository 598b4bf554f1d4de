"""Messages that carry a run's id only: the arguments stay in the row."""

from __future__ import annotations

import pytest

from celery_guard import GuardedTask, RetryableError, current_run, redrive

LARGE = "x" * 5_000_000


@pytest.fixture
def shop(open_shop, store_url):
    return open_shop(url=store_url, guard_message="reference")


def size_of(message):
    return len(message.body) + len(str(message.headers))


def test_a_message_is_small_and_the_body_gets_everything(shop, noted):
    @shop.app.task
    def keep(text, *, more):
        noted.append((len(text), more))

    keep.delay(LARGE, more={"a": [1]})
    message = shop.message()

    assert size_of(message) < 10_000
    shop.deliver(message)
    assert noted == [(5_000_000, {"a": [1]})]


def test_before_start_and_the_other_hooks_get_the_arguments(shop, noted):
    class Hooked(GuardedTask):
        abstract = True

        def before_start(self, task_id, args, kwargs):
            noted.append(("before_start", args, kwargs))

        def on_success(self, retval, task_id, args, kwargs):
            noted.append(("on_success", list(args), kwargs))

    @shop.app.task(base=Hooked)
    def keep(text, more=None):
        return None

    keep.delay("text", more=1)
    shop.work()

    assert noted == [("before_start", ["text"], {"more": 1}), ("on_success", ["text"], {"more": 1})]


def test_the_request_shows_the_arguments(shop, noted):
    @shop.app.task(bind=True)
    def keep(self, text):
        noted.append((list(self.request.args), self.request.kwargs))

    keep.delay("text")
    shop.work()

    assert noted == [(["text"], {})]


def test_monitors_see_the_beginning_of_the_arguments(shop):
    @shop.app.task
    def keep(text):
        return None

    keep.delay(LARGE)
    headers = shop.message().headers

    assert headers["argsrepr"].startswith("('xxx") or headers["argsrepr"].startswith("['xxx")
    assert len(headers["argsrepr"]) < 2_000


def test_what_the_caller_shows_in_their_place_is_all_that_is_sent(shop):
    @shop.app.task
    def keep(text): ...

    keep.apply_async((LARGE,), argsrepr="(hidden)", kwargsrepr="{}")
    message = shop.message()

    assert message.headers["argsrepr"] == "(hidden)"
    assert "xxx" not in f"{message.headers}{message.body}"


def test_a_retry_gets_them_again(shop, noted):
    @shop.app.task
    def keep(text):
        noted.append(len(text))
        if current_run().attempt == 1:
            raise RetryableError("busy")

    keep.delay(LARGE)
    shop.work()

    assert noted == [5_000_000] * 2


def test_a_retry_with_other_arguments_gets_those(shop, noted):
    @shop.app.task(bind=True)
    def keep(self, text):
        noted.append(text)
        if text == "first":
            raise self.retry(args=("second",), countdown=0)

    keep.delay("first")
    shop.work()

    assert noted == ["first", "second"]


def test_a_redrive_gets_them_again(shop, noted):
    @shop.app.task
    def keep(text):
        noted.append(len(text))

    old = keep.delay(LARGE)
    shop.work()
    redrive(old.id, app=shop.app)
    shop.dispatch()
    message = shop.message()

    assert size_of(message) < 10_000
    shop.deliver(message)
    assert noted == [5_000_000] * 2


def test_a_task_chooses_for_itself(open_shop, store_url):
    shop = open_shop(url=store_url)

    @shop.app.task(message="reference")
    def small(text):
        return None

    @shop.app.task
    def full(text):
        return None

    small.delay("hidden")
    full.delay("shown")
    first, second = shop.messages()

    assert b"hidden" not in bytes(str(first.body), "utf-8")
    assert "shown" in str(second.decode())


def test_keys_work_as_ever(shop):
    @shop.app.task
    def keep(text):
        return len(text)

    first = keep.apply_async((LARGE,), idempotency_key="k")
    again = keep.apply_async((LARGE,), idempotency_key="k")
    shop.work()

    assert (again.id, again.get()) == (first.id, 5_000_000)


def test_a_chain_hands_its_results_on(shop, noted):
    @shop.app.task
    def make(size):
        return "y" * size

    @shop.app.task
    def keep(text, end):
        noted.append((len(text), end))

    (make.s(100_000) | keep.s("end")).delay()
    shop.work()

    assert noted == [(100_000, "end")]


def test_a_wrong_number_of_arguments_is_refused_at_the_call(shop):
    @shop.app.task
    def keep(text):
        return None

    with pytest.raises(TypeError):
        keep.delay()
