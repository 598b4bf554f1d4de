"""Every way to write a task's body as a coroutine is a way to write a guarded one."""

from __future__ import annotations

import asyncio
import functools

import pytest
from celery import shared_task
from celery.exceptions import Retry
from pydantic import BaseModel

from celery_guard import AttemptsExhausted, GuardedTask, InvalidOption, RetryableError, State, current_run


def test_a_coroutine_function_is_a_body(any_shop):
    @any_shop.app.task
    async def add(x, y):
        await asyncio.sleep(0)
        return x + y

    result = add.delay(1, y=2)
    any_shop.work()

    assert result.get() == 3
    assert any_shop.one().state is State.SUCCEEDED


def test_a_bound_coroutine_sees_its_request_through_awaits(shop):
    @shop.app.task(bind=True)
    async def who(self, greeting):
        await asyncio.sleep(0)
        return f"{greeting} {self.request.id} {current_run().id == self.request.id}"

    result = who.delay("hello")
    shop.work()

    assert result.get() == f"hello {result.id} True"


def test_a_task_class_may_have_a_coroutine_for_its_run(shop):
    class Add(GuardedTask):
        name = "add"

        async def run(self, x, y):
            return x + y

    add = shop.app.register_task(Add())

    assert add.apply((1, 2)).get() == 3


def test_a_shared_task_may_be_a_coroutine(open_shop):
    @shared_task(base=GuardedTask, name="add_soon")
    async def add(x, y):
        return x + y

    shop = open_shop(task_cls=None)
    shop.app.finalize()

    assert shop.app.tasks["add_soon"].apply((1, 2)).get() == 3


def _plain(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def _awaiting(function):
    @functools.wraps(function)
    async def wrapper(*args, **kwargs):
        return await function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize("decorate", [_plain, _awaiting], ids=["plainly", "awaiting"])
def test_a_decorated_coroutine_is_a_body(shop, decorate):
    @shop.app.task
    @decorate
    async def add(x, y):
        return x + y

    assert add.apply((1, 2)).get() == 3


def test_a_coroutine_with_some_arguments_given_is_a_body(shop):
    async def add(x, y):
        return x + y

    class AddTwo(GuardedTask):
        name = "add two"
        run = staticmethod(functools.partial(add, 2))

    assert shop.app.register_task(AddTwo()).apply((1,)).get() == 3


@pytest.mark.parametrize("call", ["plain", "coroutine", "own loop"])
def test_a_tasks_own_call_goes_around_the_coroutine(shop, call):
    class Plain(GuardedTask):
        abstract = True

        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs)

    class Awaiting(GuardedTask):
        abstract = True

        async def __call__(self, *args, **kwargs):
            return await super().__call__(*args, **kwargs)

    class OwnLoop(GuardedTask):
        abstract = True

        def __call__(self, *args, **kwargs):
            return asyncio.run(super().__call__(*args, **kwargs))

    @shop.app.task(base={"plain": Plain, "coroutine": Awaiting, "own loop": OwnLoop}[call])
    async def who():
        await asyncio.sleep(0)
        return current_run().attempt

    assert who.apply().get() == 1


def test_what_a_plain_body_returns_may_be_awaited(shop):
    class Answer:
        def __await__(self):
            yield from asyncio.sleep(0).__await__()
            return current_run().attempt

    @shop.app.task
    def ask():
        return Answer()

    assert ask.apply().get() == 1


# Refused


def test_an_async_generator_is_refused_at_its_definition(shop):
    async def pages():
        yield 1

    with pytest.raises(InvalidOption, match=r"pages: the body is an async generator.*return"):
        shop.app.task(name="pages", lazy=False)(pages)


def test_a_hook_that_nobody_would_await_is_refused_at_its_definition(shop):
    class Hooked(GuardedTask):
        abstract = True

        async def on_failure(self, exc, task_id, args, kwargs, einfo):
            """Never awaited."""

    def work():
        """Have a hook."""

    with pytest.raises(InvalidOption, match="work: on_failure can't be async def"):
        shop.app.task(name="work", base=Hooked, lazy=False)(work)


# Celery's own wrappers


class Busy(Exception):
    """Worth a repeat."""


