"""What a caller holds: Celery's result, with the row beside it."""

from __future__ import annotations

import json
import time
from typing import Any

from celery import states
from celery.backends.base import DisabledBackend
from celery.exceptions import TaskRevokedError, TimeoutError
from celery.result import AsyncResult, EagerResult, assert_will_not_block

from celery_guard.core.idempotency import checked_key
from celery_guard.core.states import Reason, State
from celery_guard.errors import ResultNotKept, RunNotFound
from celery_guard.flow.codec import TOLD_ELSEWHERE, decode
from celery_guard.flow.guard import guard_of
from celery_guard.flow.settle import ending_error
from celery_guard.store.records import TaskRun

__all__ = ["EagerRun", "GuardedResult", "get_run"]

_CELERY_STATES = {
    State.QUEUED: states.PENDING,
    State.RUNNING: states.STARTED,
    State.RETRYING: states.RETRY,
    State.SUCCEEDED: states.SUCCESS,
    State.FAILED: states.FAILURE,
    State.DEAD: states.FAILURE,
    State.CANCELLED: states.REVOKED,
}


class GuardedResult(AsyncResult):  # type: ignore[misc]
    """An ``AsyncResult`` whose truth is the row. ``state`` and ``get()`` read it when the backend has no ending yet."""

    #: The Celery task id, and the key of the row.
    id: str
    #: Whether the call made this run, or found the one that its idempotency key names.
    created: bool = True

    @property
    def run(self) -> TaskRun:
        """A frozen snapshot of the row, with its failed attempts.

        Raises:
            RunNotFound: the run was pruned, or never committed.
        """
        return get_run(self.id, app=self.app)

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float = 0.5,
        no_ack: bool = True,
        follow_parents: bool = True,
        callback: Any = None,
        on_message: Any = None,
        on_interval: Any = None,
        disable_sync_subtasks: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Wait for the ending and return the result, or raise the error that ended the run; see Celery's ``get``.

        Raises:
            celery.exceptions.TimeoutError: the run has not ended within ``timeout`` seconds.
        """
        if self.ignored:
            return None
        if disable_sync_subtasks:
            assert_will_not_block()
        if follow_parents and propagate and self.parent:
            self._maybe_reraise_parent_error()
        self._wait(timeout, interval, on_interval)
        if isinstance(self.result, ResultNotKept):
            raise self.result
        if propagate:
            self.maybe_throw(callback=callback)
        elif callback is not None:
            callback(self.id, self.result)
        return self.result

    wait = get

    def _wait(self, timeout: float | None, interval: float, on_interval: Any) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        pause = min(0.02, interval)
        while not self.ready():
            if until is not None and time.monotonic() >= until:
                raise TimeoutError("The operation timed out.")
            if on_interval is not None:
                on_interval()
            time.sleep(pause if until is None else max(0.0, min(pause, until - time.monotonic())))
            pause = min(2 * pause, interval)

    def _get_task_meta(self) -> Any:
        if self._cache is None:
            meta = self._backend_meta()
            if meta is None or meta["status"] not in states.READY_STATES:
                meta = self._row_meta(meta)
            return self._maybe_set_cache(meta)
        return self._cache

    def _backend_meta(self) -> Any:
        if isinstance(self.backend, DisabledBackend):
            return None
        return self.backend.get_task_meta(self.id)

    def _row_meta(self, told: Any) -> dict[str, Any]:
        guard = guard_of(self.app)
        run = guard.runs.find(self.id)
        if run is None or (told and run.encoded_result == TOLD_ELSEWHERE):
            return told or {"status": states.PENDING, "result": None}
        status = _CELERY_STATES[run.state]
        return {"status": status, "result": self._row_result(run), "task_id": self.id, "traceback": None}

    def _row_result(self, run: TaskRun) -> Any:
        if run.terminal_reason is None:
            return None
        if run.state is State.FAILED and run.encoded_result:
            return self.backend.exception_to_python(json.loads(run.encoded_result))
        if run.state is not State.SUCCEEDED:
            return _error_of(run)
        if run.encoded_result is None or run.encoded_result == TOLD_ELSEWHERE:
            return ResultNotKept(
                f"the result of the run {run.id} is larger than guard_result_max_bytes, or can't be encoded"
            )
        return decode(run.encoded_result, guard_of(self.app).result_serializer)


class EagerRun(EagerResult):  # type: ignore[misc]
    """What ``apply()`` returns: the result is there already, and so is the row."""

    created: bool = True

    @property
    def run(self) -> TaskRun:
        """A frozen snapshot of the row, with its failed attempts."""
        return get_run(self.id, app=self._guarded_app)

    @classmethod
    def of(cls, result: Any, app: Any, *, created: bool = True) -> EagerRun:
        """Give an eager result its row."""
        result.__class__ = cls
        result._guarded_app = app
        result.created = created
        return result  # type: ignore[no-any-return]


def get_run(run_id: str, *, app: Any = None) -> TaskRun:
    """Return a frozen snapshot of a run, with its failed attempts.

    Args:
        run_id: the Celery task id.
        app: the Celery app; the current one by default.

    Raises:
        RunNotFound: no run of this app's namespace has this id.
    """
    from celery.app import app_or_default

    try:
        run = guard_of(app_or_default(app)).runs.find(checked_key(run_id, "run_id"), history=True)
    except ValueError:  # what is no id is nobody's
        run = None
    if run is None:
        raise RunNotFound(f"no run has the id {run_id!r}")
    return run


def _error_of(run: TaskRun) -> Exception:
    assert run.terminal_reason is not None
    if run.terminal_reason is Reason.CANCELLED:
        return TaskRevokedError(run.last_error or "cancelled")  # type: ignore[no-any-return]
    return ending_error(run.terminal_reason, run.last_error)
