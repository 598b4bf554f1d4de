"""What clients are told of a run."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from kombu.utils import json as kombu_json
from pydantic import BaseModel, Field
from pydantic_core import to_jsonable_python

from celery_guard.contrib.fastapi.problems import RETRY_AFTER
from celery_guard.core.states import LIVE, Reason, State
from celery_guard.flow.codec import TOLD_ELSEWHERE
from celery_guard.flow.settle import ending_error
from celery_guard.settings import UNLIMITED_ATTEMPTS
from celery_guard.store.records import TaskRun

__all__ = [
    "ACCEPTED",
    "AcceptedRun",
    "ResultUrl",
    "RunError",
    "RunStatus",
    "accepted_answer",
    "retry_after",
    "status_answer",
    "status_of",
]

#: The longest pause in seconds that a client is asked for while a run is queued or running.
_LONGEST_PAUSE = 30

ResultUrl = Callable[[TaskRun], str | None]


class RunError(BaseModel):
    """Why a run ended, or what its latest attempt met."""

    type: str | None = Field(description="The class of the error.")
    category: str | None = Field(description="`retryable`, `non_retryable` or `unknown`.")
    message: str = Field(description="What it said.")


class RunStatus(BaseModel):
    """A run as it is now. Moments are ISO texts with their zone."""

    id: str = Field(description="Of the run; the Celery task id.")
    task: str = Field(description="The name of the task.")
    status: State = Field(description="`queued`, `running`, `retrying`, or how it ended.")
    terminal_reason: Reason | None = Field(description="Why it ended; null while it is live.")
    attempt: int = Field(ge=0, description="Attempts begun so far.")
    max_attempts: int | None = Field(ge=1, description="Null: any number until the deadline.")
    created_at: datetime = Field(description="When it was submitted.")
    started_at: datetime | None = Field(description="When its latest attempt began.")
    finished_at: datetime | None = Field(description="When it ended.")
    next_retry_at: datetime | None = Field(description="When it goes on, while it waits.")
    deadline_at: datetime = Field(description="When it must be over, whatever happens.")
    result: Any = Field(description="What the task returned; null unless it succeeded.")
    result_note: str | None = Field(description="Why a run that succeeded shows no result.")
    result_url: str | None = Field(description="Where the result is to be had.")
    error: RunError | None = Field(description="What went wrong, while it waits for another attempt too.")
    meta: dict[str, Any] = Field(description="The submission's correlation data.")
    redrive_of: str | None = Field(description="The run that this one repeats.")


class AcceptedRun(BaseModel):
    """A request that has become a run, or that found the run of its idempotency key."""

    id: str
    status: State
    created: bool = Field(description="False: the idempotency key was used before, for this very run.")
    status_url: str = Field(description="Where to ask for the run; the `Location` of the answer.")


def status_of(run: TaskRun, *, serializer: str, result_url: ResultUrl | None = None) -> RunStatus:
    """Tell a run to a client.

    Args:
        serializer: the name of the one that wrote the result.
        result_url: says where the result of a run that succeeded is to be had.
    """
    succeeded = run.state is State.SUCCEEDED
    result, note = _result(run, serializer) if succeeded else (None, None)
    return RunStatus(
        id=run.id,
        task=run.type,
        status=run.state,
        terminal_reason=run.terminal_reason,
        attempt=run.attempt,
        max_attempts=None if run.max_attempts >= UNLIMITED_ATTEMPTS else run.max_attempts,
        created_at=run.created_at,
        started_at=run.started_at,
        finished_at=run.finished_at,
        next_retry_at=None if run.is_terminal else run.next_retry_at,
        deadline_at=run.deadline_at,
        result=result,
        result_note=note,
        result_url=result_url(run) if succeeded and result_url else None,
        error=None if succeeded else _error(run),
        meta=run.meta,
        redrive_of=run.redrive_of,
    )


def status_answer(request: Request, run: TaskRun, status: RunStatus) -> Response:
    """Answer with a run's status; 304 where the client has it already."""
    body = _json(status)
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if not run.is_terminal:
        headers["Retry-After"] = str(retry_after(run, datetime.now(timezone.utc)))
    known = {one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")}
    if request.method == "GET" and known & {tag, "*"}:
        return Response(status_code=304, headers=headers)
    return Response(body, 200, headers, "application/json")


def accepted_answer(accepted: AcceptedRun) -> Response:
    """Answer 202 with the run's place."""
    headers = {"Location": accepted.status_url}
    if accepted.status in LIVE:
        headers["Retry-After"] = "1"
    return Response(_json(accepted), 202, headers, "application/json")


def retry_after(run: TaskRun, now: datetime) -> int:
    """Return the seconds after which it is worth asking again: when the run goes on, or a tenth of its age."""
    if run.next_retry_at is not None:
        pause = (run.next_retry_at - now).total_seconds()
    else:
        pause = min((now - run.created_at).total_seconds() / 10, _LONGEST_PAUSE)
    return max(math.ceil(min(pause, (run.deadline_at - now).total_seconds())), 1)


#: The answer of :func:`accepted_answer` for OpenAPI.
ACCEPTED: dict[str, Any] = {
    "model": AcceptedRun,
    "description": "Accepted: the run is written down, and will end with a stated reason.",
    "headers": {
        "Location": {"description": "Where to ask for the run.", "schema": {"type": "string"}},
        "Retry-After": {**RETRY_AFTER, "description": "Seconds after which to ask for it, while it is live."},
    },
}


def _result(run: TaskRun, serializer: str) -> tuple[Any, str | None]:
    """Return the result as JSON values, or why there is none to show."""
    if run.encoded_result is None:
        return None, "The result is larger than guard_result_max_bytes, so it is not kept; see result_url."
    if run.encoded_result == TOLD_ELSEWHERE:
        return None, "The result was given to Celery's result backend only."
    if serializer != "json":
        return None, f"The result is not JSON: result_serializer is {serializer!r}."
    result = kombu_json.loads(run.encoded_result)
    return to_jsonable_python(result, inf_nan_mode="null", bytes_mode="base64", fallback=str), None


def _error(run: TaskRun) -> RunError | None:
    kind, text = run.error_type, run.last_error
    if run.terminal_reason is not None:
        ending = ending_error(run.terminal_reason, text)
        kind, text = kind or type(ending).__name__, ending.message or ending.reason
    if text is None:
        return None
    return RunError(type=kind, category=run.error_category, message=text.removeprefix(f"{kind}: "))


def _json(model: BaseModel) -> bytes:
    """Write ASCII: a text may hold what UTF-8 can't, such as half of a surrogate pair."""
    return json.dumps(model.model_dump(mode="json"), separators=(",", ":")).encode("ascii")
