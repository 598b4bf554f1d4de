"""What went wrong, in one line and with an exit code."""

from __future__ import annotations

import click

from celery_guard.errors import GuardError

__all__ = ["complaint"]


def complaint(error: Exception) -> click.ClickException | None:
    """Return what to tell the user. None: it is our own mistake, and its traceback is wanted."""
    if isinstance(error, GuardError):
        return click.ClickException(str(error))
    from celery_guard.store.reports import REFUSED

    if isinstance(error, REFUSED):
        lines = str(getattr(error, "orig", None) or error).strip().splitlines()
        return click.ClickException(f"the database of runs refused: {lines[0] if lines else type(error).__name__}")
    return None
