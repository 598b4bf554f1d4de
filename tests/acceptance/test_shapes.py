"""However a task is defined: one claim, one body, its own request."""

from __future__ import annotations

import pytest

from tests.acceptance.scenes import ids

SHAPES = (
    "by_default bound shared by_class with_its_own_call with_its_result_ignored calling_another_and_itself"
).split()


@pytest.fixture
def shapes(redis_url, postgres_url, scene):
    return scene("shapes", broker_url=redis_url, result_backend=redis_url, guard_database_url=postgres_url)


def test_every_shape_of_a_task_runs_once_as_itself(shapes):
    tasks = shapes.tasks
    shapes.worker()

    results = {name: getattr(tasks, name).delay("value") for name in SHAPES}
    results["with_pydantic"] = tasks.with_pydantic.delay(tasks.Order(value="value"))

    runs = shapes.ended(*ids(results.values()))
    assert [(run.type, run.state, run.attempt) for run in runs] == [
        (getattr(tasks, name).name, "succeeded", 1) for name in results
    ]
    assert len(shapes.rows("id")) == len(results)
    for name, result in results.items():
        bodies = 3 if name == "calling_another_and_itself" else 1
        assert [trace["run"] for trace in shapes.traces("begin")].count(result.id) == bodies, name
    assert {trace["of"] for trace in shapes.traces("seen")} == set(ids(results.values())) - {results["by_default"].id}
    assert [trace["run"] for trace in shapes.traces("seen") if trace.get("where") == "call"] == [
        results["with_its_own_call"].id
    ]
    ignored = results.pop("with_its_result_ignored")
    assert ignored.get(timeout=30) is None
    assert results.pop("with_pydantic").get(timeout=30) == {"value": "value"}
    assert {result.get(timeout=30) for result in results.values()} == {"value"}
