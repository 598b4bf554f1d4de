"""The tutorial, word by word, in an empty virtual environment with nothing but the built wheel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.follower import Follower
from tests.infra.processes import free_port

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)  # half a minute of work, and sleeps; but every command is a process of its own
def test_whoever_follows_the_tutorial_gets_what_it_says(tmp_path: Path, distributions: Path, redis_url: str) -> None:
    supplier, flower = free_port(), free_port()
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    page = page.replace("8025", str(supplier)).replace("localhost:5555", f"localhost:{flower}")
    env = {
        "CELERY_BROKER_URL": redis_url,  # in the place of the page's own
        "FLOWER_PORT": str(flower),
        "PIP_FIND_LINKS": " ".join(filter(None, [os.environ.get("PIP_FIND_LINKS"), str(distributions)])),
        "PIP_NO_COMPILE": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }

    with Follower(tmp_path, env).working() as follower:
        follower.follow(page)
