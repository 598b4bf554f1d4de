"""What ended so far, added up: the part of the metrics that only grows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from celery_guard.core.histogram import BOUNDS, Distribution, Measure
from celery_guard.store.tallies import EndedGroup, FaultGroup

__all__ = ["Totals"]

#: What the stored form looks like, and which buckets it counts in: others than these are not added to.
_FORM = ["1", *(f"{measure}:{bounds}" for measure, bounds in BOUNDS.items())]


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
            for measure, values in group.measures.items():
                empty = Distribution([0] * len(values.counts))
                self.measures.setdefault((measure, group.type), empty).add(values)
        for fault in faults:
            self.faults[fault.type, fault.category.value, fault.rule] += fault.count

    def encode(self) -> str:
        """Return the stored form."""
        return json.dumps(
            {
                "form": _FORM,
                "ended": [[*labels, count] for labels, count in self.ended.items()],
                "faults": [[*labels, count] for labels, count in self.faults.items()],
                "measures": [
                    [measure.value, type_, known.counts, known.total]
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
                (Measure(measure), type_): Distribution(counts, total)
                for measure, type_, counts, total in found["measures"]
            },
        )
