"""What is refused is refused at the call, in the caller's words, and leaves neither a row nor a message."""

from __future__ import annotations

import math
import threading
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal

import pytest
from celery import Celery

from celery_guard import (
    DeadlineExceeded,
    GuardedTask,
    GuardError,
    InvalidOption,
    SchemaMismatch,
    StoreUnavailable,
    UnserializableArgument,
)
from celery_guard.flow.guard import guard_of
from tests.infra.naming import shown


@pytest.fixture
def shop(any_shop):
    """Every test here runs on both databases, and leaves nothing in either."""
    any_shop.rows()
    yield any_shop
    assert any_shop.rows() == []
    assert any_shop.messages() == []


@pytest.fixture
def add(shop):
    @shop.app.task(name="add")
    def add(x, y=0):
        return x + y

    return shop.app.tasks["add"]


class NoOffset(tzinfo):
    """A zone that says nothing."""

    def utcoffset(self, moment):
        return None


# Deadlines


@pytest.mark.parametrize(
    "deadline",
    [datetime(2090, 1, 1), datetime(9999, 12, 31), datetime(1, 1, 1), datetime(2090, 1, 1, tzinfo=NoOffset())],
    ids=shown,
)
def test_a_naive_deadline_is_refused_with_the_remedy(add, deadline):
    with pytest.raises(InvalidOption, match=r"deadline must carry a time zone.*datetime\.now\(timezone\.utc\)"):
        add.apply_async((1,), deadline=deadline)


@pytest.mark.parametrize("deadline", [0, -1, -0.0, timedelta(0), timedelta(seconds=-1), -math.inf, 1e-9], ids=shown)
def test_a_deadline_of_nothing_or_less_is_refused(add, deadline):
    with pytest.raises(InvalidOption, match=r"deadline (must be more than 0 seconds|is out of range)"):
        add.apply_async((1,), deadline=deadline)


@pytest.mark.parametrize(
    "deadline", [math.inf, math.nan, 1e300, 10**400, 10**13, timedelta.max, timedelta(days=40_000)], ids=shown
)
def test_a_deadline_beyond_a_century_is_refused(add, deadline):
    with pytest.raises(
        InvalidOption, match=r"deadline (is out of range|must be more than 0 seconds and at most a century)"
    ):
        add.apply_async((1,), deadline=deadline)


@pytest.mark.parametrize("deadline", [True, False, "60", b"60", [60], Decimal(60), date(2090, 1, 1), object(), 1j])
def test_a_deadline_of_another_type_is_refused_with_what_is_accepted(add, deadline):
    with pytest.raises(InvalidOption, match="deadline must be a timedelta, seconds or an aware datetime, not "):
        add.apply_async((1,), deadline=deadline)


@pytest.mark.parametrize(
    "deadline",
    [
        datetime(1970, 1, 1, tzinfo=timezone.utc),
        datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        datetime(1, 1, 2, tzinfo=timezone.utc),
    ],
)
def test_a_deadline_that_has_passed_is_refused(add, deadline):
    with pytest.raises(DeadlineExceeded, match="has passed already; nothing was submitted") as refused:
        add.apply_async((1,), deadline=deadline)

    assert refused.value.reason == "failed_due_deadline"


def test_a_deadline_that_has_passed_is_refused_for_a_key_too(add):
    with pytest.raises(DeadlineExceeded):
        add.apply_async((1,), deadline=datetime(2020, 1, 1, tzinfo=timezone.utc), idempotency_key="order-7")


def test_an_expiry_that_has_passed_is_refused(add):
    with pytest.raises(DeadlineExceeded):
        add.apply_async((1,), expires=datetime(2020, 1, 1, tzinfo=timezone.utc))


@pytest.mark.parametrize("expires", [0, -1, math.nan, True, "soon", object(), [], date(2090, 1, 1)], ids=shown)
def test_an_expiry_that_is_none_is_refused(add, expires):
    with pytest.raises(InvalidOption, match=r"expires (must be|is out of range)"):
        add.apply_async((1,), expires=expires)


@pytest.mark.parametrize("eta", ["soon", 5, True, [], date(2090, 1, 1), object()], ids=shown)
def test_an_eta_that_is_none_is_refused(add, eta):
    with pytest.raises(InvalidOption, match="eta must be a datetime, ISO text or seconds, not"):
        add.apply_async((1,), eta=eta)


def test_a_countdown_beyond_the_deadline_is_refused(add):
    with pytest.raises(InvalidOption, match="a countdown of 60 s starts after the deadline"):
        add.apply_async((1,), countdown=60, deadline=60)


def test_an_eta_beyond_the_deadline_is_refused(add):
    moment = datetime(2090, 1, 1, tzinfo=timezone.utc)

    with pytest.raises(InvalidOption, match="is not before the deadline"):
        add.apply_async((1,), eta=moment, deadline=moment)


# Attempts


