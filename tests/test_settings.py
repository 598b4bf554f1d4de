"""``guard_*`` keys and task attributes: what is accepted, what is refused in which words, and which of them counts."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from pydantic import ValidationError

from celery_guard import GuardedTask, InvalidOption
from celery_guard.core.backoff import Backoff
from celery_guard.flow.guard import guard_of, task_settings
from celery_guard.settings import UNLIMITED_ATTEMPTS, Settings, checked_attempts
from tests.flow.conftest import _apps_of_their_own as _apps_of_their_own
from tests.infra.naming import shown

URL = "sqlite:////tmp/nobody-opens-this.db"

DURATIONS = (
    "default_deadline backoff_base backoff_cap deadline_grace heartbeat_interval rescue_after dispatch_interval"
    " idempotency_ttl"
).split()
COUNTS = "max_attempts unknown_max_attempts dispatch_batch error_max_length".split()

#: What keeps a relation true while one of its sides is tried.
COMPANIONS: Mapping[str, Mapping[str, Any]] = {
    "backoff_base": {"guard_backoff_cap": timedelta(days=36_525)},
    "backoff_cap": {"guard_backoff_base": 0.5},
    "heartbeat_interval": {"guard_rescue_after": timedelta(days=36_525)},
    "rescue_after": {"guard_heartbeat_interval": 0.1},
}


def read(**given: Any) -> Settings:
    return Settings.read(given, default_url=URL, default_namespace="shop")


def pack() -> None:
    """A body."""


def value_of(settings: Settings, name: str) -> Any:
    name = name.replace("default_deadline", "deadline")
    return getattr(settings, name) if hasattr(settings, name) else getattr(settings.task, name)


def refusal(**given: Any) -> str:
    with pytest.raises(InvalidOption) as refused:
        read(**given)
    return str(refused.value)


def an_app(main: str | None = "shop", **config: Any) -> Celery:
    app = Celery(main, broker="memory://", task_cls=GuardedTask, set_as_current=False)
    app.conf.update({"guard_database_url": URL, **config})
    return app


# What is accepted


def test_nothing_at_all_gives_the_documented_defaults():
    settings = read()

    assert settings.model_dump() == {
        "database_url": URL,
        "database_engine_options": {},
        "namespace": "shop",
        "heartbeat_interval": timedelta(seconds=10),
        "rescue_after": timedelta(seconds=30),
        "dispatch_interval": timedelta(seconds=1),
        "dispatch_batch": 200,
        "retention": {
            "succeeded": timedelta(days=7),
            "cancelled": timedelta(days=7),
            "failed": timedelta(days=30),
            "dead": timedelta(days=30),
        },
        "retryable_errors": (),
        "non_retryable_errors": (),
        "classifiers": (),
        "log_meta": (),
        "task": {
            "deadline": timedelta(hours=24),
            "max_attempts": 5,
            "unknown_max_attempts": 2,
            "backoff_base": timedelta(seconds=1),
            "backoff_cap": timedelta(minutes=5),
            "backoff_jitter": "equal",
            "backoff": None,
            "deadline_grace": timedelta(seconds=5),
            "on_worker_lost": "retry",
            "retry_rate": None,
            "concurrency": None,
            "settle_within": None,
            "message": "full",
            "idempotency_ttl": timedelta(hours=24),
            "error_max_length": 2_000,
            "result_max_bytes": 65_536,
        },
    }


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (2, timedelta(seconds=2)),
        (0.75, timedelta(seconds=0.75)),
        (timedelta(minutes=1), timedelta(minutes=1)),
        (timedelta(days=36_525), timedelta(days=36_525)),
    ],
)
def test_a_duration_is_seconds_or_a_timedelta(name, given, expected):
    if name == "heartbeat_interval":
        given, expected = (timedelta(days=10), timedelta(days=10)) if expected.days > 10 else (given, expected)

    settings = read(**COMPANIONS.get(name, {}), **{f"guard_{name}": given})

    assert value_of(settings, name) == expected


@pytest.mark.parametrize("given", [None, 0.005, 1, timedelta(milliseconds=20)])
def test_a_success_may_wait_a_moment_for_others_or_not_at_all(given):
    expected = timedelta(seconds=given) if isinstance(given, (int, float)) else given

    assert read(guard_settle_within=given).task.settle_within == expected


@pytest.mark.parametrize("given", [0, -0.01, 1.001, timedelta(minutes=1), True, "0.01"])
def test_a_success_waits_no_longer_than_a_second(given):
    assert "guard_settle_within must be None, or seconds or a timedelta" in refusal(guard_settle_within=given)


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("given", [1, 7, UNLIMITED_ATTEMPTS])
def test_a_count_is_a_whole_number_of_at_least_one(name, given):
    assert value_of(read(**{f"guard_{name}": given}), name) == given


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("backoff_jitter", "none"),
        ("backoff_jitter", "full"),
        ("backoff_jitter", "equal"),
        ("backoff_jitter", 0),
        ("backoff_jitter", 0.25),
        ("backoff_jitter", 1),
        ("on_worker_lost", "retry"),
        ("on_worker_lost", "fail"),
        ("message", "full"),
        ("message", "reference"),
        ("concurrency", None),
        ("concurrency", 1),
        ("retry_rate", None),
        ("retry_rate", "100/m"),
        ("retry_rate", "1/s"),
        ("retry_rate", "5000/h"),
        ("result_max_bytes", 0),
        ("namespace", "x" * 255),
        ("database_engine_options", {"pool_size": 1}),
        ("database_url", "sqlite:////var/lib/shop/runs.db"),
        ("database_url", "sqlite+pysqlite:////var/lib/shop/runs.db"),
        ("database_url", "sqlite:///C:\\shop\\runs.db"),
        ("database_url", "postgresql+psycopg2://shop:secret@db/shop"),
    ],
)
def test_a_value_is_kept_as_given(name, given):
    assert value_of(read(**{f"guard_{name}": given}), name) == given


def test_a_plain_postgresql_url_names_the_driver_that_is_installed():
    assert read(guard_database_url="postgresql://db/shop").database_url == "postgresql+psycopg2://db/shop"


def test_one_retention_holds_for_every_terminal_state():
    settings = read(guard_retention=timedelta(days=1))

    assert set(settings.retention) == {"succeeded", "failed", "dead", "cancelled"}
    assert set(settings.retention.values()) == {timedelta(days=1)}


def test_a_retention_by_state_leaves_the_others_at_their_default():
    settings = read(guard_retention={"dead": 60})

    assert settings.retention["dead"] == timedelta(seconds=60)
    assert settings.retention["failed"] == timedelta(days=30)


def test_settings_are_frozen():
    settings = read()

    with pytest.raises(ValidationError, match="frozen"):
        settings.dispatch_batch = 3  # type: ignore[misc]


def test_zero_jitter_is_a_value_and_not_the_default():
    assert read(guard_backoff_jitter=0).task.delays() == replace(Backoff(), jitter=0)


# What is refused


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize(
    "given",
    [0, -1, 0.0, True, None, "30", [30], math.nan, math.inf, 1e300, 10**400, 1e-9, timedelta(0), timedelta.max],
    ids=lambda given: repr(given)[:20],
)
def test_what_is_no_duration_is_refused_with_key_value_and_what_is_accepted(name, given):
    text = refusal(**COMPANIONS.get(name, {}), **{f"guard_{name}": given})

    assert text.startswith(f"guard_{name} must be seconds or a timedelta, more than 0 and at most a century")
    assert repr(given) in text


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("given", [0, -1, True, False, None, "3", 1.5, 3.0, [3], 2**31, 10**400])
def test_what_is_no_count_is_refused_with_key_value_and_what_is_accepted(name, given):
    text = refusal(**{f"guard_{name}": given})

    assert text == f"guard_{name} must be a whole number of at least 1 and at most 2147483647, not {given!r}"


@pytest.mark.parametrize(
    ("name", "given", "accepted"),
    [
        *(
            ("backoff_jitter", value, "'none', 'full', 'equal' or a number from 0 to 1")
            for value in ("half", "", True, None, -0.1, 1.1, math.nan, [0.5])
        ),
        *(("on_worker_lost", value, "'retry' or 'fail'") for value in ("", "RETRY", "ignore", None, True, 0)),
        *(("message", value, "'full' or 'reference'") for value in ("", "short", None, 1)),
        *(
            ("retry_rate", value, "None or a rate such as '100/m' (s, m or h)")
            for value in ("", "0/m", "100", "100/d", "1.5/s", "-1/s", 100, True, " 1/s", "1/s\n")
        ),
        *(
            ("concurrency", value, "None or a whole number of at least 1 and at most 2147483647")
            for value in (0, -1, True, "10", 2.0, [1], 2**31)
        ),
        *(("result_max_bytes", value, "a whole number of at least 0") for value in (-1, True, "64", 1.0, None)),
        *(("namespace", value, "text of 1 to 255 characters") for value in ("", "x" * 256, None, 7, ["shop"])),
        *(
            ("database_engine_options", value, "a dict for sqlalchemy.create_engine")
            for value in ("pool_size=2", ["echo"], 5, None)
        ),
        *(
            ("database_url", value, "a PostgreSQL URL, or a SQLite URL with an absolute path")
            for value in (
                "",
                None,
                5,
                "sqlite://",
                "sqlite:///runs.db",
                "sqlite:///:memory:",
                "mysql://db/shop",
                "postgres://db/shop",
                "postgresql+asyncpg://db/shop",
                "nonsense",
            )
        ),
        *(
            ("retention", value, "a duration, or a dict of durations by terminal state")
            for value in (0, -1, True, "7d", None, {"dead": 0}, {"running": 60}, {"dead": "x"}, math.inf, 1e300)
        ),
    ],
)
def test_another_value_is_refused_with_key_value_and_what_is_accepted(name, given, accepted):
    text = refusal(**{f"guard_{name}": given})

    assert text.startswith(f"guard_{name} must be {accepted}, not {given!r}")


def test_two_wrong_values_are_both_named():
    text = refusal(guard_max_attempts=0, guard_message="short")

    assert "guard_max_attempts must be" in text
    assert "guard_message must be" in text


@pytest.mark.parametrize("key", ["guard_max_atempts", "guard_deadline", "guard_task", "guard_", "guard_guard_message"])
def test_an_unknown_key_is_refused_with_the_known_ones(key):
    text = refusal(**{key: 1})

    assert text.startswith(f"{key} is not a setting of celery_guard; known are ")
    assert "guard_default_deadline, " in text
    assert "guard_task" not in text.split("known are")[1]


def test_a_worker_may_miss_a_beat_before_it_counts_as_lost():
    text = refusal(guard_heartbeat_interval=10, guard_rescue_after=19.9)

    assert text == "guard_rescue_after (19.9 s) must be at least twice guard_heartbeat_interval (10 s)"


@pytest.mark.parametrize(
    ("given", "base", "cap"),
    [
        ({"guard_backoff_base": 10, "guard_backoff_cap": 5}, "10", "5"),
        ({"guard_backoff_base": 301}, "301", "300"),
        ({"guard_backoff_cap": 0.5}, "1", "0.5"),
    ],
)
def test_the_backoff_cap_is_at_least_the_base_also_where_one_of_them_is_a_default(given, base, cap):
    text = refusal(**given)

    assert text == f"guard_backoff_cap ({cap} s) must be at least the backoff base ({base} s)"


@pytest.mark.parametrize(
    "url",
    [
        "mysql://shop:s3cret@db/shop",
        "postgres://shop:s3cret@db/shop",
        "postgres://shop:p@s3cret@db/shop",
        "postgres://shop:a:s3cret/x@db/shop",
        "postgres://:s3cret@db/shop",
        "postgres://db/shop?user=shop&password=s3cret",
        "postgres://db/shop?password=s3cret&user=shop",
        "sqlite:///runs.db?key=1&password=s3cret",
        "postgres://shop:s3\ncret@db/shop",
    ],
)
def test_a_refused_url_shows_no_password(url):
    text = refusal(guard_database_url=url)

    assert "guard_database_url must be" in text
    assert "s3" not in text
    assert "cret" not in text


# Where they come from


def test_keys_come_from_the_configuration_of_the_app():
    app = an_app(guard_max_attempts=9, guard_namespace="other")

    settings = guard_of(app).settings

    assert (settings.task.max_attempts, settings.namespace) == (9, "other")


def test_the_namespace_is_the_name_of_the_app():
    assert guard_of(an_app("billing")).settings.namespace == "billing"


@pytest.fixture
def django_settings(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A settings module with ``CELERY_`` before every key."""
    module = type(sys)("shop_settings")
    module.CELERY_BROKER_URL = "memory://"
    module.CELERY_GUARD_DATABASE_URL = URL
    module.CELERY_GUARD_MAX_ATTEMPTS = 9
    module.GUARD_MAX_ATTEMPTS = 3
    monkeypatch.setitem(sys.modules, "shop_settings", module)
    return module


