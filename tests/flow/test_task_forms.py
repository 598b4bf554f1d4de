"""Every way to write a Celery task is a way to write a guarded one."""

from __future__ import annotations

from typing import ClassVar

import pytest
from celery import Celery, Task, shared_task
from pydantic import BaseModel

from celery_guard import GuardedTask, InvalidOption, RetryableError, State, current_run
from celery_guard.flow.guard import guard_of

# The forms


def test_a_task_of_an_app_whose_task_class_is_ours_is_guarded(any_shop):
    @any_shop.app.task
    def add(x, y):
        return x + y

    result = add.delay(1, y=2)
    any_shop.work()

    assert result.get() == 3
    assert any_shop.one().state is State.SUCCEEDED


def test_a_task_with_our_base_is_guarded_in_any_app(open_shop):
    shop = open_shop(task_cls=None)

    @shop.app.task(base=GuardedTask)
    def add(x, y):
        return x + y

    result = add.delay(1, 2)
    shop.work()

    assert result.get() == 3
    assert shop.one().type == add.name


def test_a_task_without_our_base_is_celerys_own(open_shop):
    shop = open_shop(task_cls=None)

    @shop.app.task
    def add(x, y):
        return x + y

    add.delay(1, 2)

    assert "guard" not in shop.message().headers
    assert add.apply((1, 2)).get() == 3
    assert shop.rows() == []


def test_a_class_based_task_is_guarded(any_shop):
    class Add(GuardedTask):
        name = "add"

        def run(self, x, y):
            return x + y

    add = any_shop.app.register_task(Add())

    result = add.delay(1, 2)
    any_shop.work()

    assert result.get() == 3
    assert any_shop.one().type == "add"


def test_a_bound_task_sees_its_request(shop):
    @shop.app.task(bind=True)
    def who(self, greeting):
        return f"{greeting} {self.request.id}"

    result = who.delay("hello")
    shop.work()

    assert result.get() == f"hello {result.id}"


def test_a_shared_task_is_guarded_in_each_app_with_that_apps_database(open_shop, tmp_path):
    @shared_task(base=GuardedTask, name="add")
    def add(x, y):
        return x + y

    one, other = (open_shop(url=f"sqlite:///{tmp_path / name}.db", task_cls=None) for name in ("one", "other"))
    for shop in (one, other):
        shop.app.finalize()

    one.app.tasks["add"].delay(1, 2)

    assert [run.type for run in one.rows()] == ["add"]
    assert other.rows() == []


def test_a_shared_task_called_by_its_own_name_belongs_to_the_current_app(open_shop, tmp_path):
    @shared_task(base=GuardedTask, name="sum")
    def add(x, y):
        return x + y

    one, other = (open_shop(url=f"sqlite:///{tmp_path / name}.db", task_cls=None) for name in ("one", "other"))
    other.app.set_current()

    add.delay(1, 2)

    assert one.rows() == []
    assert [run.type for run in other.rows()] == ["sum"]


def test_a_task_defined_after_the_app_was_finalised_is_guarded(shop):
    shop.app.finalize()

    @shop.app.task
    def add(x, y):
        return x + y

    result = add.delay(1, 2)
    shop.work()

    assert result.get() == 3


def test_a_task_that_ignores_its_result_ends_in_its_row(any_shop):
    @any_shop.app.task(ignore_result=True)
    def add(x, y):
        return x + y

    result = add.delay(1, 2)
    any_shop.work()

    assert result.get() is None
    assert any_shop.one().state is State.SUCCEEDED


def test_celerys_own_tasks_are_not_guarded(shop):
    shop.app.finalize()

    task = shop.app.tasks["celery.accumulate"]
    answer = task.apply((1, 2)).get()

    assert isinstance(task, GuardedTask)
    assert answer == (1, 2)
    assert shop.rows() == []