@pytest.mark.parametrize(
    "attempts", [0, -1, True, False, "3", 1.5, 3.0, math.nan, [3], 2**31, 10**400, b"3"], ids=shown
)
def test_attempts_that_are_no_whole_number_of_at_least_one_are_refused(add, attempts):
    with pytest.raises(InvalidOption, match="max_attempts must be a whole number of at least 1"):
        add.apply_async((1,), max_attempts=attempts)


# Arguments


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, 2, 3), {}), ((1,), {"x": 1}), ((1,), {"z": 1})],
    ids=["too few", "too many", "twice", "unknown"],
)
def test_arguments_that_do_not_fit_the_signature_are_refused(add, args, kwargs):
    with pytest.raises(TypeError, match=r"add\(\)"):
        add.apply_async(args, kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [
        ((object(),), {}, r"argument 'x' \(a object\)"),
        ((1, object()), {}, r"argument 'y' \(a object\)"),
        ((1,), {"y": object()}, r"argument 'y' \(a object\)"),
        (([{"deep": [object()]}],), {}, r"argument 'x' \(a list\)"),
        ((threading.Lock(),), {}, r"argument 'x' \(a lock\)"),
        (({(1, 2): 3},), {}, r"argument 'x' \(a dict\)"),
        ((lambda: None,), {}, r"argument 'x' \(a function\)"),
    ],
    ids=["first", "second", "by name", "deep", "lock", "key", "function"],
)
def test_an_argument_that_can_not_be_encoded_is_refused_by_its_name(add, args, kwargs, named):
    with pytest.raises(UnserializableArgument, match=rf"add: {named} can't be encoded by the 'json' serializer"):
        add.apply_async(args, kwargs)


def test_an_argument_that_contains_itself_is_refused(add):
    endless: list = []
    endless.append(endless)

    with pytest.raises(UnserializableArgument, match="argument 'x'"):
        add.delay(endless)


def test_an_argument_that_is_too_deep_is_refused(add):
    deep: list = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(UnserializableArgument, match="argument 'x'"):
        add.delay(deep)


def test_a_surplus_argument_that_can_not_be_encoded_is_refused_by_its_place(shop):
    @shop.app.task(name="total")
    def total(first, *others):
        return first + sum(others)

    with pytest.raises(UnserializableArgument, match=r"argument ('others'|'#2'|'#3') \(a object\)"):
        total.delay(1, 2, object())


def test_an_option_that_can_not_be_encoded_is_refused(add):
    with pytest.raises(UnserializableArgument, match="the options of a guarded task must be JSON"):
        add.apply_async((1,), headers={"x": object()})


def test_an_unknown_compression_is_refused(add):
    with pytest.raises(InvalidOption, match=r"compression must be one .*gzip.*, not 'nonsense'"):
        add.apply_async((1,), compression="nonsense")


def test_a_queue_that_is_no_text_is_refused(add):
    with pytest.raises(InvalidOption, match="queue must be a name"):
        add.apply_async((1,), queue="\ud800")


def test_an_unknown_serializer_is_refused(add):
    with pytest.raises(GuardError, match="serializer"):
        add.apply_async((1,), serializer="nonsense")


@pytest.mark.parametrize("args", ["ab", 5, {"x": 1}, True], ids=shown)
def test_arguments_that_are_no_list_are_refused(add, args):
    with pytest.raises((TypeError, GuardError)):
        add.apply_async(args)


@pytest.mark.parametrize("kwargs", ["ab", 5, [1], {1: 2}], ids=shown)
def test_keyword_arguments_that_are_no_dict_are_refused(add, kwargs):
    with pytest.raises((TypeError, ValueError, GuardError)):
        add.apply_async((1,), kwargs)


# Meta, keys, ids


@pytest.mark.parametrize(
    "meta",
    ["user", 7, ["a"], {1: "a"}, {None: 1}, {"a": object()}, {"a": math.nan}, {"a": {1, 2}}, {"a": b"x"}, True],
    ids=shown,
)
def test_meta_that_is_no_json_dict_is_refused(add, meta):
    with pytest.raises(InvalidOption, match=r"meta must (be a dict with text keys|hold JSON values only)"):
        add.apply_async((1,), meta=meta)


def test_meta_that_contains_itself_is_refused(add):
    meta: dict = {}
    meta["self"] = meta

    with pytest.raises(InvalidOption, match="meta must hold JSON values only"):
        add.apply_async((1,), meta=meta)


@pytest.mark.parametrize("text", ["x" * 4_097, "ß" * 700, "\u0000" * 700], ids=["ascii", "umlauts", "controls"])
def test_meta_that_is_too_large_is_refused_with_the_limit(add, text):
    with pytest.raises(InvalidOption, match=r"meta must be at most 4096 bytes as JSON, not \d+"):
        add.apply_async((1,), meta={"text": text})


