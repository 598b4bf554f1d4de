"""Metrics for Prometheus, read from the table at each scrape: right across processes, and cheap however long it is.

What only grows is counted once: a scrape reads what ended since the last one through an index, and keeps the sum in one
row that all collectors of a namespace share. So counters are the same whichever process is asked, survive restarts, and
know nothing of pruning.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from celery_guard.core.histogram import BOUNDS, Measure
from celery_guard.core.states import ENDINGS, State
from celery_guard.errors import SchemaMismatch, StoreUnavailable
from celery_guard.observe.logs import logger
from celery_guard.observe.totals import Totals
from celery_guard.store.tallies import LiveGroup, TallyStore, Unrecorded

__all__ = ["MEASURES", "METRICS", "GuardCollector"]

#: An ending is counted for good this long after it was written; one whose transaction commits later is missed.
SETTLED_AFTER = timedelta(seconds=10)

#: How far back the first scrape of a namespace counts.
BEGINS_WITH = timedelta(hours=1)

#: The largest share of its time that a collector may spend on reading live rows, which are read anew each time.
LIVE_SHARE = 0.05

#: The rule of attempts that were ended because their process or worker was gone.
_LOST = "worker_lost"

#: Name → kind, labels, what it says. Counters get ``_total`` behind their name, histograms ``_bucket`` and so on.
METRICS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "celery_guard_store_up": ("gauge", (), "Whether the database of runs could be read: 1, or 0 and nothing else."),
    "celery_guard_runs": ("gauge", ("type", "state"), "Runs that are live now."),
    "celery_guard_overdue_runs": ("gauge", ("type", "state"), "Live runs whose deadline has passed."),
    "celery_guard_running_age_seconds": ("gauge", ("type",), "How long the oldest attempt runs that is running now."),
    "celery_guard_backlog": ("gauge", ("queue",), "Runs that wait for a worker."),
    "celery_guard_backlog_age_seconds": ("gauge", ("queue",), "How long the oldest of them waits since it was queued."),
    "celery_guard_backlog_time_left_seconds": (
        "gauge",
        ("queue",),
        "Time to the soonest deadline among them; below 0 the backlog is older than its deadlines.",
    ),
    "celery_guard_due_age_seconds": ("gauge", (), "How long the oldest row waits that is due and was not published."),
    "celery_guard_runs_ended": ("counter", ("type", "state", "reason"), "Runs that ended."),
    "celery_guard_run_attempts": ("histogram", ("type",), "Attempts that ended runs had used."),
    "celery_guard_run_start_delay_seconds": (
        "histogram",
        ("type",),
        "From submission to the first start, a countdown included.",
    ),
    "celery_guard_run_duration_seconds": (
        "histogram",
        ("type",),
        "From the first start to the end, waits between attempts included.",
    ),
    "celery_guard_run_deadline_used_ratio": (
        "histogram",
        ("type",),
        "How much of the time to their deadline ended runs had used; what is left to 1 is the margin.",
    ),
    "celery_guard_faults": ("counter", ("type", "category", "rule"), "Attempts that failed."),
    "celery_guard_rescues": ("counter", ("type",), "Attempts that were ended because their process was lost."),
    "celery_guard_duplicates_dropped": ("counter", ("type",), "Copies of messages that were not run."),
    "celery_guard_republished": ("counter", ("type",), "Messages that were lost and published again."),
}

#: Which histogram shows a measure.
MEASURES = {
    Measure.ATTEMPTS: "celery_guard_run_attempts",
    Measure.START_DELAY: "celery_guard_run_start_delay_seconds",
    Measure.DURATION: "celery_guard_run_duration_seconds",
    Measure.DEADLINE_USED: "celery_guard_run_deadline_used_ratio",
}

_EVENTS = {
    Unrecorded.DUPLICATE_DROPPED: "celery_guard_duplicates_dropped",
    Unrecorded.REPUBLISHED: "celery_guard_republished",
}

_WAYS_TO_END = [(state, reason) for state, reasons in sorted(ENDINGS.items()) for reason in sorted(reasons)]

_FAMILIES = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}


class GuardCollector(Collector):
    """A ``prometheus_client`` collector over the runs of one namespace.

    Args:
        tallies: what is counted.
    """

    def __init__(self, tallies: TallyStore) -> None:
        self.tallies = tallies
        self._lock = threading.Lock()
        self._live: list[LiveGroup] = []
        self._live_until = 0.0

    def describe(self) -> Iterable[Metric]:
        """Return every metric without a value, so that registering reads nothing."""
        return [_family(name) for name in METRICS]

    def collect(self) -> Iterator[Metric]:
        """Read everything. While the database is away only ``celery_guard_store_up`` is told."""
        try:
            with self._lock:
                now, totals = self._totals()
                live = self._live_groups()
                tasks = sorted({group.type for group in live} | {type_ for type_, _, _ in totals.ended})
                found = [*_live(live, now), *_ended(totals, tasks), *self._events(tasks), self._due(now)]
        except (StoreUnavailable, SchemaMismatch) as away:
            logger.warning("metrics can't be read: %s", away)
            found = []
        yield _family("celery_guard_store_up", ((), float(bool(found))))
        yield from found

    def _totals(self) -> tuple[datetime, Totals]:
        """Return the clock and what ended up to now; what is settled is written down on the way."""
        saved = self.tallies.load()
        totals, since = Totals.decode(saved.totals), saved.counted_to or saved.now - BEGINS_WITH
        settled = saved.now - SETTLED_AFTER
        if settled - since >= SETTLED_AFTER or saved.counted_to is None:
            totals.add(self.tallies.ended(since, settled), self.tallies.faults(since, settled))
            if not self.tallies.save(totals.encode(), counted_before=saved.counted_to, counted_to=settled):
                return self._totals()  # another collector was faster: what it wrote counts
            since = settled
        totals.add(self.tallies.ended(since, saved.now), self.tallies.faults(since, saved.now))
        return saved.now, totals

    def _live_groups(self) -> list[LiveGroup]:
        began = time.monotonic()
        if began >= self._live_until:
            self._live = self.tallies.live()
            ended = time.monotonic()
            self._live_until = ended + (ended - began) / LIVE_SHARE
        return self._live

    def _events(self, tasks: Iterable[str]) -> Iterator[Metric]:
        counted = self.tallies.counted()
        for event, name in _EVENTS.items():
            times = {(type_,): times for this, type_, times in counted if this is event}
            yield _family(name, *{**{(type_,): 0 for type_ in tasks}, **times}.items())

    def _due(self, now: datetime) -> Metric:
        return _family("celery_guard_due_age_seconds", ((), _age(now, self.tallies.due_since(now))))


def _family(name: str, *samples: tuple[tuple[str, ...], float]) -> Metric:
    kind, labels, says = METRICS[name]
    family: Metric = _FAMILIES[kind](name, says, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)  # type: ignore[attr-defined]
    return family


def _live(groups: Iterable[LiveGroup], now: datetime) -> Iterator[Metric]:
    runs: dict[tuple[str, ...], int] = defaultdict(int)
    overdue: dict[tuple[str, ...], int] = defaultdict(int)
    oldest: dict[tuple[str, ...], float] = defaultdict(float)
    backlog: dict[tuple[str, ...], int] = defaultdict(int)
    waits: dict[tuple[str, ...], float] = defaultdict(float)
    left: dict[tuple[str, ...], float] = {}
    for group in groups:
        task, queue = (group.type,), (group.queue,)
        runs[group.type, group.state.value] += group.count
        overdue[group.type, group.state.value] += group.overdue
        if group.state is State.RUNNING:
            oldest[task] = max(oldest[task], _age(now, group.oldest_start))
        if group.waits_for_a_worker:
            backlog[queue] += group.count
            waits[queue] = max(waits[queue], _age(now, group.oldest_update))
            until = (group.soonest_deadline - now).total_seconds()
            left[queue] = min(left.get(queue, until), until)
    yield _family("celery_guard_runs", *runs.items())
    yield _family("celery_guard_overdue_runs", *overdue.items())
    yield _family("celery_guard_running_age_seconds", *oldest.items())
    yield _family("celery_guard_backlog", *backlog.items())
    yield _family("celery_guard_backlog_age_seconds", *waits.items())
    yield _family("celery_guard_backlog_time_left_seconds", *left.items())


def _ended(totals: Totals, tasks: Iterable[str]) -> Iterator[Metric]:
    """Tell what ended. A counter of a known task begins with 0: the growth from nothing to 1 is none to Prometheus."""
    nothing = {(type_, state.value, reason.value): 0 for type_ in tasks for state, reason in _WAYS_TO_END}
    yield _family("celery_guard_runs_ended", *{**nothing, **totals.ended}.items())
    yield _family("celery_guard_faults", *totals.faults.items())
    rescues: dict[tuple[str, ...], int] = {(type_,): 0 for type_ in tasks}
    for (type_, _, rule), count in totals.faults.items():
        rescues[(type_,)] = rescues.get((type_,), 0) + (count if rule == _LOST else 0)
    yield _family("celery_guard_rescues", *rescues.items())
    for measure, name in MEASURES.items():
        family = HistogramMetricFamily(name, METRICS[name][2], labels=METRICS[name][1])
        bounds = [*map(str, BOUNDS[measure]), "+Inf"]
        for (this, type_), known in totals.measures.items():
            if this is measure and known.counts[-1]:
                family.add_metric([type_], list(zip(bounds, known.counts, strict=True)), known.total)
        yield family


def _age(now: datetime, since: datetime | None) -> float:
    return max((now - since).total_seconds(), 0.0) if since else 0.0
