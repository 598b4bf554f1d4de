"""The shop's Celery app: ``celery -A example_project.app worker``."""

from __future__ import annotations

from celery import Celery

from celery_guard import GuardedTask

__all__ = ["app"]

app = Celery("example_project", task_cls=GuardedTask)
app.config_from_object("example_project.celeryconfig")
