"""How metrics are served: by a command, and inside a web app."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import urllib.request
from wsgiref.util import setup_testing_defaults

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from celery_guard.cli import guard
from celery_guard.contrib.prometheus import metrics_asgi, metrics_wsgi
from celery_guard.observe.metrics import METRICS

SHOP = """
from celery import Celery
from celery_guard import GuardedTask
app = Celery("shop", broker="memory://", task_cls=GuardedTask)
app.conf.guard_database_url = {url!r}
"""


def command(shop, *words):
    return CliRunner().invoke(guard, words, obj=CLIContext(app=shop.app, no_color=False, workdir=None))


def names(text):
    return {family.name for family in text_string_to_metric_families(text)}


def submitted(shop):
    @shop.app.task(name="shop.send")
    def send():
        pass

    send.delay()
    return shop


def test_the_command_prints_what_a_scrape_gets(shop):
    printed = command(submitted(shop), "metrics", "--once")

    assert printed.exit_code == 0
    assert names(printed.stdout) == set(METRICS)
    assert 'celery_guard_runs{state="queued",type="shop.send"} 1.0' in printed.stdout


def test_the_command_prints_json(shop):
    printed = json.loads(command(submitted(shop), "metrics", "--json").stdout)

    expected = {"name": "celery_guard_runs", "labels": {"type": "shop.send", "state": "queued"}, "value": 1}
    assert expected in printed


def test_the_command_serves_until_it_is_interrupted(tmp_path, sqlite_url):
    (tmp_path / "shop.py").write_text(SHOP.format(url=sqlite_url))
    words = [sys.executable, "-u", "-m", "celery", "-A", "shop", "guard", "metrics", "--port", "0"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            told = process.stdout.readline()
            with urllib.request.urlopen(re.search(r"http://\S+", told).group(), timeout=60) as answer:
                text = answer.read().decode()
        finally:
            process.terminate()

    assert "celery_guard_store_up 1.0" in text
    assert "metrics of shop" in told


def test_a_port_in_use_is_told_without_a_traceback(shop, taken_port):
    refused = command(shop, "metrics", "--port", str(taken_port))

    assert refused.exit_code == 1
    assert f"can't listen on 127.0.0.1:{taken_port}" in refused.output


def test_a_database_that_is_away_is_told_before_anything_is_served(open_shop):
    shop = open_shop(url="postgresql+psycopg2://nobody@127.0.0.1:1/nowhere")

    refused = command(shop, "metrics", "--port", "0")

    assert refused.exit_code == 1
    assert "can't be reached" in refused.output


def test_an_asgi_app_answers_with_the_metrics(shop):
    served = metrics_asgi(submitted(shop).app)
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(served({"type": "http", "headers": [(b"accept", b"text/plain")]}, None, send))

    start, body = sent
    assert start["status"] == 200
    assert dict(start["headers"])[b"content-type"].startswith(b"text/plain")
    assert names(body["body"].decode()) == set(METRICS)


def test_a_wsgi_app_answers_with_the_metrics(shop):
    served, environment, told = metrics_wsgi(submitted(shop).app), {}, []
    setup_testing_defaults(environment)

    body = b"".join(served(environment, lambda status, headers: told.append(status)))

    assert told == ["200 OK"]
    assert names(body.decode()) == set(METRICS)


@pytest.fixture
def taken_port():
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]
