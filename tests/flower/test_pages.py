"""Flower itself, in a real browser."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from html import unescape
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.acceptance.scenes import ids
from tests.infra.polling import eventually
from tests.infra.processes import PROCESSES, ROOT, Process, free_port

LONG = 60.0
COLUMNS = "uuid,state,result,exception,retries,expires"


@pytest.fixture
def flower(request, life, tmp_path):
    """Flower with our configuration; its URL."""
    (tmp_path / "flowerconfig.py").write_text("from celery_guard.contrib.flower import format_task\n")
    url = f"http://127.0.0.1:{(port := free_port())}"
    words = [f"--port={port}", "--address=127.0.0.1", f"--conf={tmp_path / 'flowerconfig.py'}"]
    command = [sys.executable, "-m", "celery", "-A", life.module, "flower", *words, f"--tasks_columns={COLUMNS}"]
    process = Process(command, name="flower", folder=tmp_path, env={"PYTHONPATH": str(ROOT)})
    request.node.stash.setdefault(PROCESSES, []).append(process)
    process.start()
    process.wait_until(lambda: answer(url) is not None, LONG)
    yield url
    process.destroy()


def answer(url):
    """Return what a page says, or None."""
    try:
        with urlopen(url, timeout=10) as response:
            return response.read().decode()
    except (OSError, URLError):
        return None


def text_of(html):
    """Return the text of HTML as a person reads it, in one line."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def rows_of(html):
    """Return the rows of a task's page."""
    pairs = re.findall(r"<dt>(.*?)</dt>\s*<dd[^>]*>(.*?)</dd>", html, re.DOTALL)
    return {text_of(name): text_of(value) for name, value in pairs}


def test_a_person_reads_in_flower_why_a_run_is_dead_or_waits(life, flower, browser):
    worker = life.worker()
    eventually(lambda: worker.hostname in (answer(f"{flower}/workers?json=1") or ""), LONG)
    dead = life.tasks.succeed_at.apply_async((99,), max_attempts=2)
    late = life.tasks.succeed.apply_async(queue="nobody-listens", deadline=timedelta(seconds=1))
    retrying = life.tasks.retry_in.delay(3_600)
    for run_id, word in zip(ids([dead, late, retrying]), ["Reason", "Reason", "RETRY"], strict=True):
        eventually(lambda run_id=run_id, word=word: word in (answer(f"{flower}/task/{run_id}") or ""), LONG)

    page, queued, waiting = (rows_of(browser.dump(f"{flower}/task/{run_id}")) for run_id in ids([dead, late, retrying]))
    table = browser.dump(f"{flower}/tasks")

    assert page["Status"] == "FAILURE"
    assert page["Attempt"] == "2"
    assert page["Deadline"] == f"{dead.run.deadline_at:%Y-%m-%d %H:%M:%S} UTC"
    assert page["Reason"] == "failed_due_max_attempts: all attempts were used"
    assert "attempt 2" in page["Exception"]
    assert (queued["Status"], queued["Attempt"]) == ("FAILURE", "0")
    assert queued["Reason"].startswith("failed_due_deadline: ")
    assert waiting["Reason"].startswith(f"next attempt at {retrying.run.next_retry_at:%Y-%m-%d %H:%M:%S} UTC: ")
    shown = {row[:36]: row for row in map(text_of, re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.DOTALL))}
    assert "FAILURE failed_due_max_attempts" in shown[dead.id]
    assert "FAILURE failed_due_deadline" in shown[late.id]
    assert "RETRY next attempt at" in shown[retrying.id]