def test_under_a_namespace_keys_are_read_as_django_projects_write_them(django_settings):
    app = Celery("shop", task_cls=GuardedTask, set_as_current=False)
    app.config_from_object("shop_settings", namespace="CELERY")

    settings = guard_of(app).settings

    assert (settings.task.max_attempts, settings.database_url) == (9, URL)


def test_under_a_namespace_an_unknown_key_is_refused(django_settings):
    django_settings.CELERY_GUARD_MAX_ATEMPTS = 3
    app = Celery("shop", task_cls=GuardedTask, set_as_current=False)
    app.config_from_object("shop_settings", namespace="CELERY")

    with pytest.raises(InvalidOption, match="guard_max_atempts is not a setting"):
        _ = guard_of(app).settings


def test_a_broken_configuration_is_refused_when_the_app_is_finalised():
    app = an_app(guard_max_attempts=0)
    app.task(pack, name="pack")

    with pytest.raises(InvalidOption, match=r"guard_max_attempts must be a whole number .*, not 0"):
        app.finalize()


def test_a_key_set_between_definition_and_finalising_counts():
    app = an_app()
    task = app.task(pack, name="pack")
    app.conf.guard_max_attempts = 8

    app.finalize()

    assert task_settings(task).max_attempts == 8


# Which of them counts


