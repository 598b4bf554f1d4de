"""What a caller asked for, in the caller's own words, read and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.compression import get_encoder
from kombu.utils.json import JSONEncoder
from pydantic import BaseModel

from celery_guard.core.deadline import Deadline, aware
from celery_guard.core.idempotency import bound_arguments, checked_key, fingerprint, is_storable
from celery_guard.errors import InvalidOption
from celery_guard.flow import codec
from celery_guard.flow.context import Ancestor
from celery_guard.flow.guard import task_settings

__all__ = [
    "Asked",
    "Delay",
    "canonical_fingerprint",
    "concurrency_group_of",
    "deadline_of",
    "delay_of",
    "key_of",
    "meta_of",
    "queue_of",
    "split_options",
]

#: What a submission passes to the broker but a row does not keep.
_TRANSIENT = frozenset(
    "producer publisher connection retry retry_policy router result_cls timeout confirm_timeout".split()
)


@dataclass(frozen=True)
class Asked:
    """What a caller asked of the guard."""

    deadline: timedelta | float | datetime | None = None
    max_attempts: int | None = None
    idempotency_key: str | None = None
    idempotency_scope: str | None = None
    meta: Mapping[str, Any] | None = None
    inherit_deadline: bool = True


@dataclass(frozen=True)
class Delay:
    """When the first attempt may start: at a moment, or some seconds after the submission; at once when neither."""

    until: datetime | None = None
    seconds: float | None = None

    def __bool__(self) -> bool:
        return self.until is not None or self.seconds is not None


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the row keeps of the execution options, and what only this process needs.

    Raises:
        InvalidOption: nobody could ever compress the message like that.
    """
    kept = {name: value for name, value in options.items() if value is not None and name not in _TRANSIENT}
    kept.pop("add_to_parent", None)
    for name in ("queue", "exchange"):
        if name in kept:
            kept[name] = getattr(kept[name], "name", kept[name])
    if "compression" in kept:
        _refuse_unknown_compression(kept["compression"])
    return kept, {name: options[name] for name in _TRANSIENT if options.get(name) is not None}


def _refuse_unknown_compression(name: Any) -> None:
    try:
        get_encoder(name)
    except (KeyError, TypeError):
        raise InvalidOption(
            f"compression must be one that Kombu has, such as 'gzip' or 'bzip2', not {name!r}"
        ) from None


def deadline_of(task: Any, asked: Asked, expires: Any, ancestor: Ancestor) -> Deadline:
    """Return the earliest of what the call, or else the task, says, of ``expires``, and of the ancestor's deadline."""
    try:
        wanted = Deadline(after=task_settings(task).deadline)
        if asked.deadline is not None:
            wanted = Deadline.of(asked.deadline)
        if expires is not None:
            wanted = wanted.narrowed_to(_expires(task.app, expires))
    except ValueError as error:
        raise InvalidOption(str(error)) from None
    return wanted.narrowed_to(Deadline(at=ancestor.deadline_at) if asked.inherit_deadline else None)


def delay_of(app: Any, eta: Any, countdown: Any) -> Delay:
    """Read Celery's ``eta`` and ``countdown``."""
    if eta is not None:
        return Delay(until=_celery_moment(app, eta, "eta"))
    seconds = countdown.total_seconds() if isinstance(countdown, timedelta) else countdown
    if seconds is None or (seconds == 0 and not isinstance(seconds, bool)):
        return Delay()
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < 3.2e9:
        raise InvalidOption(f"countdown must be a number of seconds of at least 0, not {countdown!r}")
    return Delay(seconds=float(seconds))


def key_of(task: Any, asked: Asked, args: list[Any], kwargs: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return the scope and the key of a submission: the call's own, or the one that the task makes of its arguments."""
    key: Any = asked.idempotency_key
    if key is None:
        key = _made(task, "idempotency_key", args, kwargs)
    if key is None:
        return None, None
    scope: Any = asked.idempotency_scope
    if scope is None:
        scope = _made(task, "idempotency_scope", args, kwargs)
    try:
        return checked_key(task.name if scope is None else scope, "idempotency_scope"), checked_key(key)
    except ValueError as error:
        raise InvalidOption(f"{task.name}: {error}") from None


def concurrency_group_of(task: Any, args: list[Any], kwargs: dict[str, Any]) -> str | None:
    """Return which runs a submission shares a limit with; None: with all of its task, or there is no limit."""
    if getattr(type(task), "concurrency_key", None) is None:
        return None
    try:
        return f"{task.name}:{checked_key(_made(task, 'concurrency_key', args, kwargs), 'concurrency_key')}"
    except ValueError as error:
        raise InvalidOption(f"{task.name}: {error}") from None


def meta_of(asked: Asked, ancestor: Ancestor) -> str | None:
    """Return the correlation data of a submission over that of its ancestor, encoded."""
    own = {} if asked.meta is None else codec.checked_meta(asked.meta)
    merged = {**ancestor.meta, **own}
    return codec.encode(codec.checked_meta(merged), "json") if merged else None


def queue_of(task: Any, args: Any, kwargs: Any, options: Mapping[str, Any]) -> str:
    """Return the name of the queue that Celery's router chooses."""
    routed = task.app.amqp.router.route(dict(options), task.name, args, kwargs, task)
    queue = routed.get("queue")
    name = str(getattr(queue, "name", queue) or routed.get("routing_key") or task.app.conf.task_default_queue)
    if len(name) > 255 or not is_storable(name):
        raise InvalidOption(f"queue must be a name of at most 255 characters, not {name!r}")
    return name


def canonical_fingerprint(task: Any, args: list[Any], kwargs: dict[str, Any]) -> str:
    """Return what makes two submissions the same request, however their arguments are spelt."""
    return fingerprint({task.name: bound_arguments(codec.signature_of(task), args, kwargs)}, _stable)


def _made(task: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Make a key or scope as the task says: a template over the bound arguments, or a callable that gets them."""
    maker: str | Callable[..., Any] | None = getattr(type(task), name, None)
    if maker is None:
        return None
    if callable(maker):
        return maker(*args, **kwargs)
    signature = codec.signature_of(task)
    try:
        bound = signature.bind(*args, **kwargs) if signature else None
        if bound is not None:
            bound.apply_defaults()
        return str(maker).format(**(bound.arguments if bound else kwargs))
    except (KeyError, IndexError, AttributeError, TypeError, ValueError) as error:
        raise InvalidOption(f"{task.name}: {name}={maker!r} does not fit the arguments: {error!r}") from None


def _expires(app: Any, value: Any) -> Deadline:
    """Read Celery's ``expires``: seconds, a moment (a naive one in the app's time zone), or ISO text."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Deadline.of(value, "expires")
    return Deadline(at=_celery_moment(app, value, "expires"))


def _celery_moment(app: Any, value: Any, name: str) -> datetime:
    try:
        return aware(maybe_make_aware(maybe_iso8601(value), app.timezone), name)
    except (AttributeError, TypeError, ValueError):
        raise InvalidOption(f"{name} must be a datetime, ISO text or seconds, not {value!r}") from None


def _stable(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    try:
        return JSONEncoder().default(value)
    except TypeError:
        return codec.encode(value, "pickle")