def test_celerys_own_tasks_keep_celerys_way_to_acknowledge(shop):
    shop.app.finalize()

    task = shop.app.tasks["celery.chord_unlock"]

    assert (task.acks_late, task.track_started) == (False, False)
    assert task.max_retries is None


def test_a_message_of_celerys_own_task_carries_no_header_of_ours(shop):
    shop.app.finalize()

    shop.app.tasks["celery.accumulate"].delay(1)

    assert "guard" not in shop.message().headers


# Pydantic


class Order(BaseModel):
    number: int
    note: str = ""


@pytest.fixture
def ship(any_shop):
    attempts = []

    @any_shop.app.task(name="ship", pydantic=True, bind=True)
    def ship(self, order: Order) -> Order:
        attempts.append(order)
        if order.note == "retry" and len(attempts) == 1:
            raise RetryableError("busy")
        return Order(number=order.number + 1)

    ship.attempts = attempts
    return any_shop.app.tasks["ship"]


def test_a_model_passed_by_the_caller_arrives_as_a_model(ship, any_shop):
    result = ship.delay(Order(number=7))
    any_shop.work()

    assert ship.attempts == [Order(number=7)]
    assert result.get() == {"number": 8, "note": ""}


def test_a_model_survives_a_retry(ship, any_shop):
    result = ship.delay(Order(number=7, note="retry"))
    any_shop.work()

    assert ship.attempts == [Order(number=7, note="retry")] * 2
    assert result.run.attempt == 2


def test_a_dict_that_is_no_model_fails_for_good_at_the_first_attempt(ship, any_shop):
    result = ship.delay({"number": "seven"})
    any_shop.work()

    assert ship.attempts == []
    assert (result.run.state, result.run.attempt) == (State.FAILED, 1)
    assert "ValidationError" in result.run.last_error


# A user's own __call__


class Counted(Task):
    abstract = True
    calls: ClassVar[list] = []

    def __call__(self, *args, **kwargs):
        self.calls.append("call")
        return super().__call__(*args, **kwargs)


def test_a_call_of_a_subclass_that_calls_ours_runs_inside_the_attempt(any_shop):
    class Noted(GuardedTask):
        abstract = True
        seen: ClassVar[list] = []

        def __call__(self, *args, **kwargs):
            self.seen.append((current_run().attempt, self.request.id))
            return super().__call__(*args, **kwargs)

    @any_shop.app.task(base=Noted, bind=True)
    def add(self, x, y):
        self.seen.append((current_run().attempt, self.request.id))
        return x + y

    result = add.delay(1, 2)
    any_shop.work()

    assert result.get() == 3
    assert Noted.seen == [(1, result.id)] * 2


def test_a_call_of_a_subclass_that_runs_the_body_itself_is_guarded_too(any_shop):
    class Direct(GuardedTask):
        abstract = True

        def __call__(self, *args, **kwargs):
            return self.run(*args, **kwargs) * 10

    @any_shop.app.task(base=Direct)
    def add(x, y):
        return x + y

    result = add.delay(1, 2)
    any_shop.work()

    assert result.get() == 30
    assert any_shop.one().attempt == 1


def test_a_call_that_comes_after_ours_in_the_order_of_classes_is_called(any_shop):
    class Both(GuardedTask, Counted):
        abstract = True
        calls: ClassVar[list] = []

    @any_shop.app.task(base=Both)
    def add(x, y):
        return x + y

    result = add.delay(1, 2)
    any_shop.work()

    assert result.get() == 3
    assert Both.calls == ["call"]


def test_a_call_that_comes_before_ours_in_the_order_of_classes_is_called(any_shop):
    class Both(Counted, GuardedTask):
        abstract = True
        calls: ClassVar[list] = []

    @any_shop.app.task(base=Both)
    def add(x, y):
        return x + y

    result = add.delay(1, 2)
    any_shop.work()

    assert result.get() == 3
    assert Both.calls == ["call"]


