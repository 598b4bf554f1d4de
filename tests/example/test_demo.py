"""A new user's path: run the demo, open Flower, look at a dead run, understand why it died, run it again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.infra.polling import eventually
from tests.infra.processes import PROCESSES, ROOT, Process
from tests.web.conftest import browser as browser

STAYS_UP = re.compile(r"Flower: (http://\S+)/tasks; files in\s+(\S+)\. Ctrl-C ends it\.")


@pytest.fixture
def demo(request, tmp_path):
    """The demo as ``make demo KEEP=1`` runs it, when all its runs have ended: its process, Flower's URL, its folder."""
    command = [sys.executable, "-m", "example_project.demo"]
    env = {"KEEP": "1", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp_path), "COLUMNS": "200"}
    process = Process(command, name="demo", folder=tmp_path, env=env)
    request.node.stash.setdefault(PROCESSES, []).append(process)
    process.start()
    try:
        process.wait_until(lambda: STAYS_UP.search(process.log()) is not None, within=240)
        yield (process, *STAYS_UP.search(process.log()).groups())
    finally:
        process.stop()


def guard(home, *words):
    """Run ``celery guard`` on the demo's runs; return what it says."""
    command = [sys.executable, "-m", "celery", "-A", "example_project.app", "guard", *words]
    env = {**os.environ, "SHOP_HOME": home}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(600)
def test_a_new_user_finds_out_why_a_run_died_and_runs_it_again(demo, browser):
    process, flower, home = demo
    assert "Every run ended as it had to." in process.log()
    died = json.loads(guard(home, "runs", "--reason", "failed_due_max_attempts", "--json"))
    (run_id,) = [run["id"] for run in died["runs"] if run["type"].endswith("export_order")]

    page = browser.dump(f"{flower}/task/{run_id}")
    story = guard(home, "show", run_id)
    again = json.loads(guard(home, "redrive", run_id, "--json"))

    assert "failed_due_max_attempts: all attempts were used" in page
    assert "failed_due_max_attempts" in story
    assert "503" in story
    new_id = again["runs"][0]["id"]
    ended = eventually(lambda: found if (found := shown(home, new_id))["finished_at"] else False, within=60)
    assert ended["redrive_of"] == run_id
    process.signal(signal.SIGINT)
    assert process.wait(60) == 0


def shown(home, run_id):
    """Return a run as JSON."""
    return json.loads(guard(home, "show", run_id, "--json"))
