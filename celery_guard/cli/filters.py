"""Which runs a command is about: options for all that can be asked."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from celery_guard.core.states import Reason, State

if TYPE_CHECKING:
    from celery_guard.store.reports import Cursor, RunFilter

__all__ = ["SINCE", "CursorText", "filter_options", "read_filter"]

F = TypeVar("F", bound=Callable[..., Any])

_AGO = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Since(click.ParamType):  # type: ignore[type-arg]
    """A moment with its zone, or how long ago."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read ``90s``, ``15m``, ``2h``, ``7d``, ``1w`` or an ISO moment with its zone."""
        if isinstance(value, (datetime, timedelta)):
            return value
        ago = _AGO.fullmatch(value)
        try:
            if ago:
                return timedelta(**{_UNITS[ago[2]]: float(ago[1])})
            moment = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", value))
        except (OverflowError, ValueError):
            self.fail(f"{value!r} is neither a time such as 15m, 2h or 7d, nor an ISO moment", param, ctx)
        if moment.tzinfo is None:
            self.fail(f"{value!r} names no time zone; write {value}Z for UTC", param, ctx)
        return moment


class Entry(click.ParamType):  # type: ignore[type-arg]
    """``name=value``."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Read an entry of the correlation data."""
        name, equals, text = value.partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not of the form name=value", param, ctx)
        return name, text


class CursorText(click.ParamType):  # type: ignore[type-arg]
    """Where a page ended, as the page before it said."""

    name = "cursor"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Cursor:
        """Read ``<ISO moment>/<id>``."""
        from celery_guard.store.reports import Cursor

        at, slash, run_id = value.partition("/")
        try:
            moment = datetime.fromisoformat(at)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None or not slash:
            self.fail(f"{value!r} is not what a page before gave as its end", param, ctx)
        return Cursor(moment, run_id)


#: Since when; for every command that looks back.
SINCE = Since()


def filter_options(command: F) -> F:
    """Add the options that choose runs."""
    choices = (
        click.option(
            "--state", "states", multiple=True, type=click.Choice([*map(str, State)]), help="May be repeated."
        ),
        click.option("--reason", type=click.Choice([*map(str, Reason)]), help="The terminal reason."),
        click.option("--task", help="The task's name."),
        click.option("--queue", help="The queue it was sent to."),
        click.option("--since", type=SINCE, help="Ended, or submitted and still live, since: 15m, 2h, 7d or a moment."),
        click.option("--key", help="The idempotency key."),
        click.option("--meta", multiple=True, type=Entry(), help="An entry of the correlation data; may be repeated."),
    )
    for add in reversed(choices):
        command = add(command)
    return command


def read_filter(
    *,
    states: tuple[str, ...],
    reason: str | None,
    task: str | None,
    queue: str | None,
    since: Any,
    key: str | None,
    meta: tuple[tuple[str, str], ...],
) -> RunFilter:
    """Return what the options say."""
    from celery_guard.store.reports import RunFilter

    return RunFilter(tuple(map(State, states)), Reason(reason) if reason else None, task, queue, since, key, dict(meta))
