"""What ``format_task`` adds to Flower's page of a task."""

from __future__ import annotations

import copy
import json
from itertools import count

import pytest
from celery.events.state import State

from celery_guard.contrib.flower import format_task

DEADLINE = "2026-01-01T12:10:00+01:00"
_clock = count(1)


def shown(*events):
    """Let Celery make a task of events, and Flower show it: it gives a copy to ``format_task``."""
    state = State()
    for name, fields in events:
        clock = next(_clock)
        state.event(
            {
                "type": f"task-{name}",
                "uuid": "run-1",
                "hostname": "w",
                "clock": clock,
                "timestamp": clock,
                "local_received": clock,
                "utcoffset": 0,
                "pid": 1,
                **fields,
            }
        )
    task = format_task(copy.copy(state.tasks["run-1"]))
    added = {name: getattr(task, name) for name in ("attempt", "deadline", "reason") if name in task._fields}
    json.dumps({name: value for name, value in task.as_dict().items() if name != "worker"})
    return added


RECEIVED = ("received", {"name": "shop.send", "retries": 1, "expires": DEADLINE})


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (
            ("failed", {"result": "failed_due_max_attempts", "exception": "ConnectionError('no')"}),
            "failed_due_max_attempts: all attempts were used",
        ),
        (("revoked", {"result": "cancelled"}), "cancelled: somebody stopped it"),
        (
            ("retried", {"result": "next attempt at 2026-01-01 11:00:00 UTC", "exception": "ConnectionError('no')"}),
            "next attempt at 2026-01-01 11:00:00 UTC: ConnectionError('no')",
        ),
    ],
    ids=["failed", "revoked", "retried"],
)
def test_it_says_which_attempt_it_was_by_when_and_why(event, reason):
    assert shown(RECEIVED, ("started", {}), event) == {
        "attempt": 2,
        "deadline": "2026-01-01 11:10:00 UTC",
        "reason": reason,
    }


def test_a_success_needs_no_reason():
    assert shown(RECEIVED, ("started", {}), ("succeeded", {"result": "'done'", "runtime": 1.0})) == {
        "attempt": 2,
        "deadline": "2026-01-01 11:10:00 UTC",
    }


def test_a_run_that_never_started_has_no_attempt():
    late = shown(("failed", {"retries": 0, "expires": DEADLINE, "result": "failed_due_deadline", "exception": ""}))

    assert late["attempt"] == 0


@pytest.mark.parametrize("event", ["failed", "retried", "revoked"])
def test_a_task_that_is_not_guarded_stays_as_it_is(event):
    plain = ("received", {"name": "shop.plain", "retries": 0, "expires": None})

    assert shown(plain, ("started", {}), (event, {"exception": "ValueError('no')"})) == {"attempt": 1}


@pytest.mark.parametrize("expires", ["2026-01-01T11:10:00Z", "2026-01-01T11:10:00+00:00", DEADLINE])
def test_a_deadline_is_read_however_it_is_written(expires):
    assert shown(("received", {"name": "shop.send", "expires": expires}))["deadline"] == "2026-01-01 11:10:00 UTC"


def test_what_is_no_moment_is_left_out():
    assert "deadline" not in shown(("received", {"name": "shop.send", "expires": "soon"}))


def test_a_task_of_which_hardly_anything_is_known_stays_as_it_is():
    assert shown(("started", {})) == {}