class Careful(GuardedTask):
    abstract = True
    max_attempts = 3
    backoff_base = 2


def settings_of(app: Celery, **options: Any) -> Any:
    task = app.task(pack, name="pack", **options)
    app.finalize()
    return task_settings(app.tasks[task.name])


def test_a_task_without_attributes_has_what_the_configuration_says():
    assert settings_of(an_app(guard_max_attempts=7)).max_attempts == 7


def test_a_class_wins_over_the_configuration():
    assert settings_of(an_app(guard_max_attempts=7), base=Careful).max_attempts == 3


def test_a_decorator_wins_over_a_class():
    settings = settings_of(an_app(guard_max_attempts=7), base=Careful, max_attempts=2)

    assert (settings.max_attempts, settings.backoff_base) == (2, timedelta(seconds=2))


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("deadline", 90, timedelta(seconds=90)),
        ("deadline", timedelta(minutes=2), timedelta(minutes=2)),
        ("max_attempts", 1, 1),
        ("unknown_max_attempts", 1, 1),
        ("backoff_base", 0.5, timedelta(seconds=0.5)),
        ("backoff_cap", 1, timedelta(seconds=1)),
        ("backoff_jitter", 0, 0),
        ("deadline_grace", 1, timedelta(seconds=1)),
        ("on_worker_lost", "fail", "fail"),
        ("retry_rate", "5/s", "5/s"),
        ("concurrency", 10, 10),
        ("message", "reference", "reference"),
        ("idempotency_ttl", 60, timedelta(minutes=1)),
        ("error_max_length", 10, 10),
        ("result_max_bytes", 0, 0),
    ],
)
def test_a_task_says_it_without_the_prefix(name, given, expected):
    assert getattr(settings_of(an_app(), **{name: given}), name) == expected


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("deadline", 0),
        ("deadline", -1),
        ("deadline", "60"),
        ("max_attempts", 0),
        ("max_attempts", True),
        ("unknown_max_attempts", 1.5),
        ("backoff_jitter", "half"),
        ("on_worker_lost", "ignore"),
        ("result_max_bytes", -1),
    ],
)
def test_a_wrong_attribute_is_refused_with_the_name_of_the_task(name, given):
    app = an_app()
    app.task(pack, name="pack", **{name: given})

    with pytest.raises(InvalidOption, match=rf"^pack: {name} must be .*, not {given!r}"):
        app.finalize()