def test_a_call_that_never_runs_the_body_still_ends_the_run(any_shop):
    class Shortcut(GuardedTask):
        abstract = True

        def __call__(self, *args, **kwargs):
            return "cached"

    @any_shop.app.task(base=Shortcut)
    def add(x, y):
        raise AssertionError("not reached")

    result = add.delay(1, 2)
    any_shop.work()

    assert result.get() == "cached"


def test_a_call_that_raises_is_a_failed_attempt(any_shop):
    class Broken(GuardedTask):
        abstract = True

        def __call__(self, *args, **kwargs):
            raise ValueError("before the body")

    @any_shop.app.task(base=Broken)
    def add(x, y):
        return x + y

    result = add.delay(1, 2)
    any_shop.work()

    assert result.run.state is State.FAILED
    assert result.run.last_error == "ValueError: before the body"


# Plain direct calls


def test_a_direct_call_is_a_plain_call_without_a_row(any_shop):
    @any_shop.app.task
    def add(x, y):
        return x + y

    assert add(1, 2) == 3
    assert any_shop.rows() == []


def test_a_direct_call_raises_what_the_body_raises(shop):
    @shop.app.task
    def add(x, y):
        raise RetryableError("busy")

    with pytest.raises(RetryableError, match="busy"):
        add(1, 2)


def test_a_direct_call_from_another_guarded_task_makes_no_row(any_shop):
    @any_shop.app.task(bind=True)
    def inner(self, x):
        return [self.request.id, current_run().id, x]

    @any_shop.app.task(bind=True)
    def outer(self):
        return [self.request.id, *inner(5)]

    result = outer.delay()
    any_shop.work()

    assert result.get() == [result.id, None, result.id, 5]
    assert [run.id for run in any_shop.rows()] == [result.id]


def test_a_direct_call_of_itself_makes_no_row_and_no_second_claim(any_shop):
    @any_shop.app.task(bind=True, name="countdown")
    def countdown(self, n):
        here = [self.request.id]
        return here + (self(n - 1) if n else []) + [self.request.id]

    result = countdown.delay(2)
    any_shop.work()

    assert result.get() == [result.id] * 6
    assert (any_shop.one().attempt, any_shop.one().state) == (1, State.SUCCEEDED)


def test_the_request_is_the_own_one_again_after_a_direct_call(shop):
    @shop.app.task
    def inner():
        raise KeyError("inner")

    @shop.app.task(bind=True)
    def outer(self):
        with pytest.raises(KeyError):
            inner()
        return [self.request.id, current_run().id]

    result = outer.delay()
    shop.work()

    assert result.get() == [result.id, result.id]


def test_an_applied_task_inside_another_has_a_row_of_its_own(any_shop):
    @any_shop.app.task
    def inner():
        return current_run().id

    @any_shop.app.task
    def outer():
        return inner.apply().get(disable_sync_subtasks=False)

    result = outer.delay()
    any_shop.work()

    first, second = any_shop.rows()
    assert result.get() == second.id != first.id
    assert (first.state, second.state) == (State.SUCCEEDED, State.SUCCEEDED)


