"""Let systems take turns: ``python -m benchmarks --systems celery,guarded --rounds 5 --json out.json``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from benchmarks.contest import Turn
from benchmarks.machine import Servers
from benchmarks.report import plot, tables
from benchmarks.servers import servers
from benchmarks.systems import every_system

PARTS = "submit,drain,bulk,latency"


def main() -> None:
    """Measure, or show what was measured."""
    asked = _arguments()
    if asked.list:
        print("\n".join(every_system()))
    elif asked.report:
        _show(json.loads(asked.report.read_text()), asked.plot)
    else:
        _show(_measure(asked), asked.plot)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--systems", default="", help="names, with commas between them; all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=5_000, help="jobs per part; some systems take a share of that")
    parser.add_argument("--work", type=float, default=0.0, help="seconds that each job takes")
    parser.add_argument("--parts", default=PARTS)
    parser.add_argument("--patience", type=float, default=30.0, help="seconds to wait for a quiet machine")
    parser.add_argument("--json", type=Path, help="write everything that was measured to this file")
    parser.add_argument("--plot", type=Path, help="draw it into this SVG file")
    parser.add_argument("--report", type=Path, help="show a file of measurements instead of taking any")
    parser.add_argument("--list", action="store_true", help="name the systems")
    return parser.parse_args()


def _measure(asked: argparse.Namespace) -> dict[str, Any]:
    known = every_system()
    names = [name for name in asked.systems.split(",") if name] or list(known)
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as (postgres, redis):
        both = Servers(postgres, redis)
        measured: dict[str, Any] = {
            "at": time.strftime("%F"),
            "python": sys.version.split()[0],
            "versions": {found.metadata["Name"]: found.version for found in distributions()},
            "postgresql": both.settings(),
            "turns": [],
        }
        for number in range(asked.rounds):
            shift = number * len(names) // asked.rounds  # nobody is always the first
            for name in names[shift:] + names[:shift]:
                turn = Turn(
                    both,
                    name,
                    known[name],
                    runs=asked.runs,
                    work=asked.work,
                    patience=asked.patience,
                    folder=Path(folder),
                )
                try:
                    found = turn.all(asked.parts.split(","))
                except Exception as error:  # the others take their turns all the same
                    found = {"system": name, "error": str(error)}
                measured["turns"].append({**found, "round": number})
                print(f"round {number + 1}: {_line(found)}", flush=True)
                if asked.json:
                    asked.json.write_text(json.dumps(measured, indent=1))
    return measured


def _line(found: dict[str, Any]) -> str:
    if "error" in found:
        return f"{found['system']}: {found['error']}"
    rates = [f"{part} {found[part]['rate']:.0f}/s" for part in ("submit", "drain", "bulk") if part in found]
    waits = [f"p50 {found['latency']['p50']:.1f} ms"] if "latency" in found else []
    return f"{found['system']}: {', '.join(rates + waits)}"


def _show(measured: dict[str, Any], path: Path | None) -> None:
    print(f"\n{tables(measured)}")
    if path is not None:
        plot(measured, path)


if __name__ == "__main__":
    main()
