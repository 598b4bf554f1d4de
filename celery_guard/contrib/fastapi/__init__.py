"""Guarded tasks in a FastAPI application: requests that are accepted as runs, and a status API for them.

It needs the extra ``fastapi``. Nothing here blocks the event loop.
"""

from __future__ import annotations

from celery_guard.contrib.fastapi.acceptance import accept, accepting
from celery_guard.contrib.fastapi.answers import AcceptedRun, RunError, RunStatus
from celery_guard.contrib.fastapi.problems import Problem, problem_response
from celery_guard.contrib.fastapi.router import Authorize, guard_router
from celery_guard.contrib.fastapi.trust import ANYBODY, Anybody

__all__ = [
    "ANYBODY",
    "AcceptedRun",
    "Anybody",
    "Authorize",
    "Problem",
    "RunError",
    "RunStatus",
    "accept",
    "accepting",
    "guard_router",
    "problem_response",
]
