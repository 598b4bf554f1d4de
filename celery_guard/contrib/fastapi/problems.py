"""Refusals as problem documents (RFC 9457)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute

from celery_guard.errors import RunNotFound, StoreUnavailable

__all__ = ["RETRY_AFTER", "Problem", "ProblemRoute", "described", "not_found", "problem_response", "unavailable"]

_MEDIA_TYPE = "application/problem+json"

#: Seconds after which a client that met a database outage may ask again.
_OUTAGE = 5


RETRY_AFTER = {"description": "Seconds to wait before asking again.", "schema": {"type": "integer", "minimum": 1}}

_SCHEMA = {
    "title": "Problem",
    "type": "object",
    "required": ["detail"],
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "What went wrong, for programs."},
        "detail": {"type": "string", "description": "What went wrong, for people."},
    },
}


class Problem(HTTPException):
    """A refusal.

    FastAPI's own handler answers it with ``detail`` alone; ``add_exception_handler(Problem, problem_response)`` gives
    the whole document.

    Args:
        status: the HTTP status.
        code: what went wrong, for programs, such as ``idempotency_key_reused``.
        detail: the same for people.
        headers: more headers of the answer.
    """

    def __init__(self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail, {"content-type": _MEDIA_TYPE, **(headers or {})})
        self.code = code

    def response(self) -> Response:
        """Return the whole document as an answer."""
        title = HTTPStatus(self.status_code).phrase
        document = {"title": title, "status": self.status_code, "code": self.code, "detail": self.detail}
        return JSONResponse(document, self.status_code, dict(self.headers or {}))


async def problem_response(request: Request, problem: Exception) -> Response:
    """Answer a :class:`Problem` with its whole document: an exception handler for the application."""
    assert isinstance(problem, Problem)
    return problem.response()


def unavailable() -> Problem:
    """Return what a client hears of a database that can't be reached."""
    detail = "The database of runs can't be reached now; nothing was accepted or changed."
    return Problem(503, "store_unavailable", detail, {"Retry-After": str(_OUTAGE)})


def not_found() -> Problem:
    """Return what a client hears of a run that is not there for it."""
    return Problem(404, "run_not_found", "There is no such run: it never was, it was pruned, or it is not yours.")


class ProblemRoute(APIRoute):
    """A route that answers with problem documents, whatever handlers its application has."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with its refusals turned into answers."""
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await inner(request)
            except Problem as problem:
                return problem.response()
            except RunNotFound:  # pruned a moment ago
                return not_found().response()
            except StoreUnavailable:
                return unavailable().response()

        return handler


def described(problems: Mapping[int, str]) -> dict[int | str, Any]:
    """Describe refusals for OpenAPI, by status; ``Retry-After`` is a header of 503."""
    found: dict[int | str, Any] = {}
    for status, words in problems.items():
        found[status] = {"description": words, "content": {_MEDIA_TYPE: {"schema": _SCHEMA}}}
        if status == 503:
            found[status]["headers"] = {"Retry-After": RETRY_AFTER}
    return found