# What a guarded task can't be


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("acks_late", False, "lost with its worker"),
        ("reject_on_worker_lost", True, "the row counts attempts"),
        ("retry_on_worker_lost", True, "the only retry authority"),
        ("track_started", True, "STARTED is told after the claim"),
        ("acks_on_failure", False, "the message is done"),
        ("acks_on_timeout", False, "the message is done"),
        ("acks_on_failure_or_timeout", False, "the message is done"),
    ],
)
class TestTheOpposite:
    def test_of_a_decorator_is_refused_with_the_reason(self, shop, option, value, reason):
        shop.app.task(nothing, name="add", **{option: value})

        with pytest.raises(InvalidOption, match=rf"^add: {option}={value!r} can't be guarded: .*{reason}"):
            shop.app.finalize()

    def test_of_a_class_is_refused_with_the_reason(self, shop, option, value, reason):
        base = type("Opposite", (GuardedTask,), {"abstract": True, option: value})
        shop.app.task(nothing, name="add", base=base)

        with pytest.raises(InvalidOption, match=reason):
            shop.app.finalize()

    def test_of_a_class_behind_ours_is_refused_with_the_reason(self, shop, option, value, reason):
        mixin = type("Opposite", (Task,), {"abstract": True, option: value})
        shop.app.task(nothing, name="add", base=type("Both", (GuardedTask, mixin), {"abstract": True}))

        with pytest.raises(InvalidOption, match=reason):
            shop.app.finalize()

    def test_is_refused_again_when_the_task_is_used_anyway(self, shop, option, value, reason):
        task = shop.app.task(nothing, name="add", **{option: value})
        with pytest.raises(InvalidOption, match=reason):
            task.delay()

        with pytest.raises(InvalidOption, match=reason):
            task.delay()

        assert shop.messages() == []

    def test_explicitly_ours_is_accepted(self, shop, option, value, reason):
        shop.app.task(nothing, name="add", **{option: not value})

        shop.app.finalize()

        assert getattr(shop.app.tasks["add"], option) is (not value)


def nothing():
    """A body."""


@pytest.mark.parametrize(
    ("key", "attribute", "value"),
    [
        ("task_acks_late", "acks_late", True),
        ("task_track_started", "track_started", False),
        ("task_reject_on_worker_lost", "reject_on_worker_lost", False),
        ("task_acks_on_failure_or_timeout", "acks_on_failure", True),
    ],
)
def test_the_configuration_of_other_tasks_does_not_change_a_guarded_one(open_shop, key, attribute, value):
    shop = open_shop(**{key: not value})
    shop.app.task(nothing, name="add")

    shop.app.finalize()

    assert getattr(shop.app.tasks["add"], attribute) is value


# Classes bound twice


def test_a_subclass_of_a_bound_class_claims_once(any_shop):
    class Add(GuardedTask):
        name = "add"

        def run(self, x, y):
            return x + y

    class AddMore(Add):
        name = "add_more"

        def run(self, x, y):
            return super().run(x, y) + 100

    any_shop.app.register_task(Add())
    more = any_shop.app.register_task(AddMore())

    result = more.delay(1, 2)
    any_shop.work()

    assert result.get() == 103
    assert any_shop.one().attempt == 1


def test_a_subclass_of_a_bound_class_has_settings_of_its_own(shop):
    class Add(GuardedTask):
        name = "add"
        max_attempts = 3

        def run(self):
            """Do nothing."""

    class AddMore(Add):
        name = "add_more"
        max_attempts = 7

    add, more = shop.app.register_task(Add()), shop.app.register_task(AddMore())

    assert add.delay().run.max_attempts == 3
    assert more.delay().run.max_attempts == 7


def test_a_hook_of_a_subclass_may_call_the_hook_of_a_bound_class(any_shop):
    class Add(GuardedTask):
        name = "add"
        calls: ClassVar[list] = []

        def run(self):
            self.calls.append("run")

        def before_start(self, *args):
            self.calls.append("first")

    class AddMore(Add):
        name = "add_more"

        def before_start(self, *args):
            super().before_start(*args)
            self.calls.append("second")

    any_shop.app.register_task(Add())
    more = any_shop.app.register_task(AddMore())

    more.delay()
    any_shop.work()

    assert Add.calls == ["first", "second", "run"]


def test_binding_a_class_again_wraps_it_once(any_shop):
    @any_shop.app.task
    def add(x, y):
        return x + y

    any_shop.app.finalize()
    wrapped = type(any_shop.app.tasks[add.name]).__call__

    type(any_shop.app.tasks[add.name]).bind(any_shop.app)

    assert type(any_shop.app.tasks[add.name]).__call__ is wrapped


def test_two_apps_in_one_process_have_a_guard_each():
    one, other = (Celery(name, set_as_current=False) for name in ("one", "other"))

    assert guard_of(one) is guard_of(one)
    assert guard_of(one) is not guard_of(other)
