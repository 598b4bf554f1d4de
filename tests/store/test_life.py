"""Any verbs in any order, and what must hold after each of them."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select

from celery_guard.core.backoff import Backoff
from celery_guard.core.decide import (
    Cancelled,
    Claim,
    Expired,
    Finish,
    Lost,
    Outcome,
    Policy,
    Raised,
    Returned,
    Settlement,
    decide,
)
from celery_guard.core.faults import Category
from celery_guard.core.states import MOVES, TERMINAL, State
from celery_guard.store.database import Database
from celery_guard.store.models import task_attempt, task_run
from celery_guard.store.records import Due
from celery_guard.store.runs import RunStore
from tests.factories import NOON, a_fault, a_new_run
from tests.store.lives import CANCELLED, TOO_LATE, Clock

T = TypeVar("T")

POLICY = Policy(unknown_max_attempts=2, backoff=Backoff(base=5, cap=40))

WORKERS = st.sampled_from(["worker-1", "worker-2"])
OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.just(Returned("fine")),
    st.sampled_from(Category).map(lambda category: Raised(a_fault(category))),
    st.just(Raised(a_fault(retry_after=timedelta(0)))),
    st.just(Cancelled()),
)
PICK = st.integers(0, 3)
LOST = Lost(a_fault(rule="worker_lost"))


@dataclass(frozen=True)
class Delivery:
    """A message in a worker's hands, which claimed its run with it."""

    run_id: str
    token: str
    worker_id: str


@dataclass(frozen=True)
class Seen:
    """What was last seen of a run."""

    row: dict[str, Any]
    history: tuple[int, ...]

    @property
    def state(self) -> State:
        return State(self.row["state"])

    @property
    def ending(self) -> tuple[Any, ...]:
        """What never changes once there is one."""
        fixed = "state terminal_reason finished_at attempt result claim_token unknown_faults last_error".split()
        return (*(self.row[name] for name in fixed), self.history)