def test_a_relation_that_a_task_breaks_is_refused_with_the_name_of_the_task():
    app = an_app()
    app.task(pack, name="pack", backoff_base=600)

    with pytest.raises(
        InvalidOption, match=r"^pack: backoff_cap \(300 s\) must be at least the backoff base \(600 s\)$"
    ):
        app.finalize()


@pytest.mark.parametrize("name", ["retryable", "non_retryable"])
@pytest.mark.parametrize("given", [(1,), ("ValueError",), 5, (int,), [None], ValueError("an instance")], ids=shown)
def test_what_is_no_exception_class_is_refused(name, given):
    app = an_app()
    app.task(pack, name="pack", **{name: given})

    with pytest.raises(InvalidOption, match=f"pack: {name} must be a tuple of exception classes, not "):
        app.finalize()


@pytest.mark.parametrize("given", [OSError, (OSError,), [OSError], {OSError}])
def test_one_exception_class_or_any_collection_of_them_is_accepted(given):
    app = an_app()
    task = app.task(pack, name="pack", retryable=given)

    app.finalize()

    assert task.retryable == (OSError,)


@pytest.mark.parametrize(
    ("retries", "attempts"), [(0, 1), (4, 5), (None, UNLIMITED_ATTEMPTS)], ids=["none", "four", "until the deadline"]
)
def test_max_retries_alone_means_one_attempt_more(retries, attempts):
    assert settings_of(an_app(guard_max_attempts=7), max_retries=retries).max_attempts == attempts


