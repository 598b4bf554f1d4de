"""One guard per Celery app: its settings, its store, and this process's place among the workers."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import Task

from celery_guard.errors import InvalidOption, StoreUnavailable
from celery_guard.flow.waiting import tell_that_it_waits
from celery_guard.observe.announce import announce
from celery_guard.observe.events import TaskEvent
from celery_guard.observe.logs import logger
from celery_guard.observe.transitions import Transition
from celery_guard.settings import UNLIMITED_ATTEMPTS, Settings, TaskSettings
from celery_guard.store.database import Database
from celery_guard.store.effects import EffectStore
from celery_guard.store.permits import PermitStore
from celery_guard.store.rates import RateStore
from celery_guard.store.runs import RunStore
from celery_guard.store.tallies import TallyStore, Unrecorded
from celery_guard.store.workers import WorkerStore

if TYPE_CHECKING:
    from celery_guard.flow.worker import Keeper

__all__ = ["Guard", "guard_of", "guarded_tasks", "set_guard", "task_settings"]

_ATTRIBUTE = "_celery_guard"

_NO_WISH = object()


class Guard:
    """What celery_guard knows of one app in this process."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self._settings: Settings | None = None
        self._result_serializer: str | None = None
        #: Whether the settings were read for good.
        self.is_final = False
        #: The boot id of the worker whose main process this is.
        self.worker_id: str | None = None
        #: The guard thread of that worker.
        self.keeper: Keeper | None = None
        #: When publishing failed last, on this process's monotonic clock; None once it succeeded again.
        self.broker_failed_at: float | None = None

    @property
    def settings(self) -> Settings:
        """The ``guard_*`` keys of the app's configuration, read for good once the app is finalised or its store in use.

        Raises:
            InvalidOption: a key is unknown, has a wrong type, or does not fit another.
        """
        if self._settings is None or not self.is_final:
            # a client need not finalise its app
            self.is_final = bool(self.app.finalized) or "database" in self.__dict__
            self._settings = self._read()
        return self._settings

    def _read(self) -> Settings:
        given = _guard_keys(self.app.conf)
        namespace = self.app.main or "celery"
        url = "" if given.get("guard_database_url") else _default_url(self.app)
        return Settings.read(given, default_url=url, default_namespace=namespace)

    @property
    def result_serializer(self) -> str:
        """The serializer of results, in rows as in the result backend; read for good together with the settings."""
        if self._result_serializer is None or not self.is_final:
            self._result_serializer = str(self.app.conf.result_serializer)
        return self._result_serializer

    @cached_property
    def database(self) -> Database:
        """The database of runs."""
        return Database(self.settings.database_url, self.settings.database_engine_options)

    @cached_property
    def runs(self) -> RunStore:
        """The runs of this app's namespace."""
        return RunStore(self.database, self.settings.namespace)

    @cached_property
    def effects(self) -> EffectStore:
        """The steps of runs."""
        return EffectStore(self.database)

    @cached_property
    def rates(self) -> RateStore:
        """The retry slots of tasks whose retries are limited."""
        return RateStore(self.database, self.settings.namespace)

    @cached_property
    def permits(self) -> PermitStore:
        """The permits of tasks whose concurrency is limited."""
        return PermitStore(self.database, self.settings.namespace)

    @cached_property
    def workers(self) -> WorkerStore:
        """The workers of this app's namespace."""
        return WorkerStore(self.database, self.settings.namespace)

    @cached_property
    def tallies(self) -> TallyStore:
        """What is counted for metrics."""
        return TallyStore(self.database, self.settings.namespace)

    def count(self, event: Unrecorded, types: Iterable[str]) -> None:
        """Count for metrics what leaves no row of its own, one per task name; a count is lost rather than a run."""
        try:
            self.tallies.count(event, Counter(types).items())
        except StoreUnavailable as away:
            logger.debug("%s was not counted: %s", event, away)

    def announce(self, transition: Transition) -> None:
        """Tell everybody who watches of a move that was won, once it is committed."""
        announce(transition, self.app, log_meta=self.settings.log_meta, send_event=self._send_event)

    def _send_event(self, event: TaskEvent) -> None:
        """Send Celery's event as who knows of it: a client what it submitted, a worker's main process the rest.

        An ending that a client brought about is told by the worker that delivers it: a client that spoke of anything
        but its submissions would look like a worker.
        """
        if event.name == "task-sent":
            tell_that_it_waits(self.app, event)
        elif self.keeper is not None:
            self.keeper.send_event(event)


