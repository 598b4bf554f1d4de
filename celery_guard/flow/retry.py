"""``self.retry()`` on a guarded task: a wish that the attempt ends with, never a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from inspect import Parameter
from typing import Any

from celery.exceptions import Retry as CeleryRetry

from celery_guard.core.decide import Claim
from celery_guard.errors import InvalidOption
from celery_guard.flow import codec
from celery_guard.flow.guard import Guard, guard_of
from celery_guard.flow.wishes import delay_of, queue_of, split_options

__all__ = ["AskedRetry", "asked_retry"]

#: What holds for the whole run.
_FIXED = frozenset(
    "deadline expires idempotency_key idempotency_scope inherit_deadline max_attempts meta session task_id".split()
)

_NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class AskedRetry(CeleryRetry):  # type: ignore[misc]
    """What a body asked for with ``self.retry(…)``."""

    def __init__(
        self,
        exc: BaseException | None = None,
        when: float | datetime | None = None,
        max_retries: int | None = None,
        rewritten: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(exc=exc, when=when)
        self.max_retries = max_retries
        self.rewritten = rewritten or {}

    def narrowed(self, claim: Claim) -> Claim:
        """Let ``max_retries`` of this very call count, within what the row allows."""
        if self.max_retries is None:
            return claim
        return replace(claim, max_attempts=min(claim.max_attempts, self.max_retries + 1))

    def rewrite(self, guard: Guard, claim: Claim) -> None:
        """Write other arguments or options into the row, for the attempts to come."""
        if self.rewritten:
            guard.runs.rewrite(claim, **self.rewritten)


def asked_retry(
    task: Any,
    args: Any,
    kwargs: Any,
    *,
    exc: BaseException | None,
    eta: Any,
    countdown: Any,
    max_retries: Any,
    options: Mapping[str, Any],
) -> AskedRetry:
    """Read what a body asks for while it is still there to be told what is wrong with it.

    Raises:
        InvalidOption: an option is not accepted.
        UnserializableArgument: an argument can't be encoded.
        TypeError: the arguments do not fit the task's signature.
    """
    if max_retries is not None and (isinstance(max_retries, bool) or not isinstance(max_retries, int)):
        raise InvalidOption(f"max_retries must be None or a whole number, not {max_retries!r}")
    kept, _ = split_options(options)
    if _FIXED & kept.keys():
        raise InvalidOption(f"retry() can't change {sorted(_FIXED & kept.keys())}: they hold for the whole run")
    changes = bool(kept) or args is not None or kwargs is not None
    rewritten = _rewritten(task, args, kwargs, kept) if changes else None
    return AskedRetry(exc, _when(task, eta, countdown), max_retries, rewritten)


def _when(task: Any, eta: Any, countdown: Any) -> float | datetime:
    if eta is not None:
        moment = delay_of(task.app, eta, None).until
        assert moment is not None
        return moment
    seconds = task.default_retry_delay if countdown is None else countdown
    if isinstance(seconds, (int, float)) and seconds < 0:
        return 0.0  # in the past, as in Celery
    return delay_of(task.app, None, seconds).seconds or 0.0


def _rewritten(task: Any, args: Any, kwargs: Any, kept: Mapping[str, Any]) -> Mapping[str, str] | None:
    stored = guard_of(task.app).runs.payload(task.request.id)
    if stored is None:
        return None
    before = codec.decode_options(stored[1])
    options = {**before, **kept}
    default = task.app.conf.task_serializer
    args, kwargs = _merged(task, codec.decode(stored[0], before.get("serializer") or default), args, kwargs)
    args, kwargs, _ = task._prepared(args, kwargs, None, {})
    payload = codec.encode_arguments(task, list(args), dict(kwargs), options.get("serializer") or default)
    return {
        "payload": payload,
        "options": codec.encode_options(options),
        "fingerprint": codec.digest(payload),
        "queue": queue_of(task, args, kwargs, options),
    }


def _merged(task: Any, before: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Keep what is not given, unless it stands in the way of what is; Celery's rule."""
    old_args, old_kwargs = before
    signature = codec.signature_of(task)
    if signature is None or (args is None) == (kwargs is None):
        return old_args if args is None else args, old_kwargs if kwargs is None else kwargs
    if kwargs is None:
        named = [parameter.name for parameter in signature.parameters.values() if parameter.kind in _NAMED]
        return args, {name: value for name, value in old_kwargs.items() if name not in named[: len(args)]}
    bound = signature.bind_partial(*old_args)
    kwargs = dict(kwargs)
    for name in [name for name in kwargs if name in bound.arguments]:
        if signature.parameters[name].kind is Parameter.POSITIONAL_OR_KEYWORD:
            bound.arguments[name] = kwargs.pop(name)
    return bound.args, {**bound.kwargs, **kwargs}
