"""The shop of the example project, served by uvicorn."""

from __future__ import annotations

import sys

import httpx
import pytest

from tests.infra.processes import PROCESSES, ROOT, Process, free_port, listens


@pytest.fixture
def url(tmp_path, request):
    """The shop's web application as a process of its own; no worker runs."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "example_project.web:web", f"--port={port}"]
    process = Process(command, name="web", folder=tmp_path, env={"PYTHONPATH": str(ROOT), "SHOP_HOME": str(tmp_path)})
    request.node.stash[PROCESSES] = [process]
    process.start()
    process.wait_until(lambda: listens(port), within=60)
    yield f"http://127.0.0.1:{port}"
    process.stop()


def test_an_order_is_accepted_and_has_a_status_page(url):
    with httpx.Client(base_url=url, timeout=60) as client:
        order = {"json": {"number": 1002}, "headers": {"Idempotency-Key": "today"}}
        first, again = (client.post("/orders", **order) for _ in range(2))
        status = client.get(first.headers["location"])
        page = client.get(f"{first.headers['location']}/timeline")
        refused = client.post("/orders", json={"number": 0})

        assert (first.status_code, first.json()["created"]) == (202, True)
        assert (again.json()["id"], again.json()["created"]) == (first.json()["id"], False)
        assert (status.json()["status"], status.json()["task"]) == ("queued", "example_project.tasks.export_order")
        assert "example_project.tasks.export_order" in page.text
        assert refused.status_code == 422
        assert "<form>" in client.get("/").text
