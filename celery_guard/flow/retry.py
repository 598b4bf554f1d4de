"""``self.retry()`` on a guarded task: a wish that the attempt ends with, never a message."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from celery.exceptions import Retry as CeleryRetry

from celery_guard.core.decide import Claim
from celery_guard.flow import codec
from celery_guard.flow.guard import Guard

__all__ = ["AskedRetry"]


class AskedRetry(CeleryRetry):  # type: ignore[misc]
    """What a body asked for with ``self.retry(…)``."""

    def __init__(
        self,
        exc: BaseException | None = None,
        when: float | datetime | None = None,
        max_retries: int | None = None,
        changes: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(exc=exc, when=when)
        self.max_retries = max_retries
        self.changes = changes or {}

    def narrowed(self, claim: Claim) -> Claim:
        """Let ``max_retries`` of this very call count, within what the row allows."""
        if self.max_retries is None:
            return claim
        return replace(claim, max_attempts=min(claim.max_attempts, self.max_retries + 1))

    def rewrite(self, task: Any, guard: Guard, claim: Claim) -> None:
        """Write other arguments or options into the row, for the attempts to come."""
        stored = guard.runs.payload(claim.run_id) if self.changes else None
        if stored is None:
            return
        changes = dict(self.changes)
        options = {**codec.decode_options(stored[1])}
        serializer = options.get("serializer") or task.app.conf.task_serializer
        args, kwargs = codec.decode(stored[0], serializer)
        args, kwargs = changes.pop("args", None) or args, changes.pop("kwargs", None) or kwargs
        payload = codec.encode_arguments(task, list(args), dict(kwargs), serializer)
        guard.runs.rewrite(
            claim,
            payload=payload,
            options=codec.encode_options({**options, **changes}),
            fingerprint=codec.digest(payload),
        )
