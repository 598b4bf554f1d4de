"""The verbs of a worker's boot."""

from __future__ import annotations

from celery_guard.store.workers import Beat, WorkerStore
from tests.store.lives import after


def beat(workers, worker_id="boot-1", reserved=()):
    return workers.beat(worker_id, host="here", pid=7, reserved=list(reserved))


def test_the_first_beat_writes_the_worker(workers):
    beat(workers, reserved=["run-1", "run-2"])

    assert workers.alive() == [Beat("boot-1", 1, ("run-1", "run-2"))]


def test_each_beat_counts_on_and_replaces_what_is_reserved(workers):
    beat(workers, reserved=["run-1"])
    beat(workers, reserved=["run-2"])
    beat(workers, reserved=[])

    assert workers.alive() == [Beat("boot-1", 3, ())]


def test_a_beat_tells_the_time_of_the_database(workers, clock):
    clock.forward(5)

    assert beat(workers) == after(5)


def test_each_boot_is_a_worker_of_its_own(workers):
    beat(workers, "boot-1")
    beat(workers, "boot-2")
    beat(workers, "boot-2")

    assert sorted((found.worker_id, found.count) for found in workers.alive()) == [("boot-1", 1), ("boot-2", 2)]


def test_a_worker_that_stopped_is_not_alive(workers):
    beat(workers, "boot-1", reserved=["run-1"])
    beat(workers, "boot-2")

    workers.stop("boot-1")

    assert [found.worker_id for found in workers.alive()] == ["boot-2"]


def test_a_worker_that_was_taken_for_dead_comes_back_by_beating(workers):
    beat(workers)
    workers.stop("boot-1")

    beat(workers, reserved=["run-1"])

    assert workers.alive() == [Beat("boot-1", 2, ("run-1",))]


def test_stopping_a_worker_that_is_not_there_changes_nothing(workers):
    workers.stop("nobody")

    assert workers.alive() == []


def test_the_workers_of_other_namespaces_are_not_ours(workers):
    beat(WorkerStore(workers.database, "office"))

    assert workers.alive() == []


def test_a_long_host_name_is_cut(workers):
    workers.beat("boot-1", host="h" * 300, pid=7, reserved=[])

    assert len(workers.alive()) == 1
