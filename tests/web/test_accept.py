"""``accept``: a request becomes a run, once for each key of a caller."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Annotated

import pytest
from fastapi import Depends, FastAPI, Request
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from celery_guard import InvalidOption, UnserializableArgument
from celery_guard.contrib.fastapi import ANYBODY, Problem, accept
from tests.factories import NOON


def test_a_request_is_accepted_and_can_be_asked_for(any_site):
    answer = any_site.post("/orders", 7)

    (run,) = any_site.shop.rows()
    assert answer.status_code == 202
    assert answer.headers["location"] == answer.json()["status_url"] == f"/runs/{run.id}"
    assert answer.json() == {"id": run.id, "status": "queued", "created": True, "status_url": f"/runs/{run.id}"}
    assert any_site.get(answer.headers["location"]).json()["status"] == "queued"


def test_the_request_id_goes_along(any_site):
    any_site.post("/orders", 7, x_request_id="r-1")

    assert any_site.shop.one().meta == {"tenant": "acme", "request_id": "r-1"}


def test_a_request_id_that_is_absurd_is_cut(site):
    assert site.post("/orders", 7, x_request_id="r\t1" + 9_000 * "x").status_code == 202
    assert site.shop.one().meta["request_id"] == "r1" + 126 * "x"


def test_requests_without_a_key_are_different_ones(any_site):
    answers = [any_site.post("/orders", 7) for _ in range(2)]

    assert [one.json()["created"] for one in answers] == [True, True]
    assert len(any_site.shop.rows()) == 2


def test_the_same_key_and_request_find_the_same_run_in_every_state(any_site):
    first = any_site.post("/orders", 7, idempotency_key="k")
    queued = any_site.post("/orders", 7, idempotency_key="k")
    (run,) = any_site.shop.rows()
    any_site.ship.apply_async((8,))  # another, so that the broker has been used
    any_site.shop.guard.runs.claim(run.id, "token", worker_id=None, fingerprint=None)
    running = any_site.post("/orders", 7, idempotency_key="k")

    assert [one.json()["id"] for one in (first, queued, running)] == [run.id] * 3
    assert [one.json()["created"] for one in (first, queued, running)] == [True, False, False]
    assert [one.json()["status"] for one in (first, queued, running)] == ["queued", "queued", "running"]
    assert running.headers["location"] == first.headers["location"]


def test_a_key_of_another_request_is_refused_and_tells_nothing_of_that(any_site):
    first = any_site.post("/orders", 7, idempotency_key="k")

    other = any_site.post("/orders", 8, idempotency_key="k")

    assert (other.status_code, other.headers["content-type"]) == (422, "application/problem+json")
    assert other.json()["code"] == "idempotency_key_reused"
    assert first.json()["id"] not in other.text
    assert len(any_site.shop.rows()) == 1


def test_keys_of_different_callers_never_meet(any_site):
    answers = [any_site.post("/orders", 7, idempotency_key="k", x_tenant=tenant) for tenant in ("acme", "other")]

    assert [one.json()["created"] for one in answers] == [True, True]
    assert answers[0].json()["id"] != answers[1].json()["id"]


def test_a_task_that_makes_its_own_key_keeps_it_where_the_client_sends_none(site):
    @site.shop.app.task(idempotency_key="give-{number}")
    def give(number):
        return number

    @site.api.post("/gifts/{number}")
    async def gift(number: int, request: Request):
        return await accept(give, (number,), request=request, caller="acme")

    run = give.delay(7)

    assert site.post("/gifts/7").json()["id"] == run.id
    assert site.post("/gifts/7", idempotency_key="k").json()["created"]


def test_a_key_in_quotes_is_the_same_key(site):
    answers = [site.post("/orders", 7, idempotency_key=key) for key in ("k-1", '"k-1"', ' "k-1" ')]

    assert len({one.json()["id"] for one in answers}) == 1


@pytest.mark.parametrize("key", ["", "  ", '""', '" "', "x" * 256, "k\u00e9", "a\tb"], ids=repr)
@pytest.mark.parametrize("path", ["/orders", "/charges"])
def test_a_key_that_can_not_be_one_is_refused(site, path, key):
    answer = site.request("POST", path, json={"number": 1}, headers=[("Idempotency-Key", key.encode("latin-1"))])

    assert (answer.status_code, answer.json()["code"]) == (400, "idempotency_key_malformed")
    assert site.shop.rows() == []


def test_two_keys_are_none(site):
    answer = site.request("POST", "/orders", json={"number": 1}, headers=[("Idempotency-Key", "a")] * 2)

    assert (answer.status_code, answer.json()["code"]) == (400, "idempotency_key_malformed")


def test_a_request_that_needs_a_key_is_refused_without_one(site):
    answer = site.post("/charges", 7)

    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.json()["code"] == "idempotency_key_missing"
    assert site.post("/charges", 7, idempotency_key="k").status_code == 202


def test_an_application_without_our_handler_still_answers_with_a_problem(site):
    del site.api.exception_handlers[Problem]

    answer = site.post("/charges", 7)

    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert set(answer.json()) == {"detail"}


def test_a_deadline_that_has_passed_is_refused(site):
    @site.api.post("/late")
    async def late(request: Request):
        return await accept(site.ship, (1,), request=request, caller="acme", deadline=NOON - timedelta(days=365))

    answer = site.post("/late")

    assert (answer.status_code, answer.json()["code"]) == (422, "deadline_passed")


def test_an_id_that_is_taken_is_refused(site):
    @site.api.post("/named/{number}")
    async def named(number: int, request: Request):
        return await accept(
            site.ship, (number,), request=request, caller="acme", task_id="a/b", meta={"tenant": "acme"}
        )

    first = site.post("/named/1")

    assert first.headers["location"] == "/runs/a%2Fb"
    assert site.post("/named/2").status_code == 409


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"caller": ""}, InvalidOption, "caller must not be blank; .* ANYBODY"),
        ({"caller": None}, InvalidOption, "caller must be text"),
        ({"task": len}, InvalidOption, "accept takes a guarded task"),
        ({"args": (object(),)}, UnserializableArgument, "number"),
        ({"queue": "x" * 300}, InvalidOption, "queue"),
        ({"idempotency_key": "k"}, InvalidOption, "accept takes no idempotency_key"),
    ],
    ids=["blank caller", "no caller", "no task", "object", "queue", "key"],
)
def test_a_mistake_of_the_application_is_not_blamed_on_the_client(site, given, error, words):
    call = {"task": site.ship, "args": (1,), "caller": "acme", **given}

    @site.api.post("/wrong")
    async def wrong(request: Request):
        return await accept(call.pop("task"), call.pop("args"), request=request, **call)

    with pytest.raises(error, match=words):
        site.post("/wrong")
    assert site.shop.rows() == []


def test_an_application_without_a_status_api_is_told_so_before_anything_is_written(site):
    site.api = FastAPI()

    @site.api.post("/orders")
    async def place(request: Request):
        return await accept(site.ship, (1,), request=request, caller=ANYBODY)

    with pytest.raises(InvalidOption, match="guard_router"):
        site.post("/orders")
    assert site.shop.rows() == []


def test_tasks_that_run_eagerly_have_ended_when_they_are_accepted(open_site):
    site = open_site(task_always_eager=True)

    answer = site.post("/orders", 7)

    assert (answer.status_code, answer.json()["status"]) == (202, "succeeded")
    assert "retry-after" not in answer.headers
    assert site.get(answer.headers["location"]).json()["result"] == 7


def test_the_loop_goes_on_while_the_store_takes_its_time(any_site, monkeypatch):
    inner, release = any_site.shop.guard.runs.submit, threading.Event()

    def slow(run):
        assert release.wait(60)
        return inner(run)

    monkeypatch.setattr(any_site.shop.guard.runs, "submit", slow)

    async def work(client):
        pending = asyncio.ensure_future(client.post("/orders", json={"number": 7}))
        while not pending.done():
            await asyncio.sleep(0.01)
            release.set()  # only a loop that is not blocked gets here
        return await pending

    assert any_site.serve(work).status_code == 202


# In a transaction of the request


async def open_session(request: Request):
    """Give a request a session of its own; nobody commits it but the endpoint."""
    engine = create_async_engine(request.app.state.url)
    try:
        async with AsyncSession(engine) as session:
            yield session
    finally:
        await engine.dispose()


Session = Annotated[AsyncSession, Depends(open_session)]


@pytest.fixture
def async_site(open_site, postgres_url):
    """A site with notes in a table of its own, which commit together with their runs."""
    site = open_site(url=postgres_url)
    site.api.state.url = make_url(postgres_url).set(drivername="postgresql+asyncpg")

    @site.api.post("/notes/{number}")
    async def note(number: int, request: Request, session: Session, commits: bool = True):
        await session.execute(text("CREATE TABLE IF NOT EXISTS notes (number integer)"))
        await session.execute(text(f"INSERT INTO notes VALUES ({number})"))
        answer = await accept(
            site.ship, (number,), request=request, caller="acme", session=session, meta={"tenant": "acme"}
        )
        if commits:
            await session.commit()
        return answer

    yield site
    with site.shop.guard.database.connection() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS notes")


def test_a_run_commits_together_with_the_request(async_site):
    answer = async_site.post("/notes/7", idempotency_key="k")

    assert answer.status_code == 202
    assert async_site.get(answer.headers["location"]).json()["status"] == "queued"
    assert async_site.shop.sql("SELECT number FROM notes") == [(7,)]


def test_a_request_that_does_not_commit_leaves_no_run(async_site):
    async_site.post("/notes/7")
    answer = async_site.post("/notes/8?commits=false")

    assert answer.status_code == 202
    assert async_site.get(answer.headers["location"]).status_code == 404
    assert async_site.shop.sql("SELECT number FROM notes") == [(7,)]


def test_a_refusal_takes_the_rest_of_the_request_with_it(async_site):
    async_site.post("/notes/7", idempotency_key="k")

    answer = async_site.post("/notes/8", idempotency_key="k")

    assert answer.status_code == 422
    assert async_site.shop.sql("SELECT number FROM notes") == [(7,)]


def test_a_key_that_is_in_use_finds_its_run_in_a_transaction_too(async_site):
    first, again = (async_site.post("/notes/7", idempotency_key="k") for _ in range(2))

    assert (again.json()["id"], again.json()["created"]) == (first.json()["id"], False)