def guard_of(app: Any) -> Guard:
    """Return the app's guard, made on first use."""
    guard = app.__dict__.get(_ATTRIBUTE) if hasattr(app, "__dict__") else None
    if guard is None:
        guard = set_guard(app, Guard(app))
    return guard


def set_guard(app: Any, guard: Guard) -> Guard:
    """Give an app another guard, and return it."""
    setattr(app, _ATTRIBUTE, guard)
    return guard


def guarded_tasks(app: Any) -> list[Any]:
    """Return the app's tasks that are under guard."""
    return [task for task in app.tasks.values() if "_guard_bound" in type(task).__dict__]


def task_settings(task: Any) -> TaskSettings:
    """Return the settings of a task or task class: its own attributes over the configuration, resolved once.

    Raises:
        InvalidOption: an attribute is not accepted.
    """
    cls: Any = task if isinstance(task, type) else task.__class__  # of a decorated task, which is a proxy, the real one
    found: TaskSettings | None = cls.__dict__.get("_guard_settings")
    if found is None:
        guard = guard_of(task.app)
        found = guard.settings.for_task(task.name or cls.__name__, _own_attributes(cls))
        if guard.is_final:
            cls._guard_settings = found
    return found


def _own_attributes(cls: Any) -> dict[str, Any]:
    own = {name: getattr(cls, name) for name in TaskSettings.model_fields if getattr(cls, name, None) is not None}
    wished = _wished_retries(cls)
    if "max_attempts" not in own and wished is not _NO_WISH:
        retries = wished
        if retries is None:
            own["max_attempts"] = UNLIMITED_ATTEMPTS
        elif isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise InvalidOption(
                f"{cls.name}: max_retries must be None or a whole number of at least 0, not {retries!r}"
            )
        else:
            own["max_attempts"] = retries + 1
    return own


def _wished_retries(cls: Any) -> Any:
    """Return what the user's own classes or decorator say of ``max_retries``; Celery's default of 3 is not a wish."""
    if any("max_retries" in base.__dict__ for base in cls.__mro__ if base not in (Task, object)):
        return cls.max_retries
    return (getattr(cls, "retry_kwargs", None) or {}).get("max_retries", _NO_WISH)


def _guard_keys(conf: Any) -> dict[str, Any]:
    keys = [str(key) for key in conf]  # this loads the configuration: only then is its prefix known
    prefix = conf.prefix or ""
    named = {key.removeprefix(prefix).lower(): key for key in keys if key.startswith(prefix) or key.islower()}
    return {name: conf[key] for name, key in named.items() if name.startswith("guard_")}


def _default_url(app: Any) -> str:
    """A file beside the module that the app lives in, so that client and worker find the same one."""
    main, holders = app.main or "", [module for module in list(sys.modules.values()) if _holds(module, app)]
    names = {module.__name__ for module in holders}
    if any(f"{name}.".startswith(f"{main}.") for name in names):
        holders = [sys.modules[main]]
    elif len(names) > 1:  # a script that imported the app
        holders = [module for module in holders if module.__name__ != "__main__"]
    folders = {os.path.dirname(os.path.realpath(path)) for module in holders if (path := _file(module))}
    if len(folders) != 1:
        raise InvalidOption(
            "guard_database_url is not set, and the module of the app can't be told to put a SQLite file beside it;"
            " set it to a PostgreSQL URL, or to sqlite:////absolute/path/runs.db"
        )
    return f"sqlite:///{Path(folders.pop()) / 'celery_guard.db'}"


def _holds(module: Any, app: Any) -> bool:
    return any(value is app for value in list(getattr(module, "__dict__", {}).values()))


def _file(module: Any) -> str | None:
    return getattr(module, "__file__", None)
