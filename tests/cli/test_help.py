"""``celery --help`` must not wait for us."""

from __future__ import annotations

import subprocess
import sys

HELP = """
import sys
from celery.bin.celery import celery
before = set(sys.modules)
sys.argv = ["celery", "--help"]
try:
    celery()
finally:
    print("LOADED", *sorted(name for name in sys.modules if name.startswith("celery_guard")))
    print("THEN", len(set(sys.modules) - before))
"""


def test_help_loads_two_small_modules_of_ours_and_nothing_for_them():
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, timeout=120)

    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("LOADED", "THEN")))
    assert "guard" in done.stdout, done.stderr
    assert lines["LOADED"].split() == ["celery_guard", "celery_guard.cli"]
    assert int(lines["THEN"]) < 5