def test_celerys_own_default_of_three_retries_is_nobodys_wish():
    assert settings_of(an_app(guard_max_attempts=7)).max_attempts == 7


def test_max_attempts_wins_over_max_retries():
    assert settings_of(an_app(), max_retries=9, max_attempts=2).max_attempts == 2


@pytest.mark.parametrize("given", [-1, True, "3", 1.5, 2**31])
def test_wrong_max_retries_are_refused(given):
    app = an_app()
    app.task(pack, name="pack", max_retries=given)

    with pytest.raises(InvalidOption, match=r"^pack: max_(retries|attempts) must be"):
        app.finalize()


@pytest.mark.parametrize("given", [0, -1, True, "3", 1.5, None, 2**31])
def test_checked_attempts_says_what_is_accepted(given):
    with pytest.raises(InvalidOption, match=r"^max_attempts must be a whole number of at least 1 and .*, not "):
        checked_attempts(given)


def test_annotations_of_the_configuration_count_as_attributes_of_the_task():
    app = an_app(task_annotations={"pack": {"max_attempts": 4}})

    assert settings_of(app).max_attempts == 4


# Where the embedded database lies

PROJECT = {
    "shop/__init__.py": "",
    "shop/celery.py": """
        from celery import Celery
        from celery_guard import GuardedTask
        app = Celery({main!r}, task_cls=GuardedTask)
    """,
    "client/run.py": """
        import sys
        from shop.celery import app
        from celery_guard.flow.guard import guard_of
        print(guard_of(app).settings.database_url)
    """,
}


def default_url(tmp_path: Path, main: str, **env: str) -> str:
    """Return the URL that a script prints which imports the app, or the last line of what it complains."""
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text).replace("{main!r}", repr(main)))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "client" / "run.py")],
        env={"PYTHONPATH": str(tmp_path), **env},
        cwd=tmp_path / "client",
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_the_default_database_is_a_file_beside_the_module_of_the_app(tmp_path):
    assert default_url(tmp_path, "shop") == f"sqlite:///{tmp_path.resolve() / 'shop' / 'celery_guard.db'}"


def test_an_app_named_after_no_module_has_its_file_beside_the_module_that_holds_it_and_not_beside_an_importer(tmp_path):
    assert default_url(tmp_path, "acme") == f"sqlite:///{tmp_path.resolve() / 'shop' / 'celery_guard.db'}"


def test_an_app_named_after_somebody_elses_module_has_its_file_beside_its_own(tmp_path):
    assert default_url(tmp_path, "email") == f"sqlite:///{tmp_path.resolve() / 'shop' / 'celery_guard.db'}"


def test_a_package_that_imports_its_app_in_many_folders_still_has_one_file(tmp_path):
    (tmp_path / "shop" / "orders").mkdir(parents=True)
    (tmp_path / "shop" / "orders" / "__init__.py").write_text("from shop.celery import app")
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / "sitecustomize.py").write_text("import shop.orders")

    url = default_url(tmp_path, "shop", PYTHONPATH=f"{tmp_path}:{tmp_path / 'client'}")

    assert url == f"sqlite:///{tmp_path.resolve() / 'shop' / 'celery_guard.db'}"


def test_an_app_that_modules_of_several_folders_hold_is_asked_for_a_url(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__init__.py").write_text("from shop.celery import app")
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / "sitecustomize.py").write_text("import other")

    said = default_url(tmp_path, "acme", PYTHONPATH=f"{tmp_path}:{tmp_path / 'client'}")

    assert "InvalidOption: guard_database_url is not set" in said


def test_an_app_in_no_module_is_asked_for_a_url():
    app = Celery(None, task_cls=GuardedTask, set_as_current=False)

    with pytest.raises(InvalidOption, match="guard_database_url is not set"):
        _ = guard_of(app).settings
