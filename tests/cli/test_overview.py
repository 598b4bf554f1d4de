"""``guard stats`` and ``guard workers``: the whole namespace at a glance."""

from __future__ import annotations

import pytest


def test_runs_are_counted_by_state_and_reason(any_shop):
    for _ in range(2):
        any_shop.apply("busy")
    any_shop.apply("add", 1, 2)
    any_shop.submit("add", 1, 2)

    found = any_shop.json("stats")

    assert found["by_state"] == {"dead": 2, "succeeded": 1, "queued": 1}
    assert found["by_reason"] == {"failed_due_max_attempts": 2, "succeeded": 1}


def test_margins_to_the_deadline_are_told_by_task(any_shop):
    any_shop.apply("busy")

    (dead,) = any_shop.json("stats")["ended"]

    assert (dead["type"], dead["tight"]) == ("shop.busy", 0)
    assert 290 < dead["least_margin"] <= dead["mean_margin"] < 300


def test_a_run_that_ended_near_its_deadline_is_counted_as_tight(any_shop):
    run_id = any_shop.submit("add", 1, 2)
    database = any_shop.guard.database
    any_shop.run("cancel", run_id)
    with database.connection() as connection:
        connection.exec_driver_sql("UPDATE task_run SET deadline_at = finished_at")

    (ended,) = any_shop.json("stats")["ended"]

    assert ended["tight"] == 1
    assert ended["least_margin"] == pytest.approx(0, abs=0.001)


def test_the_oldest_run_that_waits_for_a_worker_is_named(any_shop):
    any_shop.submit("add", 1, 2, countdown=600)
    oldest = any_shop.submit("add", 1, 2)
    any_shop.submit("add", 1, 2)

    assert any_shop.json("stats")["oldest_queued"]["id"] == oldest
    assert oldest in any_shop.run("stats").stdout


def test_only_endings_of_late_are_counted(any_shop):
    any_shop.apply("add", 1, 2)

    assert any_shop.json("stats", "--since", "0s")["ended"] == []
    assert len(any_shop.json("stats", "--all")["ended"]) == 1


def test_an_empty_namespace_has_statistics(any_shop):
    assert "none" in any_shop.run("stats").stdout


def test_workers_are_listed_with_what_they_hold(any_shop):
    guard, run_id = any_shop.guard, any_shop.submit("add", 1, 2)
    guard.workers.beat("boot-1", host="mill", pid=77, reserved=["a", "b"])
    guard.runs.claim(run_id, "token", worker_id="boot-1", fingerprint=None)

    (worker,) = any_shop.json("workers")["workers"]

    assert (worker["host"], worker["pid"], worker["status"]) == ("mill", 77, "beating")
    assert (worker["running"], worker["reserved"]) == (1, 2)


def test_a_worker_that_has_not_beaten_for_long_is_silent(any_shop):
    any_shop.guard.workers.beat("boot-1", host="mill", pid=77, reserved=[])
    with any_shop.guard.database.connection() as connection:
        connection.exec_driver_sql("UPDATE task_worker SET beat_at = '2020-01-01 00:00:00.000000+00:00'")

    assert "silent" in any_shop.run("workers").stdout


def test_stopped_workers_are_listed_when_asked(any_shop):
    any_shop.guard.workers.beat("boot-1", host="mill", pid=77, reserved=[])
    any_shop.guard.workers.stop("boot-1")

    assert any_shop.json("workers")["workers"] == []
    assert [one["status"] for one in any_shop.json("workers", "--stopped", "5")["workers"]] == ["stopped"]


def test_no_worker_is_no_failure(any_shop):
    result = any_shop.run("workers")

    assert (result.exit_code, result.stdout) == (0, "")
