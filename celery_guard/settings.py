"""``guard_*`` from the Celery configuration: read once, complained about in the user's words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StrictInt,
    ValidationError,
    field_validator,
    model_validator,
)

from celery_guard.core.backoff import Backoff, CalledDelays, Jitter, ListedDelays
from celery_guard.core.deadline import CENTURY
from celery_guard.core.decide import Delays, Policy
from celery_guard.core.faults import Classifier, Configured
from celery_guard.core.names import is_class_name, is_dotted
from celery_guard.errors import InvalidOption

__all__ = ["UNLIMITED_ATTEMPTS", "Settings", "TaskSettings", "checked_attempts"]

#: What ``max_retries=None`` means: attempts until the deadline.
UNLIMITED_ATTEMPTS = 2**31 - 1

M = TypeVar("M", bound=BaseModel)

_RATE = re.compile(r"[1-9][0-9]*/[smh]")


def _duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("not a duration")
    try:
        return timedelta(seconds=value)
    except OverflowError:
        raise ValueError("out of range") from None


def _positive(value: timedelta) -> timedelta:
    if not timedelta(0) < value <= CENTURY:
        raise ValueError("out of range")
    return value


def _short_while(value: Any) -> timedelta | None:
    if value is None:
        return None
    found = _duration(value)
    if not timedelta(0) < found <= timedelta(seconds=1):
        raise ValueError("out of range")
    return found


def _rate(value: Any) -> Any:
    if value is not None and not (isinstance(value, str) and _RATE.fullmatch(value)):
        raise ValueError("not a rate")
    return value


def _jitter(value: Any) -> Any:
    Backoff(jitter=value)
    return value


def _class_names(value: Any) -> tuple[str, ...]:
    names = _several(value)
    for name in names:
        if not is_class_name(name):
            raise ValueError(f"{name!r} is neither a dotted name such as 'shop.errors.Busy' nor a built-in exception")
    return names


def _classifiers(value: Any) -> tuple[Any, ...]:
    given = _several(value)
    for one in given:
        if not callable(one) and not (is_dotted(one) and "." in one):
            raise ValueError(f"{one!r} is neither callable nor a dotted name such as 'shop.errors.judge'")
    return given


def _delays(value: Any) -> Any:
    if value is None or callable(value):
        return value
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError("neither a list of delays nor a callable")
    return tuple(_positive(_duration(delay)).total_seconds() for delay in value)


def _names(value: Any) -> tuple[str, ...]:
    names = _several(value)
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"{name!r} is not text")
    return names


def _several(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (tuple, list, set, frozenset)):
        raise ValueError("not a tuple")
    return tuple(value)


DURATION = "seconds or a timedelta, more than 0 and at most a century"
A_MOMENT = "None, or seconds or a timedelta, more than 0 and at most one second"
COUNT = f"a whole number of at least 1 and at most {UNLIMITED_ATTEMPTS}"
CLASS_NAMES = "a tuple of dotted class names"

Duration = Annotated[timedelta, BeforeValidator(_duration), AfterValidator(_positive)]
Count = Annotated[StrictInt, Field(ge=1, le=UNLIMITED_ATTEMPTS)]
CheckedJitter = Annotated[Jitter, PlainValidator(_jitter)]
CheckedDelays = Annotated[Any, PlainValidator(_delays)]
OnWorkerLost = Literal["retry", "fail"]
Message = Literal["full", "reference"]
ClassNames = Annotated[tuple[str, ...], PlainValidator(_class_names)]
Classifiers = Annotated[tuple[Any, ...], PlainValidator(_classifiers)]
Names = Annotated[tuple[str, ...], PlainValidator(_names)]
ShortWhile = Annotated[timedelta | None, BeforeValidator(_short_while)]
Rate = Annotated[str | None, BeforeValidator(_rate)]

_RETENTION: Mapping[str, timedelta] = {
    "succeeded": timedelta(days=7),
    "cancelled": timedelta(days=7),
    "failed": timedelta(days=30),
    "dead": timedelta(days=30),
}


class TaskSettings(BaseModel):
    """What holds for one task: its own attributes over the configuration. Moments and durations are exact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deadline: Duration = Field(timedelta(hours=24), description=DURATION)
    max_attempts: Count = Field(5, description=COUNT)
    unknown_max_attempts: Count = Field(2, description=COUNT)
    backoff_base: Duration = Field(timedelta(seconds=1), description=DURATION)
    backoff_cap: Duration = Field(timedelta(minutes=5), description=f"{DURATION}, and at least backoff_base")
    backoff_jitter: CheckedJitter = Field("equal", description="'none', 'full', 'equal' or a number from 0 to 1")
    backoff: CheckedDelays = Field(None, description="a list of delays, a callable that gets the attempt, or None")
    deadline_grace: Duration = Field(timedelta(seconds=5), description=DURATION)
    on_worker_lost: OnWorkerLost = Field("retry", description="'retry' or 'fail'")
    retry_rate: Rate = Field(None, description="None or a rate such as '100/m' (s, m or h)")
    concurrency: Count | None = Field(None, description=f"None or {COUNT}")
    settle_within: ShortWhile = Field(None, description=A_MOMENT)
    message: Message = Field("full", description="'full' or 'reference'")
    idempotency_ttl: Duration = Field(timedelta(hours=24), description=DURATION)
    error_max_length: Count = Field(2_000, description=COUNT)
    result_max_bytes: Annotated[StrictInt, Field(ge=0)] = Field(65_536, description="a whole number of at least 0")

    @model_validator(mode="after")
    def _backoff_is_possible(self) -> TaskSettings:
        base, cap = self.backoff_base.total_seconds(), self.backoff_cap.total_seconds()
        if cap < base:
            raise ValueError(f"backoff_cap ({cap:g} s) must be at least the backoff base ({base:g} s)")
        return self

    def delays(self) -> Delays:
        """Return the delays between attempts."""
        doubling = Backoff(self.backoff_base.total_seconds(), self.backoff_cap.total_seconds(), self.backoff_jitter)
        if self.backoff is None:
            return doubling
        return CalledDelays(self.backoff, doubling) if callable(self.backoff) else ListedDelays(self.backoff)

    def seconds_between_retries(self) -> float | None:
        """Return what ``retry_rate`` leaves between two retries of this task over all workers."""
        if self.retry_rate is None:
            return None
        count, _, unit = self.retry_rate.partition("/")
        return {"s": 1, "m": 60, "h": 3_600}[unit] / int(count)

    @cached_property
    def policy(self) -> Policy:
        """What :func:`~celery_guard.core.decide.decide` asks about a task."""
        return Policy(self.unknown_max_attempts, self.delays(), self.on_worker_lost)


