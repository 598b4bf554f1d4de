"""``GET /runs/{id}``, its picture, and what may be done to a run."""

from __future__ import annotations

import asyncio
import math
from datetime import datetime, timezone
from decimal import Decimal

import pytest
from fastapi import FastAPI, HTTPException

from celery_guard import InvalidOption
from celery_guard.contrib.fastapi import ANYBODY, guard_router
from tests.infra.processes import free_port
from tests.web.site import Site

ACME = {"meta": {"tenant": "acme"}}


def test_a_run_that_waits_for_a_worker_is_told(any_site):
    run = any_site.ship.apply_async((7,), meta={"tenant": "acme", "request_id": "r-1"})

    answer = any_site.get(f"/runs/{run.id}")

    told = answer.json()
    assert answer.status_code == 200
    assert (told["id"], told["task"], told["status"], told["terminal_reason"]) == (run.id, "shop.ship", "queued", None)
    assert (told["attempt"], told["max_attempts"], told["next_retry_at"], told["error"]) == (0, 5, None, None)
    assert told["meta"] == {"tenant": "acme", "request_id": "r-1"}
    assert datetime.fromisoformat(told["deadline_at"]) == run.run.deadline_at
    assert answer.headers["retry-after"] == "1"


def test_a_run_that_succeeded_gives_its_result(any_site):
    run = any_site.ship.apply((7,), **ACME)

    answer = any_site.get(f"/runs/{run.id}")

    told = answer.json()
    assert (told["status"], told["terminal_reason"], told["attempt"], told["result"]) == (
        "succeeded",
        "succeeded",
        1,
        7,
    )
    assert "retry-after" not in answer.headers


@pytest.mark.parametrize(
    ("task", "state", "reason", "error"),
    [
        ("busy", "dead", "failed_due_max_attempts", ("RetryableError", "retryable", "busy with 7")),
        ("refuse", "failed", "failed_non_retryable", ("NonRetryableError", "non_retryable", "7 is no order")),
    ],
)
def test_an_ending_tells_its_error(any_site, task, state, reason, error):
    run = getattr(any_site, task).apply((7,), **ACME)

    told = any_site.get(f"/runs/{run.id}").json()

    assert (told["status"], told["terminal_reason"], told["result"]) == (state, reason, None)
    assert (told["error"]["type"], told["error"]["category"], told["error"]["message"]) == error


def test_a_run_that_died_in_the_queue_tells_why(any_site):
    run = any_site.ship.apply_async((7,), deadline=1, **ACME)
    any_site.shop.clock.advance(2)
    any_site.shop.work()

    told = any_site.get(f"/runs/{run.id}").json()

    assert (told["status"], told["terminal_reason"]) == ("dead", "failed_due_deadline")
    assert told["error"] == {
        "type": "DeadlineExceeded",
        "category": None,
        "message": "the deadline passed while the run waited",
    }


def test_a_run_that_waits_for_its_next_attempt_says_when_to_ask_again(any_site):
    run = any_site.busy.apply_async((7,), **ACME)
    any_site.shop.deliver(any_site.shop.message())

    answer = any_site.get(f"/runs/{run.id}")

    told = answer.json()
    assert (told["status"], told["attempt"], told["error"]["message"]) == ("retrying", 1, "busy with 7")
    assert datetime.fromisoformat(told["next_retry_at"]) > datetime.now(timezone.utc)
    assert 300 < int(answer.headers["retry-after"]) <= 720


def test_nobody_is_asked_to_come_back_after_the_deadline(any_site):
    run = any_site.ship.apply_async((7,), countdown=3_000, deadline=3_600, **ACME)

    assert int(any_site.get(f"/runs/{run.id}").headers["retry-after"]) <= 3_600


