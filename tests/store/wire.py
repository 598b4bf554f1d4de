"""A cable between a test and its PostgreSQL: it counts the questions, and can be cut before an answer is through."""

from __future__ import annotations

import re
import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType

from sqlalchemy import make_url


class Wire:
    """Hands bytes on to a server, reading the questions of PostgreSQL's simple protocol as they pass.

    A statement whose plan the server keeps is noted in its own words whenever it is executed.

    Args:
        url: the database at the far end; :attr:`url` is its address through this cable.
    """

    def __init__(self, url: str) -> None:
        far = make_url(url)
        self._far = (far.host or "127.0.0.1", far.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        near = far.set(host="127.0.0.1", port=self._listener.getsockname()[1])
        self.url = near.update_query_dict({"sslmode": "disable"}).render_as_string(hide_password=False)
        self.queries: list[str] = []
        #: The names of the plans that connections made, in order.
        self.planned: list[str] = []
        self._plans: dict[str, str] = {}
        self._cut: re.Pattern[str] | None = None
        self._stays_cut = False
        self._is_down = threading.Event()
        self._sockets: list[socket.socket] = []

    def lose_the_answer_to(self, pattern: str, *, stay_down: bool = False) -> None:
        """Cut the cable once, after the server has answered such a question and before the answer arrives."""
        self._cut, self._stays_cut = re.compile(pattern), stay_down

    def repair(self) -> None:
        """Let new connections through again."""
        self._is_down.clear()

    def __enter__(self) -> Wire:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        _hang_up(self._listener, *self._sockets)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._is_down.is_set():
                    near.close()
                    continue
                far = socket.create_connection(self._far)
                self._sockets += [near, far]
                doomed = threading.Event()
                threading.Thread(target=self._questions, args=(near, far, doomed), daemon=True).start()
                threading.Thread(target=self._answers, args=(near, far, doomed), daemon=True).start()

    def _questions(self, near: socket.socket, far: socket.socket, doomed: threading.Event) -> None:
        with suppress(OSError, EOFError):
            far.sendall(_startup(near))
            while True:
                kind, message = _message(near)
                if kind == b"Q":
                    self._note(message[5:-1].decode(), doomed)
                far.sendall(message)
        _hang_up(near, far)

    def _note(self, query: str, doomed: threading.Event) -> None:
        query = re.sub("^SET LOCAL [^;]*; (?=EXECUTE)", "", query)
        word, _, rest = query.partition(" ")
        if word == "PREPARE":
            name, _, statement = rest.partition(" ")
            self.planned.append(name)
            self._plans[name] = statement.partition(" AS ")[2]
            return
        if word == "DEALLOCATE":
            return
        if word == "EXECUTE":
            query = self._plans[rest.partition(" ")[0]]
        self.queries.append(query)
        if self._cut is not None and self._cut.search(query):
            self._cut = None
            doomed.set()

    def _answers(self, near: socket.socket, far: socket.socket, doomed: threading.Event) -> None:
        with suppress(OSError):
            while data := far.recv(65_536):
                if doomed.is_set():
                    if self._stays_cut:
                        self._is_down.set()
                    break
                near.sendall(data)
        _hang_up(near, far)


def _startup(source: socket.socket) -> bytes:
    size = _exactly(source, 4)
    return size + _exactly(source, struct.unpack("!I", size)[0] - 4)


def _message(source: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(source, 5)
    return head[:1], head + _exactly(source, struct.unpack("!I", head[1:])[0] - 4)


def _exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = source.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _hang_up(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
