"""What is told of a run by the processes of a real worker, one of which is killed."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider

from tests.infra.polling import eventually

STUMBLED = ["running", "retrying", "running", "retrying", "running", "succeeded"]


@pytest.fixture
def watched(redis_url, postgres_url, scene):
    return scene("watched", broker_url=redis_url, result_backend=redis_url, guard_database_url=postgres_url)


def test_each_move_is_told_once_by_who_made_it_and_all_is_one_trace(watched):
    worker = watched.worker()
    with TracerProvider().get_tracer("tests").start_as_current_span("request") as request:
        run = watched.tasks.stumble.delay()
    watched.ended(run.id)
    eventually(lambda: len(watched.traces("span", run.id)) >= 4, within=60)
    worker.stop()

    logged = watched.traces("log", run.id)
    assert [record["state"] for record in logged] == STUMBLED
    assert [record["made_by"] for record in logged] == ["child", "worker", *["child"] * 4]
    assert logged[1]["pid"] not in {record["pid"] for record in logged if record["made_by"] == "child"}
    heard = watched.traces("signal", run.id)
    assert [told["state"] for told in heard] == STUMBLED
    assert {told["sender"] for told in heard} == {watched.tasks.stumble.name}
    spans = watched.traces("span", run.id)
    assert {span["trace"] for span in spans} == {request.context.trace_id}
    runs = [span for span in spans if span["name"].startswith("run/")]
    assert len(runs) == 2  # the span of the attempt that was killed ended with its process
