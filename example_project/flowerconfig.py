"""Flower's configuration: attempt, deadline and reason on the page of each task."""

from celery_guard.contrib.flower import format_task

__all__ = ["format_task"]
