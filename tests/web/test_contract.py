"""The API does what its own OpenAPI document says, whatever is sent to it."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.web.site import Site

#: The threads that publish beside the requests take a lease at random while the next request is made up.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")

PATIENT = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def described(site: Site) -> Any:
    """The document of a site with a run in every state worth asking for."""
    site.known = [
        site.ship.apply((7,), meta={"tenant": "acme"}).id,
        site.busy.apply((7,), meta={"tenant": "acme"}).id,
        site.ship.apply_async((7,), meta={"tenant": "acme"}).id,
    ]
    return schemathesis.openapi.from_asgi("/openapi.json", site.api)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/orders"),
        ("POST", "/charges"),
        ("GET", "/runs/{run_id}"),
        ("GET", "/runs/{run_id}/timeline"),
        ("POST", "/runs/{run_id}/cancel"),
        ("POST", "/runs/{run_id}/redrive"),
    ],
)
def test_answers_are_as_described(site, described, method, path):
    operation, answered = described[path][method], set()

    @given(case=operation.as_strategy())
    @PATIENT
    def conforms(case):
        response = case.call()
        # A key that was used for another request is valid, and refused all the same.
        reused = response.status_code == 422 and response.json().get("code") == "idempotency_key_reused"
        case.validate_response(response, excluded_checks=[positive_data_acceptance] if reused else None)
        answered.add(response.status_code)

    conforms()

    assert answered
    assert not {status for status in answered if status >= 500}


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/runs/{run_id}", {200}),
        ("GET", "/runs/{run_id}/timeline", {200}),
        ("POST", "/runs/{run_id}/redrive", {202, 409}),
        ("POST", "/runs/{run_id}/cancel", {200, 409}),
    ],
)
def test_answers_about_runs_that_exist_are_as_described(site, described, method, path, expected):
    operation = described[path][method]

    answers = [operation.Case(path_parameters={"run_id": run_id}).call_and_validate() for run_id in site.known]

    assert {answer.status_code for answer in answers} == expected


def test_every_operation_is_tried(described):
    tried = {("POST", "/orders"), ("POST", "/charges"), ("GET", "/runs/{run_id}"), ("GET", "/runs/{run_id}/timeline")}
    tried |= {("POST", "/runs/{run_id}/cancel"), ("POST", "/runs/{run_id}/redrive")}

    assert {(one.ok().method.upper(), one.ok().path) for one in described.get_all_operations()} == tried
