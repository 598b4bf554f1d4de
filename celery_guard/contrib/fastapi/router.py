"""A status API for the runs of one Celery app."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from celery_guard.contrib.fastapi.answers import (
    ACCEPTED,
    AcceptedRun,
    ResultUrl,
    RunStatus,
    accepted_answer,
    status_answer,
    status_of,
)
from celery_guard.contrib.fastapi.paths import RUN, path_of
from celery_guard.contrib.fastapi.places import in_thread
from celery_guard.contrib.fastapi.problems import RETRY_AFTER, Problem, ProblemRoute, described, not_found
from celery_guard.contrib.fastapi.trust import Anybody
from celery_guard.core.idempotency import checked_key
from celery_guard.core.states import State
from celery_guard.errors import InvalidOption, RunNotFound
from celery_guard.flow.cancel import cancel
from celery_guard.flow.guard import guard_of
from celery_guard.flow.redrive import redrive
from celery_guard.observe.story import tell
from celery_guard.observe.timeline import timeline
from celery_guard.store.records import TaskRun
from celery_guard.store.reports import ReportStore

__all__ = ["Authorize", "guard_router"]

Authorize = Callable[[Request, TaskRun], bool | Awaitable[bool]]

#: Seconds after which the page of a live run loads itself again.
_REFRESH = 5
#: The page has no script and asks for nothing, and the browser is told to hold it to that.
_PAGE_HEADERS = {
    "Cache-Control": "private, no-cache",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
}


def guard_router(app: Any, *, authorize: Authorize | Anybody, result_url: ResultUrl | None = None) -> APIRouter:
    """Return routes that show, cancel and redrive the runs of an app, for ``include_router``.

    ``GET /runs/{id}``, ``GET /runs/{id}/timeline``, ``POST /runs/{id}/cancel``, ``POST /runs/{id}/redrive``. A run that
    does not exist, was pruned, or is not the client's is 404.

    Args:
        app: the Celery app.
        authorize: gets the request and the run, such as to compare a tenant with ``run.meta``, and returns whether
            the client may do what it asks; plain or ``async``. A plain one is called in a thread. ``ANYBODY`` lets
            everybody in who knows an id.
        result_url: gets a run that succeeded and returns where its result is to be had, or None. Results larger than
            ``guard_result_max_bytes`` are not kept, so a task with large results stores them and returns their place.

    Raises:
        InvalidOption: ``authorize`` is neither.
    """
    if not isinstance(authorize, Anybody) and not callable(authorize):
        raise InvalidOption(f"authorize must be a callable of the request and the run, or ANYBODY, not {authorize!r}")
    desk = _Desk(app, authorize, result_url)
    router = APIRouter(tags=["runs"], route_class=ProblemRoute)
    add = partial(router.add_api_route, response_class=Response)
    add("/runs/{run_id}", desk.status, name=RUN, responses=_STATUS, summary="How a run is")
    add(
        "/runs/{run_id}/timeline",
        desk.timeline,
        name="guard_timeline",
        responses=_TIMELINE,
        response_class=HTMLResponse,
        summary="A run's life as a picture",
    )
    add(
        "/runs/{run_id}/cancel",
        desk.cancel,
        name="guard_cancel",
        methods=["POST"],
        responses=_CANCEL,
        summary="End a run now",
    )
    add(
        "/runs/{run_id}/redrive",
        desk.redrive,
        name="guard_redrive",
        methods=["POST"],
        status_code=202,
        responses=_REDRIVE,
        summary="Run an ended run again, as a new one",
    )
    return router


@dataclass(frozen=True)
class _Desk:
    """Answers the requests of one router."""

    app: Any
    authorize: Authorize | Anybody
    result_url: ResultUrl | None

    async def status(self, request: Request, run_id: str) -> Response:
        """Tell a run as it is now. While it is live, `Retry-After` says when to ask again."""
        return self._answer(request, await self._permitted(request, run_id))

    async def timeline(self, request: Request, run_id: str) -> Response:
        """Draw a run's life: attempts, waits and the deadline on a time axis. A live page loads itself again."""
        await self._permitted(request, run_id)
        guard = guard_of(self.app)
        story = await in_thread(lambda: tell(run_id, guard.runs, ReportStore(guard.database, guard.settings.namespace)))
        if story is None:
            raise RunNotFound(f"no run has the id {run_id!r}")
        page = timeline(story, refresh_after=None if story.run.is_terminal else _REFRESH)
        return HTMLResponse(page, headers=_PAGE_HEADERS)

    async def cancel(self, request: Request, run_id: str) -> Response:
        """End a run now, whether it waits or runs. A run that is cancelled already stays so."""
        await self._permitted(request, run_id)
        run = await in_thread(lambda: cancel(run_id, app=self.app))
        if run.state is not State.CANCELLED:
            raise Problem(409, "run_has_ended", f"The run has ended before: it is {run.state}.")
        return self._answer(request, run)

    async def redrive(self, request: Request, run_id: str) -> Response:
        """Submit the arguments of an ended run again, with fresh attempts and a fresh deadline."""
        await self._permitted(request, run_id)
        try:
            again = await in_thread(lambda: redrive(run_id, app=self.app))
        except InvalidOption:
            raise Problem(409, "run_is_live", "The run has not ended; only then can it be driven again.") from None
        url = path_of(request, again.id)
        return accepted_answer(AcceptedRun(id=again.id, status=State.QUEUED, created=True, status_url=url))

    async def _permitted(self, request: Request, run_id: str) -> TaskRun:
        """Return the run, if there is one and the client may do this with it."""

        def look() -> tuple[TaskRun | None, Any]:
            run = self._find(run_id)
            return run, run is not None and self._asked(request, run)

        run, verdict = await in_thread(look)
        if isawaitable(verdict):
            verdict = await verdict
        if run is None or not verdict:
            raise not_found()
        return run

    def _find(self, run_id: str) -> TaskRun | None:
        try:
            return guard_of(self.app).runs.find(checked_key(run_id, "run_id"))
        except ValueError:  # what is no id is nobody's
            return None

    def _asked(self, request: Request, run: TaskRun) -> bool | Awaitable[bool]:
        return True if isinstance(self.authorize, Anybody) else self.authorize(request, run)

    def _answer(self, request: Request, run: TaskRun) -> Response:
        status = status_of(run, serializer=guard_of(self.app).result_serializer, result_url=self.result_url)
        return status_answer(request, run, status)


