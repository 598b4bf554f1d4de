"""The test kit: what was submitted, and how it goes on, without a worker and without waiting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from celery_guard.errors import InvalidOption, RunNotFound
from celery_guard.store.records import TaskRun
from celery_guard.store.reports import ReportStore
from celery_guard.testing.clock import Clock
from celery_guard.testing.crash import CrashPoint
from celery_guard.testing.stand_in import WatchedGuard, stand_in
from celery_guard.testing.submissions import Submission, all_submissions, call_of, is_call_of, listed, task_of
from celery_guard.testing.worker import InlineWorker

__all__ = ["GuardKit", "open_kit"]

#: After how many steps a run is taken for one that never ends.
MOST_STEPS = 10_000


@contextmanager
def open_kit(app: Any, database_url: str) -> Iterator[GuardKit]:
    """Let a test play the workers of an app.

    Args:
        app: the Celery app; broker, result backend and database are replaced for the length of the block.
        database_url: where the runs are kept: SQLite, or a PostgreSQL database that has our tables.

    Raises:
        AssertionError: at the end of the block: a crash that was asked for did not happen.
    """
    clock = Clock()
    with stand_in(app, database_url, clock) as guard:
        kit = GuardKit(guard, clock)
        try:
            yield kit
        finally:
            kit.worker.close()
        kit.check()


class GuardKit:
    """An app whose workers work when the test says so.

    Args:
        guard: the app's guard.
        clock: the clock of its database.
    """

    def __init__(self, guard: WatchedGuard, clock: Clock) -> None:
        self.app = guard.app
        #: What the runs take for the time: ``advance(seconds)``, ``move_to(moment)``.
        self.clock = clock
        self.worker = InlineWorker(guard)
        self._guard = guard

    def submitted(self, task: Any = None) -> list[Submission]:
        """Return what was submitted, the first one first.

        Args:
            task: the task, or its name; all tasks by default.
        """
        name = None if task is None else task_of(self.app, task).name
        return [one for one in all_submissions(self._guard) if name in (None, one.run.type)]

    def assert_submitted(self, task: Any, /, *args: Any, **kwargs: Any) -> TaskRun:
        """Fail unless the task was submitted with just these arguments; return its run, of several the latest.

        Args:
            task: the task, or its name.
            args: the arguments, as the task itself takes them; ``unittest.mock.ANY`` matches whatever was given.

        Raises:
            AssertionError: it was not; the text lists what was.
        """
        wanted, submitted = task_of(self.app, task), self.submitted()
        found = [one.run for one in submitted if is_call_of(wanted, one, args, kwargs)]
        if not found:
            call = call_of(wanted.name, args, kwargs)
            raise AssertionError(f"{call} was not submitted. What was:\n{listed(submitted)}")
        return found[-1]

    def assert_not_submitted(self, task: Any) -> None:
        """Fail when the task was submitted, with whatever arguments.

        Raises:
            AssertionError: it was; the text says how.
        """
        if found := self.submitted(task):
            raise AssertionError(f"{found[0].run.type} was submitted:\n{listed(found)}")

    def crash_at(self, point: CrashPoint) -> None:
        """Have the worker die, once, when the next attempt gets to a point. Broker and other workers do what they do.

        The broker delivers the message again, and after ``guard_rescue_after`` the attempt counts as lost. The test
        fails in the end if no attempt got there.

        Args:
            point: ``before_claim``, ``after_claim`` (the body has not begun), ``after_body`` (it has done its work, and
                nobody knows) or ``after_settle`` (the row says so, and Celery has not heard of it).

        Raises:
            InvalidOption: there is no such point.
        """
        self.worker.crashes.ask_for(point)

    def run_inline(self, run: Any) -> TaskRun:
        """Run one run through all its attempts, and move the clock over its waits; others stay where they are.

        Args:
            run: what ``delay()`` or ``assert_submitted()`` returned, or an id.

        Returns:
            The run as it ended, with its failed attempts.

        Raises:
            RunNotFound: the app has no such run.
            AssertionError: nothing moves it on.
        """
        run_id = self._id_of(run)
        for _ in range(MOST_STEPS):
            found = self._found(run_id)
            if found.is_terminal and not found.owed:
                return found
            if not self.worker.step(only={run_id, found.same_as or run_id}):
                self._wait_for(found)
        raise AssertionError(f"the run {run_id} has not ended after {MOST_STEPS} steps")

    def run_due(self) -> None:
        """Run what can run now, whatever it is, and leave the clock alone."""
        for _ in range(MOST_STEPS):
            if not self.worker.step():
                return
        raise AssertionError(f"there is still something to do after {MOST_STEPS} steps")

    def run_all(self) -> list[TaskRun]:
        """Run everything to its end, the clock moved over all waits. Return all runs, the first submitted first."""
        for _ in range(MOST_STEPS):
            self.run_due()
            runs = [one.run for one in self.submitted()]
            going = [run for run in runs if not run.is_terminal or run.owed]
            if not going:
                return runs
            self._wait_for(*going)
        raise AssertionError(f"there are runs that have not ended after {MOST_STEPS} waits")

    def check(self) -> None:
        """Fail when a crash that was asked for did not happen.

        Raises:
            AssertionError: it says which one.
        """
        if self.worker.crashes.awaited:
            raise AssertionError(f"no worker got as far as crash_at({self.worker.crashes.awaited[0]!r})")

    def _wait_for(self, *runs: TaskRun) -> None:
        """Move the clock to when the first of these runs goes on."""
        moments = [*self.worker.dead.values(), *filter(None, map(self._due, runs))]
        ahead = [moment for moment in moments if moment > self.clock()]
        if not ahead:
            waiting = ", ".join(f"{run.type}[{run.id}] is {run.state}" for run in runs)
            raise AssertionError(f"nothing moves on what is left: {waiting}; is its message gone?")
        self.clock.move_to(min(ahead))

    def _due(self, run: TaskRun) -> datetime | None:
        if run.next_retry_at is not None:
            return run.next_retry_at
        life = ReportStore(self._guard.database, self._guard.settings.namespace).life(run.id)
        return life.publish_at if life is not None else None

    def _found(self, run_id: str) -> TaskRun:
        found = self._guard.runs.find(run_id, history=True)
        if found is None:
            raise RunNotFound(f"no run has the id {run_id!r}; what was submitted:\n{listed(self.submitted())}")
        return found

    @staticmethod
    def _id_of(run: Any) -> str:
        found = run if isinstance(run, str) else getattr(run, "id", None)
        if not isinstance(found, str):
            raise InvalidOption(f"run must be what delay() or assert_submitted() returned, or an id, not {run!r}")
        return found
