"""Many runs at once, each ending in its own way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from celery import chain

from tests.acceptance.scenes import ending, ids

SUCCEEDED = ("succeeded", "succeeded")
FAILED = ("failed", "failed_non_retryable")
LATE = ("dead", "failed_due_deadline")
USED_UP = ("dead", "failed_due_max_attempts")


@dataclass(frozen=True)
class Kind:
    """Submissions that end alike."""

    count: int
    state: str
    reason: str
    attempts: int
    submit: Any
    #: How many of the bodies that began reached their end.
    ends: int | None = None


def _kinds(tasks: Any) -> dict[str, Kind]:
    return {
        # first in the queue: their bodies must have begun when the deadline comes
        "deadline in the body": Kind(3, *LATE, 1, lambda n: tasks.oversleep.apply_async(deadline=6)),
        "child killed": Kind(5, *SUCCEEDED, 2, tasks.die_once.delay, ends=1),
        "success": Kind(229, *SUCCEEDED, 1, tasks.succeed.delay),
        "no result": Kind(20, *SUCCEEDED, 1, lambda n: tasks.succeed.delay(None)),
        "success after retries": Kind(60, *SUCCEEDED, 3, lambda n: tasks.succeed_at.delay(3, n)),
        "attempts used up": Kind(30, *USED_UP, 3, lambda n: tasks.succeed_at.apply_async((99,), max_attempts=3)),
        "non-retryable": Kind(43, *FAILED, 1, lambda n: tasks.refuse.delay(f"no {n}")),
        "unknown fault twice": Kind(20, *USED_UP, 2, lambda n: tasks.surprise.delay()),
        "countdown": Kind(40, *SUCCEEDED, 1, lambda n: tasks.succeed.apply_async((n,), countdown=0.5 + n % 5 / 5)),
        "tail of a chain": Kind(25, *SUCCEEDED, 1, lambda n: chain(tasks.add.s(n, 1), tasks.add.s(10)).delay()),
    }


def test_500_runs_end_as_their_bodies_say(broker_url, postgres_url, scene):
    life = scene(broker_url=broker_url, guard_database_url=postgres_url)
    kinds = _kinds(life.tasks)
    life.worker(), life.worker()

    results = {name: [kind.submit(number) for number in range(kind.count)] for name, kind in kinds.items()}

    heads = ids(result.parent for result in results["tail of a chain"])
    submitted = [*heads, *(run_id for found in results.values() for run_id in ids(found))]
    runs = {run.id: run for run in life.ended(*submitted, within=120)}
    assert len(life.rows("id")) == len(submitted) == 500
    begun = Counter(trace["run"] for trace in life.traces("begin"))
    ended = Counter(trace["run"] for trace in life.traces("end"))
    assert {ending(runs[head]) for head in heads} == {(*SUCCEEDED, 1)}
    assert {(begun[head], ended[head]) for head in heads} == {(1, 1)}
    for name, kind in kinds.items():
        mine = ids(results[name])
        assert Counter(ending(runs[run_id]) for run_id in mine) == {
            (kind.state, kind.reason, kind.attempts): kind.count
        }, name
        assert {begun[run_id] for run_id in mine} == {kind.attempts}, name
        assert {ended[run_id] for run_id in mine} == {kind.attempts if kind.ends is None else kind.ends}, name
    assert [result.get(timeout=30) for result in results["success after retries"]] == list(range(60))
    assert [result.get(timeout=30) for result in results["tail of a chain"]] == [number + 11 for number in range(25)]
    assert {result.get(timeout=30) for result in results["no result"]} == {None}