@pytest.mark.parametrize("key", ["", "  ", "x" * 256, 7, b"order", True, "a\x00b", "\ud800", ["order"]], ids=shown)
def test_a_key_that_is_none_is_refused(add, key):
    with pytest.raises(InvalidOption, match="idempotency_key must"):
        add.apply_async((1,), idempotency_key=key)


@pytest.mark.parametrize("task_id", ["", "x" * 256, 7, b"order", True, "a\x00b", "\ud800", ["order"]], ids=shown)
def test_an_id_that_is_none_is_refused(add, task_id):
    with pytest.raises(InvalidOption, match="task_id must"):
        add.apply_async((1,), task_id=task_id)


def test_time_limits_that_contradict_each_other_are_refused(shop):
    @shop.app.task(name="add", soft_time_limit=10, time_limit=5)
    def add():
        """Do nothing."""

    with pytest.raises(ValueError, match="soft_time_limit must be less"):
        add.delay()


def test_an_eager_call_refuses_the_same(add):
    with pytest.raises(InvalidOption, match="max_attempts"):
        add.apply((1,), max_attempts=0)
    with pytest.raises(UnserializableArgument, match="argument 'x'"):
        add.apply((object(),))
    with pytest.raises(InvalidOption, match="deadline"):
        add.apply((1,), deadline=-1)


# The database


@pytest.fixture
def unreachable(open_shop):
    """An app whose database does not answer."""
    shop = open_shop(url="postgresql+psycopg2://shop:s3cret@127.0.0.1:1/shop")

    @shop.app.task(name="add")
    def add(x):
        return x

    return shop


def test_an_unreachable_database_refuses_the_submission_and_no_message_is_sent(unreachable):
    with pytest.raises(StoreUnavailable, match="the database of runs can't be reached") as refused:
        unreachable.app.tasks["add"].delay(1)

    assert unreachable.messages() == []
    assert "s3cret" not in str(refused.value)


def test_an_unreachable_database_refuses_an_eager_call_too(unreachable):
    with pytest.raises(StoreUnavailable):
        unreachable.app.tasks["add"].apply((1,))


def test_a_direct_call_needs_no_database(unreachable):
    assert unreachable.app.tasks["add"](1) == 1


@pytest.mark.parametrize("folder", ["missing", "a file"])
def test_a_sqlite_file_that_can_not_be_made_refuses_the_submission(open_shop, tmp_path, folder):
    (tmp_path / "a file").write_text("")
    shop = open_shop(url=f"sqlite:///{tmp_path / folder / 'guard.db'}")
    add = shop.app.task(pass_on, name="add")

    with pytest.raises(StoreUnavailable):
        add.delay(1)

    assert shop.messages() == []


def test_a_file_that_is_no_database_refuses_the_submission(open_shop, tmp_path):
    (tmp_path / "guard.db").write_text("not a database " * 100)
    shop = open_shop(url=f"sqlite:///{tmp_path / 'guard.db'}")
    add = shop.app.task(pass_on, name="add")

    with pytest.raises(GuardError):
        add.delay(1)

    assert shop.messages() == []


def test_a_database_without_tables_refuses_the_submission_with_the_command(open_shop, empty_postgres_url):
    shop = open_shop(url=empty_postgres_url)
    add = shop.app.task(pass_on, name="add")

    with pytest.raises(SchemaMismatch, match="celery -A <your app> guard migrate"):
        add.delay(1)

    assert shop.messages() == []


def test_an_older_schema_refuses_the_submission_with_the_command(open_shop, postgres_server, postgres_template):
    with postgres_server.database(postgres_template) as url:
        shop = open_shop(url=url)
        shop.sql("UPDATE guard_meta SET schema_version = 0")
        add = shop.app.task(pass_on, name="add")

        with pytest.raises(SchemaMismatch, match=r"schema is at version 0.*guard migrate"):
            add.delay(1)

        assert shop.messages() == []
        shop.close()


def test_an_older_schema_refuses_to_start_a_worker(open_shop, postgres_server, postgres_template):
    from celery_guard.flow.worker import Keeper

    with postgres_server.database(postgres_template) as url:
        shop = open_shop(url=url)
        shop.sql("UPDATE guard_meta SET schema_version = 0")

        with pytest.raises(SystemExit):
            Keeper(shop.guard).start()

        shop.close()


def test_a_schema_that_needs_newer_code_is_refused(open_shop, sqlite_url):
    shop = open_shop(url=sqlite_url)
    shop.rows()
    shop.sql("UPDATE guard_meta SET schema_version = 99, compatible_from = 99")
    other = Celery("shop", broker="memory://", task_cls=GuardedTask, set_as_current=False)
    other.conf.update(guard_database_url=sqlite_url, task_default_queue=shop.queue)
    add = other.task(pass_on, name="add")

    with pytest.raises(SchemaMismatch, match="upgrade celery-guard"):
        add.delay(1)

    guard_of(other).database.close()


def pass_on(x):
    return x
