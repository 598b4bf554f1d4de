"""Accepting a request as a run: 202, and where to ask for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from sqlalchemy.exc import DBAPIError

from celery_guard.contrib.fastapi.answers import ACCEPTED, AcceptedRun, accepted_answer
from celery_guard.contrib.fastapi.paths import path_of
from celery_guard.contrib.fastapi.places import in_thread
from celery_guard.contrib.fastapi.problems import Problem, described, unavailable
from celery_guard.contrib.fastapi.trust import Anybody
from celery_guard.core.idempotency import LONGEST_KEY, checked_key
from celery_guard.core.states import State
from celery_guard.errors import (
    DeadlineExceeded,
    IdempotencyConflict,
    InvalidOption,
    RunExists,
    RunNotFound,
    StoreUnavailable,
)
from celery_guard.flow.guard import guard_of
from celery_guard.flow.result import EagerRun

__all__ = ["accept", "accepting"]

#: What may be said to ``apply_async`` and not here.
_OURS = {"idempotency_key", "idempotency_scope", "wait_for_broker"}

#: How much of a client's ``X-Request-ID`` is kept.
_REQUEST_ID = 128


async def accept(
    task: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    request: Request,
    caller: str | Anybody,
    key_required: bool = False,
    session: Any = None,
    meta: Mapping[str, Any] | None = None,
    **options: Any,
) -> Response:
    """Submit a run for a request and return 202 with its id, its status and its place.

    The answer waits for the row and not for the broker. The client's ``X-Request-ID`` goes into the run's ``meta`` as
    ``request_id``. With an ``Idempotency-Key`` header, the same request sent again finds the same run; without one, a
    task that makes its own key has that.

    Args:
        task: a guarded task.
        args, kwargs: its arguments.
        request: the request that is being served.
        caller: who sent it, such as a user's or a tenant's id: keys of different callers never meet. ``ANYBODY`` lets
            all callers share theirs.
        key_required: whether a request without an ``Idempotency-Key`` is refused.
        session: a SQLAlchemy ``AsyncSession`` on the same database: the run is written in its transaction. Commit it
            before you return the answer.
        meta: more correlation data.
        options: what ``apply_async`` takes besides, such as ``deadline`` or ``queue``.

    Raises:
        Problem: 400 for a key that is missing or malformed, 422 for one that was used with other arguments or for a
            deadline that has passed, 409 for a ``task_id`` that is taken, 503 when the database can't be reached.
        InvalidOption: an option is not accepted, or the application includes no ``guard_router``.
    """
    if not hasattr(task.__class__, "_guard_bound"):
        raise InvalidOption(f"accept takes a guarded task, not {task!r}")
    for name in _OURS & options.keys():
        raise InvalidOption(f"accept takes no {name}: the request and its caller say what it is")
    scope = None if isinstance(caller, Anybody) else _checked_caller(caller)
    path_of(request, "-")
    wanted = {**options, "meta": {**(meta or {}), **_request_id(request)}}
    key = _key(request, required=key_required)
    if key is not None:
        wanted |= {"idempotency_key": key, "idempotency_scope": scope}
    try:
        result, status = await _submitted(task, list(args), dict(kwargs or {}), session, wanted)
    except Exception as error:
        problem = _problem(error)
        if problem is None:
            raise
        raise problem from error
    url = path_of(request, result.id)
    return accepted_answer(AcceptedRun(id=result.id, status=status, created=result.created, status_url=url))


def accepting(*, key_required: bool = False) -> dict[str, Any]:
    """Describe an endpoint that returns what :func:`accept` does: ``@app.post("/orders", **accepting())``."""
    problems = {400: "The `Idempotency-Key` is malformed."}
    if key_required:
        problems[400] = "The `Idempotency-Key` is missing or malformed."
    problems[503] = "The database of runs can't be reached; nothing was accepted."
    refused = described({422: "The request is not valid, or its `Idempotency-Key` was used for another one."})
    refused[422]["content"]["application/json"] = {"schema": _INVALID}
    parameters = [
        {**_KEY, "required": key_required},
        {"name": "X-Request-ID", "in": "header", "required": False, "schema": {"type": "string"}},
    ]
    return {
        "status_code": 202,
        "response_class": Response,
        "responses": {202: ACCEPTED, **described(problems), **refused},
        "openapi_extra": {"parameters": parameters},
    }


async def _submitted(task: Any, args: Any, kwargs: Any, session: Any, options: Mapping[str, Any]) -> tuple[Any, State]:
    """Submit, and say how the run is now. Nothing can fail any more once a new row is written."""

    def here() -> tuple[Any, State]:
        result = task.apply_async(args, kwargs, wait_for_broker=False, **options)
        return result, _status(result)

    if session is None:
        return await in_thread(here)
    await in_thread(lambda: guard_of(task.app).database.store_id)  # asked once, and not from the event loop
    try:
        result = await task.submit_async(args, kwargs, session=session, **options)
    except (DBAPIError, OSError) as error:
        raise StoreUnavailable(f"the session's database can't be reached: {error}") from error
    return result, State.QUEUED if result.created else await in_thread(lambda: _status(result))


def _status(result: Any) -> State:
    """Return how the run is; one of a transaction that has not committed yet can't be read, and is queued."""
    if result.created and not isinstance(result, EagerRun):
        return State.QUEUED
    try:
        return result.run.state  # type: ignore[no-any-return]
    except RunNotFound:
        return State.QUEUED


def _problem(error: Exception) -> Problem | None:
    """Return what the client is told of a submission that failed. None: it is a mistake of the application's."""
    match error:
        case IdempotencyConflict():
            return Problem(422, "idempotency_key_reused", "This Idempotency-Key was used for another request.")
        case DeadlineExceeded():
            return Problem(422, "deadline_passed", "The deadline has passed already; nothing was submitted.")
        case RunExists():
            return Problem(409, "run_exists", "There is another run of this id.")
        case StoreUnavailable():
            return unavailable()
        case _:
            return None


def _key(request: Request, *, required: bool) -> str | None:
    """Read the ``Idempotency-Key``: a structured string in quotes, or the same without them."""
    given = request.headers.getlist("idempotency-key")
    if not given:
        if required:
            raise Problem(400, "idempotency_key_missing", "This request needs an Idempotency-Key header.")
        return None
    key = given[0].strip(" \t")
    if len(given) > 1 or len(key) > LONGEST_KEY or not re.fullmatch(_KEY_PATTERN, key):
        raise Problem(400, "idempotency_key_malformed", _KEY_WORDS)
    return key[1:-1] if key[0] == key[-1] == '"' else key


def _request_id(request: Request) -> dict[str, str]:
    given = "".join(filter(str.isprintable, request.headers.get("x-request-id", "")))[:_REQUEST_ID]
    return {"request_id": given} if given else {}


def _checked_caller(caller: object) -> str:
    try:
        return checked_key(caller, "caller")
    except ValueError as error:
        raise InvalidOption(f"{error}; ANYBODY lets all callers share their keys") from None


_KEY_PATTERN = r'^("[!#-~]([ !#-~]*[!#-~])?"|[!#-~]([ !#-~]*[!#-~])?)$'
_KEY_WORDS = (
    f"An Idempotency-Key is one header of 1 to {LONGEST_KEY} printable ASCII characters; quotes, where there are any,"
    " are around all of it."
)
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The same key with the same request gives the same run.",
    "schema": {"type": "string", "maxLength": LONGEST_KEY, "pattern": _KEY_PATTERN},
}

_INVALID = {"type": "object", "required": ["detail"], "properties": {"detail": {"type": "array", "items": {}}}}