@pytest.mark.parametrize("error", [Busy, ValueError])
def test_autoretry_sees_what_the_coroutine_raises(shop, error):
    @shop.app.task(bind=True, autoretry_for=(Busy,), retry_kwargs={"max_retries": 2, "countdown": 0}, began=[])
    async def work(self):
        self.began.append(self.request.retries)
        await asyncio.sleep(0)
        raise error("no")

    result = work.apply()

    assert isinstance(result.result, AttemptsExhausted if error is Busy else ValueError)
    assert work.began == ([0, 1, 2] if error is Busy else [0])
    assert {attempt.rule for attempt in shop.one().attempts} == {"celery_retry" if error is Busy else "python_value"}


def test_a_coroutine_may_ask_for_a_retry_itself(shop):
    @shop.app.task(bind=True, autoretry_for=(Exception,), began=[])
    async def work(self):
        self.began.append(self.request.retries)
        await asyncio.sleep(0)
        if len(self.began) == 1:
            raise self.retry(countdown=0)
        with pytest.raises(Retry):
            self.retry()
        return "done"

    assert work.apply().get() == "done"
    assert work.began == [0, 1]


class Order(BaseModel):
    number: int
    note: str | None = None


def test_models_come_in_and_go_out_of_a_coroutine(any_shop):
    @any_shop.app.task(pydantic=True, pydantic_dump_kwargs={"exclude_none": True})
    async def ship(order: Order) -> Order:
        await asyncio.sleep(0)
        return Order(number=order.number + 1)

    result = ship.delay(Order(number=7))
    any_shop.work()

    assert result.get() == {"number": 8}


def test_a_model_that_no_annotation_promised_is_as_unwelcome_as_from_a_plain_body(open_shop):
    shop = open_shop(result_backend="cache+memory://")

    @shop.app.task(pydantic=True)
    async def ship(order: Order):
        return order

    @shop.app.task(pydantic=True)
    def ship_plainly(order: Order):
        return order

    for task in (ship, ship_plainly):
        task.delay(Order(number=7))
    shop.work()

    assert [(run.state, run.attempts[0].rule) for run in shop.rows()] == [(State.FAILED, "result_not_serializable")] * 2


# Direct calls


def test_a_direct_call_inside_a_run_returns_the_coroutine_which_belongs_to_that_run(shop):
    @shop.app.task
    async def inner():
        await asyncio.sleep(0)
        return current_run().id

    @shop.app.task
    async def outer():
        called = inner()
        assert asyncio.iscoroutine(called)
        return [await called, await asyncio.create_task(inner())]

    result = outer.apply()

    assert result.get() == [result.id] * 2
    assert len(shop.rows()) == 1


def test_a_direct_call_of_the_task_itself_returns_the_coroutine(shop):
    @shop.app.task(bind=True)
    async def countdown(self, n):
        return [n, *(await self(n - 1))] if n else []

    assert countdown.apply((3,)).get() == [3, 2, 1]
    assert len(shop.rows()) == 1


def test_a_direct_call_outside_of_a_run_is_a_coroutine_with_all_the_time_in_the_world(shop):
    @shop.app.task
    async def work():
        await asyncio.sleep(0)
        run = current_run()
        await run.check_async()
        await run.complete_in_async(None)
        return await run.step_async("double", _double, 4), run.timeout(at_most=7)

    assert asyncio.run(work()) == (8, 7)
    assert shop.rows() == []


async def _double(number):
    return 2 * number


# Eager


def test_an_eager_run_inside_a_running_loop_has_a_thread_of_its_own(shop):
    @shop.app.task(bind=True, raising=[RetryableError("busy")])
    async def work(self, value):
        if self.raising:
            raise self.raising.pop()
        await asyncio.sleep(0)
        return value, self.request.id, current_run().id, self.app.current_task.name

    async def main():
        return work.apply(("x",))

    result = asyncio.run(main())

    assert result.get() == ("x", result.id, result.id, work.name)
    assert shop.one().attempt == 2


def test_an_eager_run_inside_another_coroutine_is_its_child(shop):
    shop.app.conf.task_always_eager = True

    @shop.app.task
    async def inner():
        return current_run().parent_id

    @shop.app.task
    async def outer():
        return inner.delay().get(), (await asyncio.to_thread(inner.delay)).get()

    result = outer.delay()

    assert result.get() == (result.id, result.id)
    assert len(shop.rows()) == 3
