"""What ended so far, added up: the part of the metrics that only grows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from celery_guard.core.histogram import BOUNDS, Measure
from celery_guard.store.tallies import EndedGroup, FaultGroup

__all__ = ["Distribution", "Totals"]

#: What the stored form looks like, and which buckets it counts in: others than these are not added to.
_FORM = ["1", *(f"{measure}:{bounds}" for measure, bounds in BOUNDS.items())]


@dataclass
class Distribution:
    """How often a measure fell into each bucket, and the sum of its values.

    Args:
        buckets: one count per bound, and one for what is larger than all of them.
        total: the sum.
    """

    buckets: list[int]
    total: float = 0.0

    @property
    def cumulative(self) -> list[int]:
        """How many values are at most as large as each bound."""
        return list(accumulate(self.buckets))


@dataclass
class Totals:
    """Runs that ended and faults that happened, counted.

    Args:
        ended: by task, state and reason.
        faults: by task, category and rule.
        measures: by measure and task.
    """

    ended: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    faults: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    measures: dict[tuple[Measure, str], Distribution] = field(default_factory=dict)

    def add(self, ended: Iterable[EndedGroup], faults: Iterable[FaultGroup]) -> None:
        """Count what a slice of time brought."""
        for group in ended:
            self.ended[group.type, group.state.value, group.reason.value] += group.count
            for measure, bucket in group.buckets.items():
                if bucket is not None:
                    known = self._distribution(measure, group.type)
                    known.buckets[bucket] += group.count
                    known.total += group.sums[measure]
        for fault in faults:
            self.faults[fault.type, fault.category.value, fault.rule] += fault.count

    def _distribution(self, measure: Measure, type_: str) -> Distribution:
        empty = [0] * (len(BOUNDS[measure]) + 1)
        return self.measures.setdefault((measure, type_), Distribution(empty))

    def encode(self) -> str:
        """Return the stored form."""
        return json.dumps(
            {
                "form": _FORM,
                "ended": [[*labels, count] for labels, count in self.ended.items()],
                "faults": [[*labels, count] for labels, count in self.faults.items()],
                "measures": [
                    [measure.value, type_, known.buckets, known.total]
                    for (measure, type_), known in self.measures.items()
                ],
            }
        )

    @classmethod
    def decode(cls, stored: str | None) -> Totals:
        """Read the stored form; one of other buckets begins anew, which Prometheus takes for a restart."""
        found = json.loads(stored) if stored else {}
        if found.get("form") != _FORM:
            return cls()
        return cls(
            Counter({(one, two, three): count for one, two, three, count in found["ended"]}),
            Counter({(one, two, three): count for one, two, three, count in found["faults"]}),
            {
                (Measure(measure), type_): Distribution(buckets, total)
                for measure, type_, buckets, total in found["measures"]
            },
        )
