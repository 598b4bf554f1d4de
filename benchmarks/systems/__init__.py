"""The systems that take turns.

Each is a module of this package with ``SYSTEMS`` and these functions, which get the options of one of them:

``setup(options)``: make the tables; database and Redis are empty.
``submitter(options)``: return a callable that submits one job by its number.
``bulk_submitter(options)``: return a callable that submits a list of them at once; left out where there is none.
``worker(options, number)``: run the worker with that number until SIGTERM.

A module imports its own system inside of its functions: the driver loads them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

__all__ = ["System", "every_system"]

_MODULES = "plain_celery by_hand guarded limits procrastinate_ pgqueuer_ dbos_ dramatiq_ chancy_".split()


@dataclass(frozen=True)
class System:
    """One contestant.

    Args:
        options: what its module's functions get.
        workers: how many worker processes the driver starts; a Celery worker forks two children by itself.
        settled: the statement that counts jobs that have ended, where their ends are rows.
        share: of the jobs asked for, how many it gets: a fast one needs more of them to be timed.
        parts: what is measured of it.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 1
    settled: str | None = None
    share: float = 1.0
    parts: tuple[str, ...] = ("submit", "drain", "bulk", "latency")
    module: str = ""


def every_system() -> dict[str, System]:
    """Return all systems by name."""
    found = {}
    for module in _MODULES:
        for name, system in import_module(f"{__name__}.{module}").SYSTEMS.items():
            found[name] = System(**{**vars(system), "module": f"{__name__}.{module}"})
    return found
