"""Somebody who follows a page to the letter: saves its files, types its commands, sees what it says they will."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.docs.pages import Block, blocks
from tests.infra.polling import eventually
from tests.infra.processes import Process

__all__ = ["Follower"]

PATIENCE = 120.0
SESSION = Path(__file__).with_name("session.py")

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FILE = re.compile(r"# (\S+\.py)\n")
_OPEN = re.compile(r"^Open <(http://localhost:\S+)>(.*?)\n$", re.MULTILINE | re.DOTALL)
#: What differs from run to run: moments, durations, hosts with process ids.
_VARIES = [
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"), "MOMENT"),
    (re.compile(r"\b\d[\d.]* (?:ms|s|m|h|d)(?: \d+ (?:s|m|h))?(?=\s|,|$)"), "SPAN"),
    (re.compile(r"(?<= )[\w.-]+:\d+(?= |$)"), "WORKER"),
]


class Follower:
    """Works in a folder and an environment of its own.

    Args:
        folder: an empty folder.
        env: variables added to ours.
    """

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        python = Path(sys.executable).resolve().parent  # not this environment, where everything is installed
        path = f"{folder / 'venv' / 'bin'}:{python}:{os.defpath}"
        self.env = {"PATH": path, "PYTHONPATH": "", "VIRTUAL_ENV": "", "C_FORCE_ROOT": "1", **env}
        self.servers: list[Process] = []
        self._ids: dict[str, str] = {}
        self._session: subprocess.Popen[str] | None = None

    def follow(self, page: str) -> None:
        """Do what a page says, from its first line to its last.

        Raises:
            AssertionError: something was not as the page says.
        """
        steps = [(block.position, block) for block in blocks(page)]
        looks = [(found.start(), found) for found in _OPEN.finditer(page)]
        for _, step in sorted([*steps, *looks], key=lambda pair: pair[0]):
            if isinstance(step, Block):
                self._do(step)
            else:
                self._look(step[1], re.findall(r"`([^`]+)`", step[2]))

    @contextmanager
    def working(self) -> Iterator[Follower]:
        """Leave nothing running behind."""
        try:
            yield self
        finally:
            if self._session is not None:
                self._session.communicate(timeout=PATIENCE)
            for server in self.servers:
                server.destroy()

    def _do(self, block: Block) -> None:
        if block.word == "no-run":
            return
        if block.language == "python":
            name = _FILE.match(block.text)
            assert name, f"a file without its name in the first line:\n{block.text}"
            (self.folder / name[1]).write_text(block.text, encoding="utf-8")
        elif block.language == "pycon":
            self._type(block.text)
        elif block.word == "server":
            self._serve(block.text.removeprefix("$ ").strip())
        else:
            for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
                self._run(command, expected)

    def _serve(self, command: str) -> None:
        for earlier in self.servers:
            earlier.running  # noqa: B018  # collects one that was killed, as a shell does
        name = f"server-{len(self.servers)}"
        server = Process(["bash", "-c", f"exec {command}"], name=name, folder=self.folder, env=self.env)
        self.servers.append(server)
        server.start()

    def _run(self, command: str, expected: str) -> None:
        def once() -> None:
            done = subprocess.run(
                ["bash", "-c", self._with_our_ids(command)],
                cwd=self.folder,
                env={**os.environ, **self.env},
                capture_output=True,
                text=True,
                timeout=4 * PATIENCE,
            )
            assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
            self._compare(command, expected, done.stdout)

        only_looks = re.match(r"celery -A shop guard (runs|show)", command)
        eventually(once, PATIENCE if only_looks else 0.0)

    def _type(self, examples: str) -> None:
        if self._session is None:
            self._session = subprocess.Popen(
                ["python", str(SESSION)],
                executable=str(self.folder / "venv" / "bin" / "python"),
                cwd=self.folder,
                env={**os.environ, **self.env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._session.stdin is not None
        assert self._session.stdout is not None
        self._session.stdin.write(json.dumps(examples) + "\n")
        self._session.stdin.flush()
        for source, expected, printed in json.loads(self._session.stdout.readline()):
            self._compare(f">>> {source}", expected, printed)

    def _look(self, url: str, words: list[str]) -> None:
        def shown() -> None:
            try:
                with urllib.request.urlopen(self._with_our_ids(url), timeout=10) as answer:
                    body = answer.read().decode()
            except OSError as error:
                raise AssertionError(f"{url}: {error}") from error
            missing = [word for word in words if word not in body]
            assert not missing, f"{url} does not show {missing}:\n{body}"

        eventually(shown, PATIENCE)

    def _with_our_ids(self, text: str) -> str:
        return _ID.sub(lambda found: self._ids.get(found[0], found[0]), text)

    def _compare(self, what: str, expected: str, printed: str) -> None:
        """The page's output must be the real one, but for what differs from run to run; new ids are remembered."""
        if not expected.strip():
            return
        wanted, got = _steady(self._with_our_ids(expected)), _steady(printed)
        known = set(self._ids.values())
        new = list(dict.fromkeys(one for one in _ID.findall(wanted) if one not in known))
        pattern = re.escape(wanted)
        for number, one in enumerate(new):
            pattern = pattern.replace(re.escape(one), f"(?P<id{number}>{_ID.pattern})", 1)
            pattern = pattern.replace(re.escape(one), f"(?P=id{number})")
        found = re.fullmatch(pattern, got)
        assert found, f"{what}\nthe page says\n{expected}\nand it printed\n{printed}"
        self._ids.update({one: found[f"id{number}"] for number, one in enumerate(new)})


def _steady(text: str) -> str:
    text = " ".join(text.split())
    for varying, name in _VARIES:
        text = varying.sub(name, text)
    return text
