"""Checks of the configuration and of the database of runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

from celery_guard.cli.preflight.finding import Finding, fail, ok, warn
from celery_guard.core.faults import classify
from celery_guard.core.wording import spell
from celery_guard.errors import SchemaMismatch, StoreUnavailable
from celery_guard.store.migrations import SCHEMA_VERSION
from celery_guard.store.reports import ReportStore

__all__ = ["atomic_claim", "clock_offset", "configuration", "metrics_read", "reachable", "schema", "unknown_share"]

#: A difference of clocks that people should know of: only the database's clock decides.
_OFFSET = timedelta(seconds=2)

#: What share of the runs that ended badly may be of unknown errors, and since when they are counted.
_UNKNOWN_SHARE, _UNKNOWN_SINCE = 0.2, timedelta(days=7)

#: How long ago metrics may have been read last.
_READ_WITHIN = timedelta(minutes=10)


class _Probe(Exception):
    """An error that means nothing to anybody."""


def configuration(app: Any, guard: Any) -> Iterator[Finding]:
    """Read the settings, and ask the configured classifiers about an error that they can't know."""
    settings = guard.settings
    found = classify(
        _Probe("a question of guard check"), now=datetime.now(timezone.utc), configured=settings.configured
    )
    if found.trouble:
        yield fail(
            found.trouble, "correct guard_classifiers: a classifier gets an error and returns a category, or None"
        )
        return
    yield ok(f"the settings fit; the namespace is {settings.namespace!r}")


def reachable(app: Any, guard: Any) -> Iterator[Finding]:
    """Ask the database for its clock."""
    try:
        guard.runs.clock()
    except StoreUnavailable as away:
        yield fail(str(away), "start it, or correct guard_database_url")
        return
    except SchemaMismatch:
        pass  # it answers; the next check says more
    kind = "SQLite" if guard.database.is_sqlite else "PostgreSQL"
    if guard.database.is_sqlite:
        yield warn(
            f"runs are kept in {kind}, which serves one machine",
            "set guard_database_url to a PostgreSQL for production",
        )
    else:
        yield ok(f"runs are kept in {kind}, and it answers")


def schema(app: Any, guard: Any) -> Iterator[Finding]:
    """Compare the version of the tables with this code's."""
    try:
        guard.runs.clock()
    except SchemaMismatch as mismatch:
        yield fail(str(mismatch), "run: celery -A <your app> guard migrate")
    else:
        yield ok(f"the tables fit version {SCHEMA_VERSION}")


def atomic_claim(app: Any, guard: Any) -> Iterator[Finding]:
    """A claim is one UPDATE … RETURNING that compares the state."""
    version = _reports(guard).server_version()
    kind, oldest = ("SQLite", (3, 35)) if guard.database.is_sqlite else ("PostgreSQL", (12, 0))
    found = tuple(int(part) for part in version.split()[0].split(".")[:2] if part.isdigit())
    if found < oldest:
        yield fail(f"{kind} {version} is too old", f"use {kind} {'.'.join(map(str, oldest))} or newer")
    else:
        yield ok(f"one UPDATE … RETURNING on {kind} {version.split()[0]} claims a run; one worker wins")


def clock_offset(app: Any, guard: Any) -> Iterator[Finding]:
    """Compare the database's clock with this machine's."""
    before = datetime.now(timezone.utc)
    clock = guard.runs.clock()
    took = datetime.now(timezone.utc) - before
    offset = clock - before - took / 2
    said = f"{offset.total_seconds():+.2f} s"
    if abs(offset) > _OFFSET + took:
        yield warn(
            f"the database's clock differs from this machine's by {said}; the database's decides",
            "synchronise both with NTP: moments that callers name, such as eta, come from their clocks",
        )
    else:
        yield ok(f"the database's clock differs from this machine's by {said}")


def unknown_share(app: Any, guard: Any) -> Iterator[Finding]:
    """Look at how runs failed and died lately."""
    shares = _reports(guard).unknown_shares(_UNKNOWN_SINCE)
    loud = {name: share for name, share in sorted(shares.items()) if share[0] > _UNKNOWN_SHARE * share[1]}
    for name, (unknown, all_) in loud.items():
        yield warn(
            f"{name}: {unknown} of {all_} runs that failed or died in the last {_UNKNOWN_SINCE.days} days did so by an"
            " error that no rule knows",
            "look at them with: guard runs --task NAME --state dead; declare them in retryable= or non_retryable=",
        )
    if not loud:
        ended = sum(all_ for _, all_ in shares.values())
        yield ok(f"{ended} runs failed or died in the last {_UNKNOWN_SINCE.days} days, hardly any by unknown errors")


def metrics_read(app: Any, guard: Any) -> Iterator[Finding]:
    """Look at when a collector last counted what ended."""
    saved = guard.tallies.load()
    since = saved.now - saved.counted_to if saved.counted_to else None
    if since is not None and since <= _READ_WITHIN:
        yield ok(f"somebody read the metrics {spell(since)} ago")
        return
    yield warn(
        "nobody has ever read the metrics" if since is None else f"the metrics were last read {spell(since)} ago",
        "let Prometheus scrape guard metrics, or celery_guard.contrib.prometheus, and load the alert rules",
    )


def _reports(guard: Any) -> ReportStore:
    return ReportStore(guard.database, guard.settings.namespace)
