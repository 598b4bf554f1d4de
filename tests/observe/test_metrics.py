"""Metrics over the table: the same whichever process is asked, and only ever growing where they are counters."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from celery_guard import Snooze, State, cancel
from celery_guard.contrib.prometheus import metrics_registry
from celery_guard.core.decide import Lost
from celery_guard.flow.dispatch import Dispatcher
from celery_guard.flow.rescue import Rescuer, settle_for_child
from celery_guard.flow.settle import lost_fault
from celery_guard.observe.metrics import METRICS, GuardCollector
from celery_guard.observe.totals import Totals


def scrape(shop):
    """Return the samples of one scrape by a process that knows nothing yet, by name and labels."""
    registry = CollectorRegistry()
    registry.register(GuardCollector(shop.guard.tallies))
    samples = [sample for family in registry.collect() for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


@pytest.fixture
def tasks(any_shop):
    @any_shop.app.task(name="shop.add")
    def add(x, y):
        return x + y

    @any_shop.app.task(name="shop.fetch", max_attempts=3, retryable=(OSError,), deadline=timedelta(minutes=10))
    def fetch():
        raise OSError("no route")

    return any_shop.app.tasks


def test_live_runs_are_counted_by_task_and_state(any_shop, tasks):
    for _ in range(2):
        tasks["shop.add"].delay(1, 2)
    tasks["shop.fetch"].apply_async(countdown=60)

    found = scrape(any_shop)

    assert found["celery_guard_runs", "shop.add", "queued"] == 2
    assert found["celery_guard_runs", "shop.fetch", "queued"] == 1
    assert found["celery_guard_backlog", any_shop.queue] == 2
    assert found["celery_guard_store_up",] == 1


def test_endings_are_counted_by_task_state_and_reason(any_shop, tasks):
    for _ in range(2):
        tasks["shop.add"].delay(1, 2)
    tasks["shop.fetch"].delay()
    any_shop.work()
    cancel(tasks["shop.add"].delay(1, 2).id, app=any_shop.app)

    found = scrape(any_shop)

    assert found["celery_guard_runs_ended_total", "shop.add", "succeeded", "succeeded"] == 2
    assert found["celery_guard_runs_ended_total", "shop.add", "cancelled", "cancelled"] == 1
    assert found["celery_guard_runs_ended_total", "shop.fetch", "dead", "failed_due_max_attempts"] == 1


def test_every_way_to_end_is_counted_from_0_on_so_that_the_first_death_is_growth(any_shop, tasks):
    tasks["shop.add"].delay(1, 2)

    found = scrape(any_shop)

    assert found["celery_guard_runs_ended_total", "shop.add", "dead", "failed_due_deadline"] == 0
    assert len([key for key in found if key[:2] == ("celery_guard_runs_ended_total", "shop.add")]) == 6
    assert found["celery_guard_rescues_total", "shop.add"] == 0
    assert found["celery_guard_republished_total", "shop.add"] == 0


def test_attempts_are_a_histogram(any_shop, tasks):
    tasks["shop.fetch"].delay()
    any_shop.work()

    found = scrape(any_shop)

    assert [found["celery_guard_run_attempts_bucket", "shop.fetch", le] for le in ("2.0", "3.0", "+Inf")] == [0, 1, 1]
    assert found["celery_guard_run_attempts_sum", "shop.fetch"] == 3


def test_faults_are_counted_while_their_run_goes_on(any_shop, tasks):
    tasks["shop.fetch"].delay()
    any_shop.deliver(any_shop.message())

    found = scrape(any_shop)

    assert found["celery_guard_faults_total", "shop.fetch", "retryable", "task_retryable"] == 1
    assert found["celery_guard_runs", "shop.fetch", "retrying"] == 1


def test_times_are_measured_from_submission_to_first_start_to_end(any_shop, tasks):
    run = tasks["shop.fetch"].delay()
    any_shop.clock.advance(20)
    any_shop.deliver(any_shop.message())
    any_shop.clock.advance(100)
    cancel(run.id, app=any_shop.app)
    life = any_shop.run(run.id)
    start = life.attempts[0].started_at

    found = scrape(any_shop)

    waited = found["celery_guard_run_start_delay_seconds_sum", "shop.fetch"]
    took = found["celery_guard_run_duration_seconds_sum", "shop.fetch"]
    used = found["celery_guard_run_deadline_used_ratio_sum", "shop.fetch"]
    whole = (life.finished_at - life.created_at).total_seconds()
    assert waited == pytest.approx((start - life.created_at).total_seconds(), abs=0.002)
    assert took == pytest.approx((life.finished_at - start).total_seconds(), abs=0.002)
    assert used == pytest.approx(whole / 600, abs=0.001)
    assert found["celery_guard_run_start_delay_seconds_bucket", "shop.fetch", "10.0"] == 0
    assert found["celery_guard_run_deadline_used_ratio_bucket", "shop.fetch", "0.1"] == 0


def test_a_run_that_never_started_has_no_duration(any_shop, tasks):
    cancel(tasks["shop.add"].delay(1, 2).id, app=any_shop.app)

    found = scrape(any_shop)

    assert found["celery_guard_run_attempts_bucket", "shop.add", "0.0"] == 1
    assert ("celery_guard_run_duration_seconds_count", "shop.add") not in found


def test_rescues_are_counted(any_shop, tasks):
    run = tasks["shop.add"].delay(1, 2)
    any_shop.guard.runs.claim(run.id, "token", worker_id="gone", fingerprint=None)
    (row,) = any_shop.guard.runs.running_on("gone")
    Rescuer(any_shop.guard).end(row, "its worker stopped beating")

    found = scrape(any_shop)

    assert found["celery_guard_rescues_total", "shop.add"] == 1
    assert found["celery_guard_faults_total", "shop.add", "retryable", "worker_lost"] == 1


def test_copies_that_are_dropped_are_counted(any_shop, tasks):
    tasks["shop.add"].delay(1, 2)
    message = any_shop.message()
    for _ in range(3):
        any_shop.deliver(message)

    found = scrape(any_shop)

    assert found["celery_guard_duplicates_dropped_total", "shop.add"] == 2
    assert found["celery_guard_runs_ended_total", "shop.add", "succeeded", "succeeded"] == 1


def test_lost_messages_that_are_published_again_are_counted(any_shop, tasks):
    for _ in range(2):
        tasks["shop.add"].delay(1, 2)
    any_shop.messages()  # the broker loses them
    any_shop.clock.advance(60)
    dispatcher = Dispatcher(any_shop.guard)
    while not dispatcher.look_for_lost([]):
        pass

    assert scrape(any_shop)["celery_guard_republished_total", "shop.add"] == 2


def test_what_is_running_has_an_age(any_shop, tasks):
    run = tasks["shop.add"].apply_async((1, 2), deadline=60)
    any_shop.guard.runs.claim(run.id, "token", worker_id="here", fingerprint=None)
    any_shop.clock.advance(90)

    found = scrape(any_shop)

    assert 90 <= found["celery_guard_running_age_seconds", "shop.add"] < 150
    assert found["celery_guard_overdue_runs", "shop.add", "running"] == 1


def test_a_backlog_older_than_its_deadlines_shows(any_shop, tasks):
    tasks["shop.add"].apply_async((1, 2), deadline=60)
    tasks["shop.add"].apply_async((1, 2), deadline=600)
    any_shop.clock.advance(90)

    found = scrape(any_shop)

    assert -90 < found["celery_guard_backlog_time_left_seconds", any_shop.queue] <= -30
    assert 90 <= found["celery_guard_backlog_age_seconds", any_shop.queue] < 150


def test_rows_that_nobody_publishes_show(any_shop, tasks):
    tasks["shop.add"].apply_async((1, 2), countdown=10)
    assert scrape(any_shop)["celery_guard_due_age_seconds",] == 0

    any_shop.clock.advance(100)

    assert 90 <= scrape(any_shop)["celery_guard_due_age_seconds",] < 150


# Counters only grow, whatever becomes of the rows and of who counts


def counters(found):
    return {key: value for key, value in found.items() if key[0].endswith(("_total", "_bucket", "_count", "_sum"))}


def test_what_was_counted_stays_counted_when_its_rows_are_pruned(any_shop, tasks):
    tasks["shop.add"].delay(1, 2)
    tasks["shop.fetch"].delay()
    any_shop.work()
    before = scrape(any_shop)
    any_shop.clock.advance(30)
    scrape(any_shop)
    any_shop.clock.advance(30)

    for state in (State.SUCCEEDED, State.DEAD):
        assert any_shop.guard.runs.prune(state, timedelta(seconds=1), timedelta(seconds=1), limit=10) == 1

    assert counters(scrape(any_shop)) == counters(before)


def test_each_ending_is_counted_once_over_many_scrapes(any_shop, tasks):
    seen = []
    for _ in range(6):
        tasks["shop.add"].delay(1, 2)
        any_shop.work()
        any_shop.clock.advance(7)
        seen.append(scrape(any_shop)["celery_guard_runs_ended_total", "shop.add", "succeeded", "succeeded"])

    assert seen == [1, 2, 3, 4, 5, 6]


def test_collectors_that_count_at_once_count_once(any_shop, tasks):
    for _ in range(5):
        tasks["shop.add"].delay(1, 2)
    any_shop.work()
    any_shop.clock.advance(30)
    start, found = threading.Barrier(4), []

    def one():
        start.wait()
        found.append(scrape(any_shop)["celery_guard_runs_ended_total", "shop.add", "succeeded", "succeeded"])

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [5] * 4
    assert scrape(any_shop)["celery_guard_runs_ended_total", "shop.add", "succeeded", "succeeded"] == 5


def test_the_first_scrape_looks_back_an_hour_and_no_further(any_shop, tasks):
    tasks["shop.add"].delay(1, 2)
    any_shop.work()
    any_shop.clock.advance(3_700)
    tasks["shop.add"].delay(1, 2)
    any_shop.work()

    assert scrape(any_shop)["celery_guard_runs_ended_total", "shop.add", "succeeded", "succeeded"] == 1


def test_a_collector_reads_live_rows_no_more_often_than_its_share_of_time_allows(shop, monkeypatch):
    collector = GuardCollector(shop.guard.tallies)
    reads = []
    monkeypatch.setattr("celery_guard.observe.metrics.LIVE_SHARE", 1e-9)
    monkeypatch.setattr(shop.guard.tallies, "live", lambda: reads.append("read") or [])

    for _ in range(3):
        list(collector.collect())

    assert reads == ["read"]


def test_other_namespaces_are_not_counted(any_shop, tasks):
    tasks["shop.fetch"].delay()
    any_shop.work()
    any_shop.sql("UPDATE task_run SET namespace = 'office'")

    assert set(scrape(any_shop)) == {("celery_guard_store_up",), ("celery_guard_due_age_seconds",)}


def test_a_snooze_is_no_fault(any_shop):
    @any_shop.app.task
    def poll():
        raise Snooze(30)

    poll.delay()
    any_shop.deliver(any_shop.message())

    assert not [key for key in scrape(any_shop) if key[0] == "celery_guard_faults_total"]


# What a scrape looks like


def test_a_database_that_is_away_is_told_and_nothing_else(open_shop):
    shop = open_shop(url="postgresql+psycopg2://nobody@127.0.0.1:1/nowhere")

    assert scrape(shop) == {("celery_guard_store_up",): 0}


def test_tables_that_do_not_fit_are_told_like_a_database_that_is_away(shop):
    shop.guard.runs.clock()
    shop.sql("UPDATE guard_meta SET schema_version = 99, compatible_from = 99")
    shop.guard.database._checked = False

    assert scrape(shop) == {("celery_guard_store_up",): 0}


def test_every_metric_is_described(shop):
    registry = metrics_registry(shop.app)

    families = {family.name for family in registry.collect()}

    assert families == set(METRICS)


def test_registering_reads_nothing(open_shop):
    shop = open_shop(url="postgresql+psycopg2://nobody@127.0.0.1:1/nowhere")

    assert metrics_registry(shop.app) is not None


def test_two_apps_in_one_registry_are_refused(shop):
    registry = metrics_registry(shop.app)

    with pytest.raises(ValueError, match="celery_guard_runs"):
        metrics_registry(shop.app, registry)


def test_totals_of_other_buckets_begin_anew():
    assert Totals.decode('{"form": ["0"], "ended": [["a", "b", "c", 7]]}') == Totals()


def test_a_child_lost_before_its_claim_counts_as_a_rescue(any_shop, tasks):
    run = tasks["shop.add"].delay(1, 2)

    lost = Lost(lost_fault("worker_lost", "gone"))
    settle_for_child(any_shop.guard, tasks["shop.add"], run.id, "token", lost, attempts_before=0)

    assert scrape(any_shop)["celery_guard_rescues_total", "shop.add"] == 1
