"""Tiny servers on this machine that answer what a test asks them to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, ThreadingTCPServer
from urllib.parse import parse_qs, urlsplit

__all__ = ["http_server", "silent_server", "smtp_server", "unused_port"]


class Answers(BaseHTTPRequestHandler):
    """``/503?retry-after=7`` answers with that status and header; the words below misbehave."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        url = urlsplit(self.path)
        word = url.path.strip("/")
        self.close_connection = True
        if word.isdigit():
            self._answer(int(word), parse_qs(url.query))
        else:
            getattr(self, f"_{word}")()

    do_POST = do_GET

    def _answer(self, status: int, query: Mapping[str, list[str]]) -> None:
        body = b"{}"
        if "type" in query:
            body = b'{"__type": "%s"}' % query["type"][0].encode()
        self.send_response(status)
        if "retry-after" in query:
            self.send_header("Retry-After", query["retry-after"][0])
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _drop(self) -> None:
        """Hang up without a word."""

    def _garbage(self) -> None:
        self.wfile.write(b"this is no HTTP\r\n\r\n")

    def _cut(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly so much")

    def _loop(self) -> None:
        self.wfile.write(b"HTTP/1.1 302 Found\r\nLocation: /loop\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def _slow(self) -> None:
        with suppress(OSError):
            self.connection.settimeout(5)
            self.connection.recv(1)  # until the client hangs up

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client hung up: that is the point."""


class Smtp(StreamRequestHandler):
    """Greets, and refuses at the verb that the server was told to refuse at."""

    def handle(self) -> None:
        replies: dict[str, bytes] = self.server.replies  # type: ignore[attr-defined]
        self.wfile.write(replies.get("CONNECT", b"220 ready") + b"\r\n")
        while line := self.rfile.readline():
            verb = line[:4].decode("ascii", "replace").strip().upper()
            if replies.get(verb) == b"":
                return
            self.wfile.write(replies.get(verb, b"250 ok") + b"\r\n")
            if verb == "QUIT":
                return


class _Smtp(ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def _serving(server: ThreadingTCPServer | ThreadingHTTPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def http_server() -> Iterator[str]:
    """The URL of a server of :class:`Answers`."""
    with _serving(_Http(("127.0.0.1", 0), Answers)) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def smtp_server(**replies: bytes) -> Iterator[int]:
    """The port of a mail server that gives these replies to these verbs; an empty one hangs up."""
    server = _Smtp(("127.0.0.1", 0), Smtp)
    server.replies = replies  # type: ignore[attr-defined]
    with _serving(server) as port:
        yield port


@contextmanager
def silent_server() -> Iterator[int]:
    """The port of a server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def unused_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