class Settings(BaseModel):
    """Every ``guard_*`` key of the Celery configuration, without its prefix."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    database_url: str = Field(description="a PostgreSQL URL, or a SQLite URL with an absolute path")
    database_engine_options: Mapping[str, Any] = Field(default={}, description="a dict for sqlalchemy.create_engine")
    namespace: Annotated[str, Field(min_length=1, max_length=255)] = Field(description="text of 1 to 255 characters")
    heartbeat_interval: Duration = Field(timedelta(seconds=10), description=DURATION)
    rescue_after: Duration = Field(timedelta(seconds=30), description=DURATION)
    dispatch_interval: Duration = Field(timedelta(seconds=1), description=DURATION)
    dispatch_batch: Count = Field(200, description=COUNT)
    retention: Mapping[str, timedelta] = Field(
        default=_RETENTION, description="a duration, or a dict of durations by terminal state"
    )
    retryable_errors: ClassNames = Field((), description=CLASS_NAMES)
    non_retryable_errors: ClassNames = Field((), description=CLASS_NAMES)
    classifiers: Classifiers = Field((), description="a tuple of callables or of their dotted names")
    log_meta: Names = Field((), description="a tuple of the names in meta that log records may carry")
    task: TaskSettings

    @cached_property
    def configured(self) -> Configured:
        """What the configuration says about errors; classifiers given by name are imported here, on first use."""
        return Configured(self.retryable_errors, self.non_retryable_errors, tuple(map(_resolved, self.classifiers)))

    @classmethod
    def read(cls, given: Mapping[str, Any], *, default_url: str, default_namespace: str) -> Settings:
        """Read the keys as users wrote them, such as ``guard_max_attempts``.

        Raises:
            InvalidOption: an unknown key, a wrong type or a broken relation; the text names the key, the value and
                what is accepted.
        """
        keys = {key.removeprefix("guard_"): value for key, value in given.items()}
        own = {key: keys.pop(key) for key in list(keys) if key in cls.model_fields and key != "task"}
        if "default_deadline" in keys:
            keys["deadline"] = keys.pop("default_deadline")
        elif "deadline" in keys:
            raise InvalidOption(_unknown("guard_deadline"))
        own.setdefault("database_url", default_url)
        own.setdefault("namespace", default_namespace)
        for key in keys:
            if key not in TaskSettings.model_fields:
                raise InvalidOption(_unknown(f"guard_{key}"))
        return _checked(cls, {**own, "task": _checked(TaskSettings, keys, _configured)}, _configured)

    def for_task(self, name: str, attributes: Mapping[str, Any]) -> TaskSettings:
        """Return the settings of one task, whose attributes win over the configuration.

        Raises:
            InvalidOption: an attribute is not accepted; the text names task, attribute, value and what is accepted.
        """
        merged = {**dict(self.task), **attributes}
        return _checked(TaskSettings, merged, lambda field: f"{name}: {field}")

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, url: str) -> str:
        if url.startswith("postgresql://"):
            return url.replace("postgresql://", "postgresql+psycopg2://", 1)
        if url.startswith("postgresql+psycopg2://"):
            return url
        if re.match(r"sqlite(\+pysqlite)?:////", url) or re.match(r"sqlite(\+pysqlite)?:///[A-Za-z]:[\\/]", url):
            return url
        if url.startswith("sqlite"):
            raise ValueError(
                "a SQLite path must be absolute (sqlite:////var/lib/shop/runs.db), else each process opens its own file"
            )
        raise ValueError("use postgresql+psycopg2://user@host/database or sqlite:////absolute/path")

    @field_validator("retention", mode="before")
    @classmethod
    def _retention_by_state(cls, value: Any) -> dict[str, timedelta]:
        if not isinstance(value, Mapping):
            return dict.fromkeys(_RETENTION, _positive(_duration(value)))
        unknown = set(value) - set(_RETENTION)
        if unknown:
            raise ValueError(f"{sorted(map(str, unknown))} are not terminal states; use {sorted(_RETENTION)}")
        return {**_RETENTION, **{str(state): _positive(_duration(age)) for state, age in value.items()}}

    @model_validator(mode="after")
    def _a_beat_may_be_missed(self) -> Settings:
        if self.rescue_after < 2 * self.heartbeat_interval:
            raise ValueError(
                f"rescue_after ({self.rescue_after.total_seconds():g} s) must be at least twice"
                f" guard_heartbeat_interval ({self.heartbeat_interval.total_seconds():g} s)"
            )
        return self


def checked_attempts(value: Any, name: str = "max_attempts") -> int:
    """Return how many attempts a run may have, the first included.

    Raises:
        InvalidOption: anything but a whole number of at least 1.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= UNLIMITED_ATTEMPTS:
        raise InvalidOption(f"{name} must be {COUNT}, not {value!r}")
    return value


