"""The example shop under the test kit, with an outside world that answers as a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from example_project.outside_world import Answer, OutsideWorld, open_world
from tests.flow.conftest import _apps_of_their_own as _apps_of_their_own

Open = Callable[[dict[str, Sequence[Answer]]], OutsideWorld]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shop's working folder."""
    monkeypatch.setenv("SHOP_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def guard_app(home: Path) -> Any:
    """The shop's app, for the kit."""
    from example_project.app import app

    app.loader.import_default_modules()
    return app


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Open an outside world: what it answers, by path, the last answer again and again."""
    with ExitStack() as stack:

        def start(answers: dict[str, Sequence[Answer]]) -> OutsideWorld:
            opened = stack.enter_context(open_world(answers))
            monkeypatch.setenv("SHOP_WORLD_URL", opened.url)
            return opened

        yield start
