"""What the demo asks of the shop: for each run what the outside world answers and what the run must end in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from example_project import tasks
from example_project.outside_world import Answer, Pace, busy, gone, ok, slow_down

__all__ = ["Place", "Scenario", "all_scenarios"]


@dataclass(frozen=True)
class Place:
    """A path of the outside world, its answers in order, and how often it must have been asked in the end."""

    path: str
    answers: Sequence[Answer]
    visits: int


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One submission and all that must have come of it.

    Args:
        raises: the error that Celery's result must carry.
        files: lines of each file that must exist in the end, by path below the working folder.
    """

    title: str
    task: Any
    args: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    places: Sequence[Place] = ()
    state: str
    reason: str
    attempts: int
    raises: str | None = None
    files: Mapping[str, int] = field(default_factory=dict)

    def submit(self) -> Any:
        """Submit the run and return its result."""
        return self.task.apply_async(self.args, meta={"scenario": self.title}, **self.options)


def all_scenarios() -> list[Scenario]:
    """Return the scenarios in the order in which they are submitted.

    The worker has two processes. The hanging bank and the dripping bank hold both until their deadline, which is why
    the coupon submitted after them is late.
    """
    return [*_successes(), *_failures(), *_deadlines(), *_lost_processes()]


def _successes() -> list[Scenario]:
    return [
        Scenario(
            title="success",
            task=tasks.export_order,
            args=(1001,),
            places=[Place("/orders/1001", [ok(_order(1001))], visits=1)],
            **_succeeded(attempts=1),
            files={"exports/order-1001.csv": 3},
        ),
        Scenario(
            title="503, 503, then 200",
            task=tasks.export_order,
            args=(1002,),
            places=[Place("/orders/1002", [busy(), busy(), ok(_order(1002))], visits=3)],
            **_succeeded(attempts=3),
            files={"exports/order-1002.csv": 3},
        ),
        Scenario(
            title="429 with Retry-After, then 200",
            task=tasks.send_receipt,
            args=(1003, "ada@example.org"),
            places=[Place("/mailboxes/ada@example.org", [slow_down(seconds=1), ok({})], visits=2)],
            **_succeeded(attempts=2),
            files={"mails/receipt-1003.json": 1},
        ),
    ]


def _failures() -> list[Scenario]:
    return [
        Scenario(
            title="always 503",
            task=tasks.export_order,
            args=(1004,),
            options={"max_attempts": 3},
            places=[Place("/orders/1004", [busy()], visits=3)],
            **_dead("failed_due_max_attempts", attempts=3, raises="AttemptsExhausted"),
        ),
        Scenario(
            title="404, a bad address",
            task=tasks.send_receipt,
            args=(1005, "nobody@example.org"),
            places=[Place("/mailboxes/nobody@example.org", [gone()], visits=1)],
            **_failed(raises="BadAddress"),
        ),
        Scenario(
            title="an amount that is no number",
            task=tasks.export_refunds,
            args=(["19.90", "12,oo"],),
            **_failed(raises="ValueError"),
        ),
        Scenario(
            title="an error no rule knows, twice",
            task=tasks.declare_customs,
            args=(1006, "lamps"),
            options={"max_attempts": 5},
            places=[Place("/tariff", [ok({"table": "books=5\nlamps"})], visits=2)],
            **_dead("failed_due_max_attempts", attempts=2, raises="AttemptsExhausted"),
        ),
        Scenario(
            title="429, too late for a next try",
            task=tasks.send_receipt,
            args=(1007, "eve@example.org"),
            places=[Place("/mailboxes/eve@example.org", [slow_down(seconds=600)], visits=1)],
            **_dead("failed_due_deadline", attempts=1, raises="DeadlineExceeded"),
        ),
    ]


def _deadlines() -> list[Scenario]:
    banks = {
        "hanging": ("a bank that never answers", Pace.NEVER),
        "dripping": ("a bank that drips for ever", Pace.DRIPPING),
    }
    return [
        *(
            Scenario(
                title=title,
                task=tasks.export_statement,
                args=(bank,),
                options={"deadline": timedelta(seconds=7)},
                places=[Place(f"/banks/{bank}", [Answer(pace=pace)], visits=1)],
                **_dead("failed_due_deadline", attempts=1, raises="DeadlineExceeded"),
            )
            for bank, (title, pace) in banks.items()
        ),
        Scenario(
            title="late in the queue",
            task=tasks.send_coupon,
            args=("ada@example.org", 15),
            options={"deadline": timedelta(seconds=3)},
            **_dead("failed_due_deadline", attempts=0, raises="DeadlineExceeded"),
        ),
    ]


def _lost_processes() -> list[Scenario]:
    pages = [
        Place(f"/months/2026-10/{page}", [ok(_order(1100 + page))], visits) for page, visits in ((1, 2), (2, 2), (3, 1))
    ]
    return [
        Scenario(
            title="process killed in mid export",
            task=tasks.export_month,
            args=("2026-10", len(pages)),
            options={"kwargs": {"power_cut_in_attempt": 1}},
            places=pages,
            **_succeeded(attempts=2),
            files={"exports/month-2026-10.csv": 7},
        ),
        Scenario(
            title="process killed, no repeat allowed",
            task=tasks.pay_supplier,
            args=("paper-mill", 129_00),
            options={"kwargs": {"power_cut_in_attempt": 1}},
            places=[Place("/transfers/paper-mill", [ok({})], visits=1)],
            **_dead("failed_due_worker_loss", attempts=1, raises="WorkerLost"),
        ),
    ]


def _succeeded(*, attempts: int) -> dict[str, Any]:
    return {"state": "succeeded", "reason": "succeeded", "attempts": attempts}


def _failed(*, raises: str) -> dict[str, Any]:
    return {"state": "failed", "reason": "failed_non_retryable", "attempts": 1, "raises": raises}


def _dead(reason: str, *, attempts: int, raises: str) -> dict[str, Any]:
    return {"state": "dead", "reason": reason, "attempts": attempts, "raises": raises}


def _order(number: int) -> dict[str, Any]:
    return {"lines": [[number, "book", 2, "19.90"], [number, "lamp", 1, "49.00"]]}