@pytest.mark.parametrize(
    "run_id", ["nobody", "%00", "%20", "x" * 300, "%ED%A0%80", "01a22e67-49fa-76b6-969e-0e4a40b5c460"]
)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("GET", "/timeline"), ("POST", "/cancel"), ("POST", "/redrive")]
)
def test_what_is_no_run_is_not_found_and_never_pending(site, run_id, method, path):
    answer = site.request(method, f"/runs/{run_id}{path}")

    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.json()["status"], answer.json()["code"]) == (404, "run_not_found")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("GET", "/timeline"), ("POST", "/cancel"), ("POST", "/redrive")]
)
def test_a_run_of_somebody_else_is_not_found_and_not_touched(any_site, method, path):
    run = any_site.ship.apply_async((7,), **ACME)

    other = any_site.request(method, f"/runs/{run.id}{path}", headers={"x-tenant": "other"})

    assert other.content == any_site.request(method, f"/runs/nobody{path}").content
    assert [one.state for one in any_site.shop.rows()] == ["queued"]


def test_a_pruned_run_is_not_found(any_site):
    run = any_site.ship.apply((7,), **ACME)
    any_site.shop.sql("DELETE FROM task_run")

    assert any_site.get(f"/runs/{run.id}").status_code == 404


@pytest.mark.parametrize(("method", "path"), [("GET", "/timeline"), ("POST", "/cancel"), ("POST", "/redrive")])
def test_a_run_that_is_pruned_under_the_client_is_not_found(open_site, method, path):
    def prune(request, run):
        site.shop.sql("DELETE FROM task_run")
        return True

    site = open_site({"authorize": prune})

    assert site.request(method, f"/runs/{site.ship.apply((7,)).id}{path}").status_code == 404


def test_a_run_of_another_namespace_is_not_found(open_site, sqlite_url):
    ours, other = open_site(url=sqlite_url), open_site(url=sqlite_url, guard_namespace="other")
    run = other.ship.apply((7,), **ACME)

    assert ours.get(f"/runs/{run.id}").status_code == 404


def test_who_may_see_a_run_can_be_asked_asynchronously(open_site):
    async def later(request, run):
        await asyncio.sleep(0)
        return request.headers.get("x-tenant") == run.meta["tenant"]

    site = open_site({"authorize": later})
    run = site.ship.apply((7,), **ACME)

    assert site.get(f"/runs/{run.id}", x_tenant="acme").status_code == 200
    assert site.get(f"/runs/{run.id}", x_tenant="other").status_code == 404


def test_an_authorization_may_refuse_in_its_own_words(open_site):
    def refuse(request, run):
        raise HTTPException(401, "who are you?", {"WWW-Authenticate": "Basic"})

    site = open_site({"authorize": refuse})
    answer = site.get(f"/runs/{site.ship.apply((7,)).id}")

    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Basic")


def test_an_authorization_that_says_nothing_says_no(open_site):
    site = open_site({"authorize": lambda request, run: None})

    assert site.get(f"/runs/{site.ship.apply((7,)).id}").status_code == 404


def test_anybody_has_to_be_said(shop):
    with pytest.raises(TypeError, match="authorize"):
        guard_router(shop.app)
    with pytest.raises(
        InvalidOption, match="authorize must be a callable of the request and the run, or ANYBODY, not None"
    ):
        guard_router(shop.app, authorize=None)


def test_anybody_who_knows_the_id_may_see_it_when_that_was_said(open_site):
    site = open_site({"authorize": ANYBODY})

    assert site.get(f"/runs/{site.ship.apply((7,)).id}", x_tenant="other").status_code == 200


def test_a_result_that_was_too_large_says_so_and_where_it_is(open_site):
    site = open_site({"result_url": lambda run: f"https://files/{run.id}"}, guard_result_max_bytes=10)
    large, small = site.ship.apply(("x" * 100,), **ACME), site.ship.apply((7,), **ACME)

    told = site.get(f"/runs/{large.id}").json()

    assert told["result"] is None
    assert "guard_result_max_bytes" in told["result_note"]
    assert told["result_url"] == f"https://files/{large.id}"
    assert site.get(f"/runs/{small.id}").json()["result_note"] is None


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (math.nan, None),
        ({"a": [math.inf]}, {"a": [None]}),
        ("\ud800", "\ud800"),
        (b"\xff", "_w=="),
        (Decimal("1.10"), "1.10"),
        (datetime(2026, 1, 1, tzinfo=timezone.utc), "2026-01-01T00:00:00Z"),
    ],
    ids=repr,
)
def test_whatever_the_serializer_takes_can_be_shown(site, value, shown):
    @site.shop.app.task
    def give():
        return value

    answer = site.get(f"/runs/{give.apply((), **ACME).id}")

    assert (answer.status_code, answer.json()["result"], answer.json()["result_note"]) == (200, shown, None)