def _resolved(given: Classifier | str) -> Classifier:
    """Return the callable; one that can't be had complains whenever it is asked, and breaks no run."""
    if not isinstance(given, str):
        return given
    module, _, name = given.rpartition(".")
    try:
        found = getattr(import_module(module), name)
        if not callable(found):
            raise TypeError(f"it is {found!r}")
    except Exception as broken:  # importing a user's module may raise anything
        return _missing(given, f"{type(broken).__qualname__}: {broken}")
    return found  # type: ignore[no-any-return]


def _missing(name: str, why: str) -> Classifier:
    def missing(error: BaseException) -> None:
        raise InvalidOption(f"guard_classifiers: {name} is no callable that can be imported: {why}")

    return missing


def _configured(field: str) -> str:
    return "guard_default_deadline" if field == "deadline" else f"guard_{field}"


def _unknown(key: str) -> str:
    known = [_configured(field) for field in (*Settings.model_fields, *TaskSettings.model_fields) if field != "task"]
    return f"{key} is not a setting of celery_guard; known are {', '.join(sorted(known))}"


def _checked(model: type[M], values: Mapping[str, Any], name: Callable[[str], str]) -> M:
    try:
        return model(**values)
    except ValidationError as refused:
        raise InvalidOption("; ".join(_sentence(model, error, name) for error in refused.errors())) from None


def _sentence(model: Any, error: Any, name: Any) -> str:
    reason = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return str(name(reason))
    field = str(error["loc"][0])
    accepted = model.model_fields[field].description
    hint = f" ({reason})" if error["type"] == "value_error" and len(reason) > 20 else ""
    return f"{name(field)} must be {accepted}, not {_without_password(error['input'])!r}{hint}"


def _without_password(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return re.sub(r"(?s)(://[^:/@]*):.*@", r"\1:***@", re.sub(r"(?i)(password=)[^&]*", r"\1***", value))
