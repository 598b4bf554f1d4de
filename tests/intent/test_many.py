"""Many runs at once: few statements, the same rules, and nothing lost when one of them is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from celery import group
from sqlalchemy import event

from celery_guard import IdempotencyConflict, InvalidOption, UnserializableArgument, current_run, submit_many


@pytest.fixture
def double(any_shop):
    @any_shop.app.task
    def double(number, factor=2):
        return number * factor

    return double


@pytest.fixture
def asked(any_shop, monkeypatch):
    """The statements that the store is asked, counted at the cursor."""
    database, statements = any_shop.guard.database, []
    inner = database._run

    def counting(cursor, statement, values):
        statements.append(statement)
        return inner(cursor, statement, values)

    monkeypatch.setattr(database, "_run", counting)
    return statements


def test_each_entry_is_a_run_in_its_order(double, any_shop):
    results = submit_many(double, [(1,), {"number": 2, "factor": 10}, [3, 4]])
    any_shop.work()

    assert [result.get() for result in results] == [2, 20, 12]
    assert all(result.created for result in results)


def test_no_entries_are_no_runs(double, any_shop):
    assert submit_many(double, []) == []
    assert any_shop.rows() == []


def test_ten_thousand_keyed_runs_are_written_in_under_sixty_statements(open_shop, postgres_url, monkeypatch):
    shop = open_shop(url=postgres_url)
    monkeypatch.setattr("celery_guard.flow.many._publish", lambda task, written: None)

    @shop.app.task
    def double(number):
        return 2 * number

    shop.guard.runs.clock()
    statements = []

    def note(connection, cursor, statement, *_):
        statements.append(statement)

    event.listen(shop.guard.database.engine, "before_cursor_execute", note)
    inner = shop.guard.database._run
    monkeypatch.setattr(
        shop.guard.database, "_run", lambda cursor, *given: (statements.append(given[0]), inner(cursor, *given))[1]
    )

    results = submit_many(double, [(n,) for n in range(10_000)], idempotency_keys=[f"n-{n}" for n in range(10_000)])

    assert len(statements) < 60
    assert len({result.id for result in results}) == 10_000
    assert shop.sql("SELECT count(*), count(idempotency_key) FROM task_run") == [(10_000, 10_000)]


def test_every_run_has_one_message(double, any_shop):
    results = submit_many(double, [(n,) for n in range(1_001)])

    assert sorted(message.headers["id"] for message in any_shop.messages()) == sorted(result.id for result in results)


def test_new_and_used_keys_are_told_apart(double, any_shop):
    first = double.apply_async((1,), idempotency_key="one")
    any_shop.messages()

    results = submit_many(double, [(1,), (2,), (2,)], idempotency_keys=["one", "two", "two"])

    assert [result.created for result in results] == [False, True, False]
    assert results[0].id == first.id
    assert results[1].id == results[2].id
    assert [message.headers["id"] for message in any_shop.messages()] == [results[1].id]


def test_the_template_of_the_task_makes_the_keys(any_shop):
    @any_shop.app.task(idempotency_key="order-{order_id}")
    def ship(order_id):
        return None

    submit_many(ship, [(7,), (8,), (7,)])

    assert sorted(run.idempotency_key for run in any_shop.rows()) == ["order-7", "order-8"]


def test_keys_live_in_the_scope_that_is_given(double, any_shop):
    results = [
        submit_many(double, [(1,)], idempotency_keys=["k"], idempotency_scope=scope)[0] for scope in ("a", "b", "a")
    ]

    assert [result.created for result in results] == [True, True, False]


def test_a_conflict_loses_none_of_the_others(double, any_shop):
    double.apply_async((1,), idempotency_key="taken")
    any_shop.messages()

    with pytest.raises(IdempotencyConflict, match="taken"):
        submit_many(double, [(2,), (3,), (4,)], idempotency_keys=["two", "taken", "four"])

    any_shop.clock.advance(4)
    any_shop.dispatch()
    sent = {message.headers["id"] for message in any_shop.messages()}
    created = {run.id for run in any_shop.rows() if run.idempotency_key != "taken"}
    assert sent == created


def test_an_entry_that_can_not_be_encoded_submits_nothing(double, any_shop):
    with pytest.raises(UnserializableArgument, match="number"):
        submit_many(double, [(1,), (object(),)])

    assert any_shop.rows() == []


@pytest.mark.parametrize("keys", [[], ["a"], ["a", "b", "c"]])
def test_keys_that_are_not_one_per_run_are_refused(double, any_shop, keys):
    with pytest.raises(InvalidOption, match="one entry per run"):
        submit_many(double, [(1,), (2,)], idempotency_keys=keys)


def test_two_callers_with_the_same_keys_in_opposite_orders_both_come_through(open_shop, postgres_url):
    def double(number):
        return 2 * number

    shops = [open_shop(url=postgres_url) for _ in range(2)]
    tasks = [shop.app.task(name="double")(double) for shop in shops]

    def submit(task, numbers):
        found = submit_many(task, [(n,) for n in numbers], idempotency_keys=[f"n-{n:04d}" for n in numbers])
        return {n: result.id for n, result in zip(numbers, found, strict=True)}

    with ThreadPoolExecutor(2) as pool:
        forth = pool.submit(submit, tasks[0], list(range(400)))
        back = pool.submit(submit, tasks[1], list(reversed(range(400))))
        assert forth.result(60) == back.result(60)
    assert shops[0].sql("SELECT count(*) FROM task_run") == [(400,)]


def test_links_run_after_each(double, any_shop, noted):
    @any_shop.app.task
    def note(value):
        noted.append(value)

    submit_many(double, [(1,), (2,)], link=note.s())
    any_shop.work()

    assert sorted(noted) == [2, 4]


def test_a_countdown_is_a_wait_of_each(double, any_shop):
    submit_many(double, [(1,), (2,)], countdown=60)

    assert any_shop.messages() == []
    assert all(run.next_retry_at is not None for run in any_shop.rows())


def test_runs_of_a_body_inherit_its_deadline_and_meta(double, any_shop):
    @any_shop.app.task(deadline=timedelta(minutes=1))
    def parent():
        submit_many(double, [(1,)])

    parent.apply_async(meta={"user": "ada"})
    any_shop.work()

    above, below = any_shop.rows()
    assert below.deadline_at == above.deadline_at
    assert (below.meta, below.parent_id) == ({"user": "ada"}, above.id)


def test_a_body_may_submit_many_that_outlive_it(double, any_shop):
    @any_shop.app.task(deadline=timedelta(minutes=1))
    def parent():
        submit_many(double, [(1,)], inherit_deadline=False)

    parent.delay()
    any_shop.work()

    above, below = any_shop.rows()
    assert below.deadline_at > above.deadline_at + timedelta(hours=1)


def test_an_eager_app_runs_them_here_and_now(open_shop, store_url, noted):
    shop = open_shop(url=store_url, task_always_eager=True)

    @shop.app.task
    def double(number):
        noted.append(number)
        return 2 * number

    results = submit_many(double, [(1,), (2,)])

    assert [result.get() for result in results] == [2, 4]
    assert noted == [1, 2]


@pytest.mark.parametrize("option", [{"task_id": "mine"}, {"session": object()}])
def test_what_does_not_fit_many_runs_is_refused(double, any_shop, option):
    with pytest.raises(InvalidOption, match=next(iter(option))):
        submit_many(double, [(1,), (2,)], **option)

    assert any_shop.rows() == []


def test_a_broker_that_is_down_is_tried_once_and_everything_is_accepted(open_shop, store_url, monkeypatch):
    shop = open_shop(url=store_url)

    @shop.app.task
    def double(number):
        return 2 * number

    tried = []

    def refuse(*args, **kwargs):
        tried.append(args)
        raise ConnectionRefusedError("the broker is down")

    with monkeypatch.context() as patch:
        patch.setattr(shop.app, "send_task", refuse)
        results = submit_many(double, [(n,) for n in range(50)])

    assert len(tried) <= 2
    shop.clock.advance(2)
    assert shop.dispatch() == 50
    assert {message.headers["id"] for message in shop.messages()} == {result.id for result in results}


def test_a_group_stays_one_submission_per_member(double, any_shop):
    result = group(double.s(n) for n in range(5))()

    rows = {run.id for run in any_shop.rows()}
    assert rows == {child.id for child in result.results}
    any_shop.work()
    assert [child.get() for child in result.results] == [0, 2, 4, 6, 8]


def test_an_unguarded_body_knows_its_run_of_many(any_shop, noted):
    @any_shop.app.task
    def note(number):
        noted.append(current_run().id)

    results = submit_many(note, [(1,), (2,)])
    any_shop.work()

    assert sorted(noted) == sorted(result.id for result in results)