class Life(RuleBasedStateMachine):
    """A few runs, their messages, and the deliveries that once held or still hold an attempt."""

    database: Database
    clock: Clock

    def __init__(self) -> None:
        super().__init__()
        self.clock.at = NOON  # SQLite rounds moments: the same steps at another time need not end alike
        self.namespace = uuid.uuid4().hex
        self.runs = RunStore(self.database, self.namespace)
        self.numbers = itertools.count()  # ids in order: rows come back in it, and the same steps must end alike
        self.rng = random.Random(0)
        self.seen: dict[str, Seen] = {}
        self.running: dict[str, Claim] = {}
        self.deliveries: list[Delivery] = []
        self.claims: dict[str, Claim] = {}
        self.messages: list[Due] = []

    @property
    def now(self) -> datetime:
        return self.clock.at

    @initialize(max_attempts=st.integers(1, 3))
    def submit_the_first(self, max_attempts):
        self.submit(delay=None, deadline=1_000.0, max_attempts=max_attempts, key=None)

    @precondition(lambda self: len(self._live()) < 3)
    @rule(
        delay=st.sampled_from([None, None, None, 30.0, 100.0]),
        deadline=st.sampled_from([100.0, 1_000.0]),
        max_attempts=st.integers(1, 3),
        key=st.sampled_from([None, "k"]),
    )
    def submit(self, delay, deadline, max_attempts, key):
        new = a_new_run(
            f"{self.namespace}-{next(self.numbers)}",
            namespace=self.namespace,
            delay_for=delay,
            deadline_after=deadline,
            max_attempts=max_attempts,
            idempotency_scope=key and "scope",
            idempotency_key=key,
        )

        found = self.runs.submit(new) or self.runs.taken_by(new)

        assert (found is None) is (delay == deadline and not self._is_taken(key))
        assert found is None or found.created is (found.id not in self.seen)

    @rule(pick=PICK, worker_id=WORKERS)
    def deliver(self, pick, worker_id):
        """A message reaches a worker: the first one, a copy, or one that was lost and found."""
        delivery = Delivery(self._run(pick), uuid.uuid4().hex, worker_id)
        if self._claim(delivery):
            self.deliveries.append(delivery)

    @rule(pick=PICK, worker_id=WORKERS, outcome=OUTCOMES)
    def attempt(self, pick, worker_id, outcome):
        """What happens on a good day: dispatched, delivered, settled."""
        self.dispatch(limit=100, seconds=40)
        self.every_rule_holds()
        self.deliver(pick, worker_id)
        self.every_rule_holds()
        if self.deliveries:
            self.settle(0, outcome, told=True)

    @precondition(lambda self: self.deliveries)
    @rule(pick=PICK)
    def claim_again(self, pick):
        """With the token of an attempt that still runs, or is over."""
        self._claim(_recent(self.deliveries, pick))

    @precondition(lambda self: self.deliveries)
    @rule(pick=PICK, outcome=OUTCOMES, told=st.booleans())
    def settle(self, pick, outcome, told):
        """By the holder, or by one that was replaced long ago."""
        self._settle(_recent(self.deliveries, pick), outcome, owed=not told, lease=30.0)

    @rule(worker_id=WORKERS)
    def rescue(self, worker_id):
        """Everything that a lost worker ran, and nothing else, is found and ended."""
        found = self.runs.running_on(worker_id)

        mine = [row.claim for row in found if row.claim.run_id in self.seen]  # others have been here before
        assert {claim.run_id: claim for claim in mine} == {
            run_id: claim for run_id, claim in self.running.items() if self.seen[run_id].row["worker_id"] == worker_id
        }
        for claim in mine:
            self._settle(claim, LOST, owed=True, lease=0.0, successor=uuid.uuid4().hex)

    @precondition(lambda self: len(self.messages) % 3 == 2)  # seldom: it ends what others could do more with
    @rule(pick=PICK)
    def cancel(self, pick):
        run_id = self._run(pick)
        waits = self.seen[run_id].state in (State.QUEUED, State.RETRYING)

        assert bool(self.runs.finish_waiting(run_id, CANCELLED, token=uuid.uuid4().hex)) is waits
        if run_id in self.running:
            self._settle(self.running[run_id], Cancelled(), owed=True, lease=0.0, successor=uuid.uuid4().hex)

    @rule(seconds=st.sampled_from([0, 20, 100, 900]))
    def sweep(self, seconds):
        self.clock.forward(seconds)
        late = {
            run_id
            for run_id, seen in self.seen.items()
            if seen.state in (State.QUEUED, State.RETRYING) and self._moment(seen.row["deadline_at"]) <= self.now
        }

        assert {ended.claim.run_id for ended in self.runs.finish_expired(TOO_LATE, limit=1_000)} == late
        for found in self.runs.overdue(timedelta(seconds=5), limit=1_000):
            assert found.claim == self.running[found.claim.run_id]
            self._settle(found.claim, Expired(), owed=True, lease=0.0, successor=uuid.uuid4().hex)

    @rule(limit=st.sampled_from([1, 100, 100]), seconds=st.sampled_from([0, 40, 40]))
    def dispatch(self, limit, seconds):
        self.clock.forward(seconds)
        expected = {run_id for run_id, seen in self.seen.items() if self._is_due(seen.row)}

        taken = self.runs.take_due(limit=limit, lease=20.0)

        ids = {row.id for row in taken}
        assert len(ids) == len(taken) == min(limit, len(expected))
        assert ids <= expected
        self.messages += taken

    @rule()
    def find_the_lost(self):
        """Those that nobody claimed within their lease."""
        self.messages += self.runs.take_lost("celery", limit=100, lease=20.0, reserved=[])

    @rule(pick=PICK)
    def publish_soon(self, pick):
        self.runs.publish_soon([self._run(pick)], delay=2.0)

    @precondition(lambda self: self.messages)
    @rule(pick=PICK, is_told=st.booleans())
    def tell(self, pick, is_told):
        """Of all messages that carry an ending, only the latest hands it out, and once."""
        message = _recent(self.messages, pick)
        row = self.seen[message.id].row
        expected = row["owed"] and row["publishes"] == message.ticket

        ending = self.runs.take_ending(message.id, ticket=message.ticket, lease=30.0)

        assert (ending is not None) is bool(expected)
        if ending is not None:
            assert ending.state == self.seen[message.id].state
        if ending is not None and is_told:
            assert self.runs.told(message.id)

    @rule(seconds=st.sampled_from([1, 20, 61, 100, 900]))
    def time_passes(self, seconds):
        self.clock.forward(seconds)

    @invariant()
    def every_rule_holds(self):
        for run_id, now in self._rows().items():
            before = self.seen.get(run_id)
            self.seen[run_id] = now
            _finished_exactly_when_terminal(now)
            _attempts_within_bounds(now)
            _history_is_what_did_not_succeed(now)
            _somebody_keeps_it(now)
            assert (run_id in self.running) is (now.state is State.RUNNING)
            if before is not None:
                _moved_as_allowed(before, now)

    def _rows(self) -> dict[str, Seen]:
        with self.database.connection() as connection:
            rows = connection.execute(select(task_run).where(task_run.c.namespace == self.namespace)).mappings().all()
            ids = select(task_run.c.id).where(task_run.c.namespace == self.namespace)
            attempts = connection.execute(
                select(task_attempt.c.run_id, task_attempt.c.attempt).where(task_attempt.c.run_id.in_(ids))
            ).all()
        return {
            row["id"]: Seen(dict(row), tuple(sorted(attempt for run_id, attempt in attempts if run_id == row["id"])))
            for row in rows
        }

    def _moment(self, value: Any) -> datetime:
        return datetime.fromisoformat(value) if isinstance(value, str) else value

    def _is_claimable(self, row: dict[str, Any]) -> bool:
        return (
            row["state"] == "queued"
            and row["next_retry_at"] is None
            and self._moment(row["deadline_at"]) > self.now
            and row["attempt"] < row["max_attempts"]
        )

    def _is_due(self, row: dict[str, Any]) -> bool:
        is_unpublished = row["next_retry_at"] is not None or row["publishes"] == 0
        return is_unpublished and row["publish_at"] is not None and self._moment(row["publish_at"]) <= self.now

    def _live(self) -> list[str]:
        return [run_id for run_id, seen in self.seen.items() if seen.state not in TERMINAL]

    def _run(self, pick: int) -> str:
        """A run that is alive, more often than not."""
        ended = [run_id for run_id in self.seen if run_id not in self._live()]
        return ([*self._live(), *reversed(ended)][:4] * 4)[pick]

    def _is_taken(self, key: str | None) -> bool:
        return key is not None and any(seen.row["idempotency_key"] == key for seen in self.seen.values())

    def _claim(self, delivery: Delivery) -> bool:
        before = self.seen[delivery.run_id].row
        claimable, held = self._is_claimable(before), self._holds(delivery)

        found = self.runs.claim(delivery.run_id, delivery.token, worker_id=delivery.worker_id, fingerprint="1:abc")

        assert (found is not None) is (claimable or held)
        if found is not None and claimable:
            assert delivery.run_id not in self.running, "two attempts run at once"
            assert found.claim.attempt == before["attempt"] + 1
            self.running[delivery.run_id] = self.claims[delivery.token] = found.claim
        return found is not None

    def _holds(self, holder: Delivery | Claim) -> bool:
        running = self.running.get(holder.run_id)
        return running is not None and running.token == holder.token

    def _settle(self, holder: Delivery | Claim, outcome: Outcome, **how: Any) -> None:
        held, before = self._holds(holder), self.seen[holder.run_id].row
        claim = holder if isinstance(holder, Claim) else self.claims[holder.token]
        settlement = decide(outcome, claim, POLICY, now=self.now, rng=self.rng)

        won = self.runs.settle(claim, settlement, **how)

        assert won is (held or _is_its_own(settlement, before, how.get("successor", holder.token)))
        self._ended(holder.run_id, held)

    def _ended(self, run_id: str, won: bool) -> None:
        if won:
            del self.running[run_id]


