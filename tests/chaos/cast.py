"""Who is on stage: runs of every kind, and how each may end."""

from __future__ import annotations

import importlib
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery import chain
from kombu.exceptions import OperationalError

from celery_guard import RunExists, StoreUnavailable, cancel

#: How long a run may take that is not meant to be late: longer than any chaos.
ENOUGH = 900

SUCCEEDED = frozenset({("succeeded", "succeeded")})
LATE = frozenset({("dead", "failed_due_deadline")})
USED_UP = frozenset({("dead", "failed_due_max_attempts")})
REFUSED = frozenset({("failed", "failed_non_retryable")})
CANCELLED = SUCCEEDED | {("cancelled", "cancelled")}


@dataclass(frozen=True)
class Role:
    """One or more runs of a kind.

    Args:
        kind: what it does.
        ids: its runs.
        submit: submits them under these ids; may be called again when it raised.
        endings: the states and reasons that each may end with.
        afterwards: what is done to it a moment later.
    """

    kind: str
    ids: tuple[str, ...]
    submit: Callable[[], Any]
    endings: frozenset[tuple[str, str]]
    afterwards: Callable[[], Any] | None = None

    @property
    def works(self) -> bool:
        """Whether each body must do its work once."""
        return self.endings == SUCCEEDED


class Cast:
    """Makes roles by chance, and submits them in a thread of its own."""

    def __init__(self, rng: random.Random, *, plain: bool) -> None:
        self.tasks = importlib.import_module("tests.chaos.app")
        self.tasks.app.finalize(auto=True)
        self.rng = rng
        self.plain = plain
        self.roles: list[Role] = []
        self.errors: list[BaseException] = []
        self._later: list[tuple[float, Callable[[], Any]]] = []

    @property
    def ids(self) -> list[str]:
        """Every run that is on stage."""
        return [run_id for role in self.roles for run_id in role.ids]

    def enter(self, runs: int, seconds: float) -> threading.Thread:
        """Begin to submit so many runs within so many seconds."""
        thread = threading.Thread(target=self._submit_all, args=(runs, seconds), daemon=True)
        thread.start()
        return thread

    def _submit_all(self, runs: int, seconds: float) -> None:
        begin = time.monotonic()
        try:
            while (count := len(self.ids)) < runs:
                role = self._a_role()
                self._accepted(role.submit)
                self.roles.append(role)
                if role.afterwards is not None:
                    self._later.append((time.monotonic() + self.rng.uniform(0, 3), role.afterwards))
                while time.monotonic() < begin + seconds * count / runs:
                    self._do_what_is_due()
                    time.sleep(0.01)
            while self._later:
                self._do_what_is_due()
                time.sleep(0.01)
        except BaseException as error:
            self.errors.append(error)
            raise

    def _do_what_is_due(self) -> None:
        for entry in [entry for entry in self._later if entry[0] <= time.monotonic()]:
            self._later.remove(entry)
            self._accepted(entry[1])

    def _accepted(self, call: Callable[[], Any]) -> None:
        """Call until it went through; the ids are fixed, so that a lost reply makes no second run."""
        until = time.monotonic() + 60
        while True:
            try:
                call()
                return
            except RunExists:  # it was accepted, and has ended already
                return
            except (StoreUnavailable, OperationalError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.3)

    def _a_role(self) -> Role:
        kinds = {
            self._quick: 30,
            self._slow: 18,
            self._busy: 14,
            self._delayed: 6,
            self._chained: 8,
            self._killed: 6,
            self._poison: 3,
            self._refused: 5,
            self._late: 4,
            self._stubborn: 2,
            self._cancelled: 0 if self.plain else 4,
        }
        [make] = self.rng.choices(list(kinds), list(kinds.values()))
        return make()

    def _one(
        self, task: Any, args: Any, endings: Any, kind: str = "", deadline: float = ENOUGH, **options: Any
    ) -> Role:
        run_id = _new_id(self.rng)
        limit = {} if self.plain else {"deadline": deadline}
        return Role(
            kind or task.name.rpartition(".")[2],
            (run_id,),
            lambda: task.apply_async(args, task_id=run_id, **limit, **options),
            endings,
        )

    def _quick(self) -> Role:
        return self._one(self.tasks.quick, (1,), SUCCEEDED)

    def _slow(self) -> Role:
        return self._one(self.tasks.slow, (self.rng.uniform(0.5, 3),), SUCCEEDED)

    def _busy(self) -> Role:
        return self._one(self.tasks.busy, (self.rng.randint(1, 3),), SUCCEEDED)

    def _delayed(self) -> Role:
        return self._one(self.tasks.quick, (1,), SUCCEEDED, "delayed", countdown=self.rng.uniform(1, 5))

    def _killed(self) -> Role:
        return self._one(self.tasks.killed, (), SUCCEEDED)

    def _poison(self) -> Role:
        return self._one(self.tasks.poison, (), USED_UP)

    def _refused(self) -> Role:
        return self._one(self.tasks.refuse, (), REFUSED)

    def _late(self) -> Role:
        return self._one(self.tasks.late, (), LATE, deadline=3)

    def _stubborn(self) -> Role:
        return self._one(self.tasks.stubborn, (), LATE, deadline=3)

    def _cancelled(self) -> Role:
        role = self._one(self.tasks.slow, (3,), CANCELLED, "cancelled")
        return Role(role.kind, role.ids, role.submit, role.endings, lambda: cancel(role.ids[0], app=self.tasks.app))

    def _chained(self) -> Role:
        head, tail = _new_id(self.rng), _new_id(self.rng)
        limit = {} if self.plain else {"deadline": ENOUGH}
        links = chain(self.tasks.quick.s(1).set(task_id=head, **limit), self.tasks.add.s(1).set(task_id=tail, **limit))
        return Role("chained", (head, tail), links.apply_async, SUCCEEDED)


def _new_id(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
