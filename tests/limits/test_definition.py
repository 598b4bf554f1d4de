"""What a task may say about its concurrency, and in which words the rest is refused."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_guard import GuardedTask, InvalidOption, redrive, submit_many
from celery_guard.flow.guard import guard_of


@pytest.fixture
def app(sqlite_url):
    app = Celery("shop", broker="memory://", task_cls=GuardedTask, set_as_current=False)
    app.conf.update(guard_database_url=sqlite_url)
    yield app
    guard_of(app).database.close()
    app.close()


def define(app, body=None, **options):
    """Make a task of a body that takes a tenant and more."""

    def serve(tenant_id, *, day="monday", **more):
        return tenant_id

    return app.task(name="shop.serve", shared=False, **options)(body or serve)


def refusal(app, **options):
    with pytest.raises(InvalidOption) as refused:
        define(app, **options).delay(7)  # a task is made on first use
    return str(refused.value)


def group_of(result):
    return result.run.concurrency_group


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "5"])
def test_what_is_no_limit_is_refused(app, limit):
    text = refusal(app, concurrency=limit)

    assert text.startswith("shop.serve: concurrency must be None or a whole number of at least 1")
    assert repr(limit) in text


def test_a_key_without_a_limit_is_refused(app):
    assert "limits nothing without concurrency" in refusal(app, concurrency_key="{tenant_id}")


def test_a_configured_limit_goes_with_a_key(app):
    app.conf.guard_concurrency = 3

    assert group_of(define(app, concurrency_key="{tenant_id}").delay(7)) == "shop.serve:7"


@pytest.mark.parametrize("key", ["{tenant_id", "tenant}", 7, b"tenant"])
def test_what_is_no_template_is_refused(app, key):
    text = refusal(app, concurrency=1, concurrency_key=key)

    assert text.startswith("shop.serve: concurrency_key must be a template such as 'tenant-{tenant_id}' or a callable")


@pytest.mark.parametrize("key", ["{tenant}", "{}", "{0}", "{tenant_id}-{nobody.name}", "{tenant[0]}"])
def test_a_template_of_what_the_task_does_not_take_is_refused(app, key):
    assert "which the task does not take" in refusal(app, concurrency=1, concurrency_key=key)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("tenant-{tenant_id}", "shop.serve:tenant-7"),
        ("{tenant_id:03d}/{day}", "shop.serve:007/monday"),
        ("{more[city]}", "shop.serve:Rome"),
        (lambda tenant_id, **more: f"{tenant_id % 2}", "shop.serve:1"),
        (None, None),
    ],
    ids=["template", "format", "item", "callable", "none"],
)
def test_a_key_is_made_of_the_arguments(app, key, expected):
    assert group_of(define(app, concurrency=1, concurrency_key=key).delay(7, city="Rome")) == expected


@pytest.mark.parametrize("key", [None, 7, "", " ", "x" * 256], ids=["none", "number", "empty", "blank", "long"])
def test_a_callable_that_gives_no_key_is_refused_at_the_call(app, key):
    task = define(app, concurrency=1, concurrency_key=lambda tenant_id: key)

    with pytest.raises(InvalidOption, match=r"shop\.serve: concurrency_key must "):
        task.delay(7)


def test_many_runs_get_a_group_each(app):
    task = define(app, concurrency=1, concurrency_key="{tenant_id}")

    assert [group_of(result) for result in submit_many(task, [(1,), (2,)])] == ["shop.serve:1", "shop.serve:2"]


def test_a_run_that_repeats_another_shares_its_limit(app):
    task = define(app, concurrency=1, concurrency_key="{tenant_id}")
    ended = task.apply((7,))

    assert group_of(redrive(ended.id, app=app)) == "shop.serve:7"


def test_eager_runs_know_no_limit(app):
    def serve(tenant_id):
        return task.apply((tenant_id - 1,)).get() if tenant_id else "done"

    task = define(app, serve, concurrency=1)

    result = task.apply((3,))

    assert result.get() == "done"
    assert not result.run.waits_for_permit
