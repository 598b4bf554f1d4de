"""Where a run's status is to be had."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import Request
from starlette.routing import NoMatchFound

from celery_guard.errors import InvalidOption

__all__ = ["RUN", "path_of"]

#: The name of the route ``GET /runs/{run_id}``.
RUN = "guard_run"


def path_of(request: Request, run_id: str) -> str:
    """Return the path of a run's status in the application that got this request.

    Raises:
        InvalidOption: the application has no status API.
    """
    try:
        path = str(request.app.url_path_for(RUN, run_id="-"))
    except NoMatchFound:
        raise InvalidOption(
            "this application can't say where a run is: app.include_router(guard_router(…)) gives it a status API"
        ) from None
    root: str = request.scope.get("root_path", "")
    return f"{root.rstrip('/')}{path.removesuffix('-')}{quote(run_id, safe='')}"
