"""Many clients at once, and clients while the broker is away."""

from __future__ import annotations

import asyncio
import threading
import time

from celery_guard.contrib.fastapi import places
from tests.infra.polling import eventually


def test_five_hundred_posts_with_one_key_are_one_run(any_site, monkeypatch):
    monkeypatch.setattr(places, "_PATIENCE", 250.0)  # the machine may have other things to do

    async def work(client):
        post = {"json": {"number": 7}, "headers": {"Idempotency-Key": "k"}}
        return await asyncio.gather(*(client.post("/orders", **post) for _ in range(500)))

    answers = any_site.serve(work)

    assert {answer.status_code for answer in answers} == {202}
    assert {answer.json()["id"] for answer in answers} == {any_site.shop.one().id}
    assert sum(answer.json()["created"] for answer in answers) == 1


def test_a_request_that_gets_no_turn_is_told_to_come_back_and_the_others_go_on(site, monkeypatch):
    inner, release = site.shop.guard.runs.find, threading.Event()

    def slow(run_id):
        assert release.wait(60)
        return inner(run_id)

    monkeypatch.setattr(site.shop.guard.runs, "find", slow)
    monkeypatch.setattr(places, "_PATIENCE", 2.0)
    path = f"/runs/{site.ship.apply((7,), meta={'tenant': 'acme'}).id}"

    async def work(client):
        pending = [asyncio.ensure_future(client.get(path)) for _ in range(12)]
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        release.set()
        return await asyncio.gather(*pending)

    answers = site.serve(work)

    refused = [answer for answer in answers if answer.status_code == 503]
    assert {answer.status_code for answer in answers} == {200, 503}
    assert all(answer.json()["code"] == "store_unavailable" for answer in refused)
    assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)


def test_posts_are_accepted_while_the_broker_is_down_and_run_once_it_is_back(open_site, own_redis, store_url):
    timeout = 30.0  # Celery's default is 4; the machine may have other things to do
    site = open_site(url=store_url, broker=own_redis.url, broker_connection_timeout=timeout)

    async def one(client, number):
        began = time.monotonic()
        answer = await client.post("/orders", json={"number": number})
        return answer, time.monotonic() - began

    _, healthy = site.serve(lambda client: one(client, 0))
    own_redis.kill()
    answers = site.serve(lambda client: asyncio.gather(*(one(client, number) for number in range(1, 21))))

    assert [answer.status_code for answer, _ in answers] == [202] * 20
    assert all(took <= healthy + timeout for _, took in answers)
    runs = {answer.json()["id"] for answer, _ in answers}
    assert len(runs) == 20
    own_redis.start()
    published = set()

    def all_published():
        site.shop.clock.advance(5)
        site.shop.dispatch()
        published.update(message.headers["id"] for message in site.shop.messages())
        return runs <= published

    eventually(all_published, within=60)


def test_a_broker_that_says_nothing_keeps_no_client_waiting(open_site, silent_port, store_url):
    options = {"broker_transport_options": {"socket_timeout": 5}}
    site = open_site(url=store_url, broker=f"redis://127.0.0.1:{silent_port}/0", **options)

    async def work(client):
        return await asyncio.gather(*(client.post("/orders", json={"number": n}) for n in range(60)))

    answers = site.serve(work)

    assert [answer.status_code for answer in answers] == [202] * 60
    assert site.shop.sql("SELECT count(*) FROM task_run WHERE publishes = 0") == [(60,)]
