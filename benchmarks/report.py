"""Tables and a plot of measured rounds. A ratio is taken within a round, then the median over the rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: What the others are compared with.
BASE = "celery"


def tables(measured: dict[str, Any]) -> str:
    """Return the rates and the costs as Markdown."""
    turns = [turn for turn in measured["turns"] if "error" not in turn]
    names = list(dict.fromkeys(turn["system"] for turn in turns))
    rates = [_rates(name, turns) for name in names]
    costs = [_costs(name, turns) for name in names]
    return "\n".join(
        [
            *_table("system|submit/s|x Celery|bulk/s|x Celery|drain/s|x Celery|p50 ms|p95 ms", rates),
            "",
            *_table(
                "per run|submit: statements|commits|CPU ms|drain: statements|commits|log bytes|CPU ms",
                costs,
            ),
            "",
            "CPU: the system + PostgreSQL + Redis. Medians over the rounds.",
            *(f"\nFAILED: {turn['system']}: {turn['error']}" for turn in measured["turns"] if "error" in turn),
        ]
    )


def plot(measured: dict[str, Any], path: Path) -> None:
    """Draw drain, submission and latency beside plain Celery as an SVG."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "celery_guard"
    from matplotlib import pyplot

    turns = [turn for turn in measured["turns"] if "error" not in turn]
    names = list(dict.fromkeys(turn["system"] for turn in turns))
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 0.32 * len(names) + 1.2), sharey=True, layout="constrained")
    panels = (
        ("drain.rate", "drain, two processes"),
        ("submit.rate", "submit, one by one"),
        ("latency.p50", "latency p50"),
    )
    for axis, (where, title) in zip(axes, panels, strict=True):
        values = [_ratio(name, turns, where) or 0 for name in names]
        colours = ["#c2410c" if name.startswith("guarded") else "#64748b" for name in names]
        axis.barh(names, [min(value, 3) for value in values], color=colours)
        for row, value in enumerate(values):
            if value:
                paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
                axis.text(min(value, 3) + 0.04, row, f"{value:.2f}", va="center", fontsize=8, bbox=paper)
        axis.axvline(1, color="#0f172a", linewidth=0.8)
        axis.set(title=f"{title} (Celery = 1)", xlim=(0, 3.5))
        axis.title.set_fontsize(10)
        axis.invert_yaxis() if axis is axes[0] else None
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def _rates(name: str, turns: Sequence[dict[str, Any]]) -> list[str]:
    cells = [name]
    for where in ("submit.rate", "bulk.rate", "drain.rate"):
        cells += [_median(name, turns, where, ".0f"), _shown(_ratio(name, turns, where))]
    return [*cells, _median(name, turns, "latency.p50", ".1f"), _median(name, turns, "latency.p95", ".1f")]


def _costs(name: str, turns: Sequence[dict[str, Any]]) -> list[str]:
    cells = [name]
    for part, counts in (("submit", "statements commits"), ("drain", "statements commits log_bytes")):
        cells += [
            _median(name, turns, f"{part}.{count}", ".0f" if "bytes" in count else ".2f") for count in counts.split()
        ]
        cpu = [_median(name, turns, f"{part}.cpu.{whose}", ".2f") for whose in ("system", "postgres", "redis")]
        cells.append(" + ".join(cpu))
    return cells


def _values(name: str, turns: Sequence[dict[str, Any]], where: str) -> dict[int, float]:
    found = {}
    for turn in turns:
        value: Any = turn
        for key in where.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if turn["system"] == name and value is not None:
            found[turn["round"]] = value
    return found


def _median(name: str, turns: Sequence[dict[str, Any]], where: str, form: str) -> str:
    values = _values(name, turns, where).values()
    return format(statistics.median(values), form) if values else "-"


def _ratio(name: str, turns: Sequence[dict[str, Any]], where: str) -> float | None:
    own, base = _values(name, turns, where), _values(BASE, turns, where)
    ratios = [own[number] / base[number] for number in own if number in base]
    return statistics.median(ratios) if ratios else None


def _shown(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _table(head: str, rows: list[list[str]]) -> list[str]:
    columns = head.split("|")
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]
