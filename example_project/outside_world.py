"""The world outside the shop: a small HTTP server that answers, refuses, hangs or drips as it is told to."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Answer", "OutsideWorld", "Pace", "busy", "gone", "ok", "open_world", "slow_down"]

DRIP_INTERVAL = 0.2


class Pace(Enum):
    """How an answer arrives."""

    AT_ONCE = "at once"
    NEVER = "never"
    DRIPPING = "one byte now and then, without end"


@dataclass(frozen=True)
class Answer:
    """What one request gets."""

    status: HTTPStatus = HTTPStatus.OK
    content: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    pace: Pace = Pace.AT_ONCE


def ok(content: Any) -> Answer:
    """Return a 200 with JSON."""
    return Answer(content=content)


def busy() -> Answer:
    """Return a 503."""
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE)


def slow_down(*, seconds: int) -> Answer:
    """Return a 429 that says how long to wait."""
    return Answer(HTTPStatus.TOO_MANY_REQUESTS, headers={"Retry-After": str(seconds)})


def gone() -> Answer:
    """Return a 404."""
    return Answer(HTTPStatus.NOT_FOUND)


class OutsideWorld(ThreadingHTTPServer):
    """A server that gives each path's answers in order, the last one for ever, and counts the requests.

    Args:
        answers: by path; a path that is not named gets a 404.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, answers: Mapping[str, Sequence[Answer]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers
        self.visits: Counter[str] = Counter()
        self.closing = threading.Event()
        self._counting = threading.Lock()

    @property
    def url(self) -> str:
        """The address, without a slash at its end."""
        return f"http://127.0.0.1:{self.server_port}"

    def next_answer(self, path: str) -> Answer:
        """Count a request and return what it gets."""
        with self._counting:
            self.visits[path] += 1
            visit = self.visits[path]
        answers = self.answers.get(path, (gone(),))
        return answers[min(visit, len(answers)) - 1]


@contextmanager
def open_world(answers: Mapping[str, Sequence[Answer]]) -> Iterator[OutsideWorld]:
    """Run an :class:`OutsideWorld` on a free local port; stop it, and whoever hangs in it, at the end."""
    with OutsideWorld(answers) as world:
        thread = threading.Thread(target=world.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            yield world
        finally:
            world.closing.set()
            world.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: OutsideWorld

    def do_GET(self) -> None:
        self._give(self.server.next_answer(self.path))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._give(self.server.next_answer(self.path))

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent: the demo's table tells the story."""

    def _give(self, answer: Answer) -> None:
        if answer.pace is Pace.NEVER:
            self.server.closing.wait()
            return
        body = json.dumps(answer.content).encode()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.pace is Pace.AT_ONCE:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if answer.pace is Pace.DRIPPING:
            self._drip()
        else:
            self.wfile.write(body)

    def _drip(self) -> None:
        while not self.server.closing.wait(DRIP_INTERVAL):
            try:
                self.wfile.write(b" ")
            except OSError:
                return
