"""What nobody else ends any more is ended all the same: rows of workers that are gone, and late ones, however many."""

from __future__ import annotations

from datetime import timedelta

from celery_guard.flow.rescue import Rescuer
from celery_guard.flow.sweep import Sweeper
from celery_guard.flow.worker import Keeper


def nothing():
    pass


def held_by(shop, worker_id, **options):
    """Submit a run and claim it as a worker that has beaten."""
    run = shop.app.task(nothing, name="shop.held", shared=False, **options).delay()
    shop.guard.workers.beat(worker_id, host="here", pid=1, reserved=[])
    assert shop.guard.runs.claim(run.id, "token", worker_id=worker_id, fingerprint=None)
    return run


def looks(rescuer, *moments):
    return [rescuer.take_over(monotonic=moment) for moment in moments]


def test_what_could_not_be_ended_when_its_worker_was_found_gone_is_ended_later(open_shop, store_url):
    shop = open_shop(url=store_url, guard_rescue_after=30, guard_heartbeat_interval=10)
    run = held_by(shop, "gone")
    shop.guard.workers.stop("gone")

    assert looks(Rescuer(shop.guard), 0, 10, 20, 30, 40) == [0, 0, 0, 1, 0]
    assert shop.run(run.id).state == "retrying"


def test_what_a_living_worker_runs_is_left_alone(open_shop, store_url):
    shop = open_shop(url=store_url)
    run = held_by(shop, "alive")

    assert looks(Rescuer(shop.guard), 0, 10, 20, 30, 40) == [0] * 5
    assert shop.run(run.id).state == "running"


def test_a_worker_that_was_taken_for_gone_and_beats_again_keeps_what_it_has_claimed_since(open_shop, store_url):
    shop = open_shop(url=store_url)
    run = held_by(shop, "frozen")
    shop.guard.workers.stop("frozen")
    rescuer = Rescuer(shop.guard)
    looks(rescuer, 0, 10, 20)

    shop.guard.workers.beat("frozen", host="here", pid=1, reserved=[])

    assert looks(rescuer, 30, 40, 50) == [0, 0, 0]
    assert shop.run(run.id).state == "running"


def test_a_worker_that_does_not_know_the_task_leaves_it_to_one_that_does(open_shop, store_url):
    shop, other = open_shop(url=store_url), open_shop(url=store_url)
    held_by(shop, "gone")
    shop.guard.workers.stop("gone")

    assert looks(Rescuer(other.guard), 0, 10, 20, 30) == [0] * 4
    assert looks(Rescuer(shop.guard), 0, 10, 20, 30) == [0, 0, 0, 1]


def test_an_observer_that_missed_beats_of_its_own_begins_anew(open_shop, store_url):
    shop = open_shop(url=store_url)
    held_by(shop, "gone")
    shop.guard.workers.stop("gone")
    rescuer = Rescuer(shop.guard)
    looks(rescuer, 0, 10, 20)

    rescuer.forget()

    assert looks(rescuer, 30, 40, 50, 60) == [0, 0, 0, 1]


def test_a_body_is_given_the_grace_of_its_own_task(open_shop, store_url):
    shop = open_shop(url=store_url)
    patient = held_by(shop, "here", deadline=60, deadline_grace=40)
    hasty = shop.app.task(nothing, name="shop.hasty", deadline=60, deadline_grace=1).delay()
    shop.guard.runs.claim(hasty.id, "other", worker_id="here", fingerprint=None)
    states = []

    for seconds in (60.5, 1, 38, 1):
        shop.clock.advance(seconds)
        Sweeper(shop.guard).running()
        states.append((shop.run(hasty.id).state, shop.run(patient.id).state))

    assert states == [("running", "running"), ("dead", "running"), ("dead", "running"), ("dead", "dead")]
    dead = shop.run(patient.id)
    assert (dead.terminal_reason, dead.last_error) == (
        "failed_due_deadline",
        "DeadlineExceeded: the body was still running after the deadline and its grace",
    )


def test_however_many_runs_have_one_deadline_one_round_ends_them(open_shop, store_url):
    shop = open_shop(url=store_url, guard_dispatch_batch=3)
    late = shop.app.task(nothing, name="shop.late", deadline=60)
    ids = [late.delay().id for _ in range(10)]
    shop.clock.advance(61)

    assert Sweeper(shop.guard).waiting() == 10

    assert {shop.run(run_id).state for run_id in ids} == {"dead"}


def test_a_dispatch_that_is_rare_makes_no_deadline_wait(open_shop):
    shop = open_shop(guard_dispatch_interval=timedelta(minutes=1))

    rota = Keeper(shop.guard)._rota

    assert rota.tick_every == 1.0
    assert sorted(duty.every for duty in rota.duties)[:3] == [1.0, 1.0, 2.0]