_NOT_FOUND = {404: "There is no such run, or it is not the client's."}
_AWAY = {503: "The database of runs can't be reached."}
#: Being there, it also keeps FastAPI from promising a 422 that no text in a path can cause.
_OTHERS: dict[int | str, Any] = {
    "default": {"description": "What the application's own authorization says, such as 401."}
}
_ETAG = {"ETag": {"description": "Of this very answer.", "schema": {"type": "string"}}}
_SOMETIMES = {
    "Retry-After": {**RETRY_AFTER, "description": f"{RETRY_AFTER['description']} Only while the run is live."}
}
_STATUS: dict[int | str, Any] = {
    200: {"model": RunStatus, "description": "The run as it is now.", "headers": {**_ETAG, **_SOMETIMES}},
    304: {"description": "It is as `If-None-Match` says.", "headers": {**_ETAG, **_SOMETIMES}},
    **described({**_NOT_FOUND, **_AWAY}),
    **_OTHERS,
}
_TIMELINE: dict[int | str, Any] = {
    200: {"description": "One HTML page that needs nothing else."},
    **described({**_NOT_FOUND, **_AWAY}),
    **_OTHERS,
}
_CANCEL: dict[int | str, Any] = {
    200: {"model": RunStatus, "description": "The run is cancelled.", "headers": _ETAG},
    **described({**_NOT_FOUND, 409: "The run has ended otherwise.", **_AWAY}),
    **_OTHERS,
}
_REDRIVE: dict[int | str, Any] = {
    202: ACCEPTED,
    **described({**_NOT_FOUND, 409: "The run has not ended.", **_AWAY}),
    **_OTHERS,
}