def _is_its_own(settlement: Settlement, row: Mapping[str, Any], token: str) -> bool:
    """Whether a settlement that changes nothing is the repetition of one that this very token has written."""
    wanted = {settlement.state} if isinstance(settlement, Finish) else {State.RETRYING, State.QUEUED}
    return row["claim_token"] == token and State(row["state"]) in wanted


def _recent(things: list[T], pick: int) -> T:
    return (things[:-5:-1] * 4)[pick]


def _finished_exactly_when_terminal(now: Seen) -> None:
    assert (now.row["finished_at"] is not None) is (now.state in TERMINAL)
    assert (now.row["terminal_reason"] is not None) is (now.state in TERMINAL)


def _attempts_within_bounds(now: Seen) -> None:
    assert 0 <= now.row["attempt"] <= now.row["max_attempts"]


def _history_is_what_did_not_succeed(now: Seen) -> None:
    is_last_open_or_fine = now.state in (State.RUNNING, State.SUCCEEDED)
    assert now.history == tuple(range(1, now.row["attempt"] + (not is_last_open_or_fine)))


def _somebody_keeps_it(now: Seen) -> None:
    if now.state is State.RUNNING:
        assert now.row["worker_id"] is not None
        assert now.row["claim_token"] is not None
    elif now.state not in TERMINAL or now.row["owed"]:
        assert now.row["publish_at"] is not None
    if now.row["owed"]:
        assert now.state in TERMINAL


def _moved_as_allowed(before: Seen, now: Seen) -> None:
    assert now.state is before.state or now.state in MOVES[before.state]
    assert now.row["deadline_at"] == before.row["deadline_at"]
    if before.state in TERMINAL:
        assert now.ending == before.ending


def live(url: str, *, examples: int, steps: int) -> None:
    """Run the machine on a database; each example has a namespace of its own."""
    clock = Clock()
    database = Database(url, clock=clock)
    machine: Callable[[], Life] = type("LifeHere", (Life,), {"database": database, "clock": clock})
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                database=None,
            ),
        )
    finally:
        database.close()


def test_every_life_on_sqlite_keeps_the_rules(sqlite_url):
    live(sqlite_url, examples=70, steps=50)


def test_every_life_on_postgres_keeps_the_rules(postgres_url):
    live(postgres_url, examples=20, steps=40)