def test_a_result_that_is_not_json_is_not_opened(open_site):
    site = open_site(result_serializer="pickle", accept_content=["json", "pickle"])

    told = site.get(f"/runs/{site.ship.apply((7,), **ACME).id}").json()

    assert (told["result"], told["status"]) == (None, "succeeded")
    assert "pickle" in told["result_note"]


def test_attempts_without_a_number_are_told_as_none(site):
    run = site.ship.apply_async((7,), max_attempts=2**31 - 1, **ACME)

    assert site.get(f"/runs/{run.id}").json()["max_attempts"] is None


def test_what_a_client_has_already_is_not_sent_again(any_site):
    path = f"/runs/{any_site.ship.apply_async((7,), **ACME).id}"
    tag = any_site.get(path).headers["etag"]

    again = any_site.get(path, if_none_match=f'"other", {tag}')

    assert (again.status_code, again.content, again.headers["retry-after"]) == (304, b"", "1")
    any_site.shop.work()
    assert any_site.get(path, if_none_match=tag).status_code == 200


def test_the_picture_of_a_run_is_a_page_that_may_not_do_anything(any_site):
    run = any_site.busy.apply((7,), **ACME)

    page = any_site.get(f"/runs/{run.id}/timeline")

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert page.text.count('class="attempt retryable"') == 2
    assert "refresh" not in page.text


def test_the_picture_of_a_live_run_loads_itself_again(any_site):
    run = any_site.ship.apply_async((7,), **ACME)

    assert 'http-equiv="refresh"' in any_site.get(f"/runs/{run.id}/timeline").text


def test_a_run_is_cancelled_and_stays_so(any_site):
    path = f"/runs/{any_site.ship.apply_async((7,), **ACME).id}/cancel"

    answers = [any_site.post(path) for _ in range(2)]

    assert [(one.status_code, one.json()["status"]) for one in answers] == [(200, "cancelled")] * 2


def test_what_has_ended_can_not_be_cancelled(any_site):
    run = any_site.ship.apply((7,), **ACME)

    answer = any_site.post(f"/runs/{run.id}/cancel")

    assert (answer.status_code, answer.json()["code"]) == (409, "run_has_ended")
    assert "succeeded" in answer.json()["detail"]


def test_an_ended_run_is_driven_again_as_a_new_one(any_site):
    old = any_site.refuse.apply((7,), **ACME)

    answer = any_site.post(f"/runs/{old.id}/redrive")

    assert answer.status_code == 202
    assert answer.json()["created"]
    again = any_site.get(answer.headers["location"]).json()
    assert (again["redrive_of"], again["status"], again["id"]) == (old.id, "queued", answer.json()["id"])


def test_a_live_run_can_not_be_driven_again(any_site):
    run = any_site.ship.apply_async((7,), **ACME)

    answer = any_site.post(f"/runs/{run.id}/redrive")

    assert (answer.status_code, answer.json()["code"]) == (409, "run_is_live")
    assert len(any_site.shop.rows()) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/runs/1"),
        ("GET", "/runs/1/timeline"),
        ("POST", "/runs/1/cancel"),
        ("POST", "/runs/1/redrive"),
        ("POST", "/orders"),
    ],
)
def test_a_database_that_is_away_is_a_problem_that_passes(open_site, method, path):
    site = open_site(url=f"postgresql+psycopg2://postgres@127.0.0.1:{free_port()}/shop")

    answer = site.request(method, path, json={"number": 1})

    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["code"] == "store_unavailable"


def test_the_api_may_lie_below_a_prefix_and_behind_a_proxy(shop):
    site = Site(shop)
    outer = FastAPI()
    outer.mount("/inner", site.api)
    site.api, site.root_path = outer, "/shop"

    answer = site.post("/shop/inner/orders", 7)

    place = answer.headers["location"]
    assert place.startswith("/shop/inner/runs/")
    assert site.get(place).json()["id"] == answer.json()["id"]
