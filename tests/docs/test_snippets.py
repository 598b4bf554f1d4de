"""Every Python block of the README and the docs runs, unless it is marked ``no-run``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from celery_guard.store.migrations import VERSION_TABLE
from celery_guard.store.models import metadata
from tests.docs.pages import Block, blocks

ROOT = Path(__file__).parents[2]
#: Followed step by step by tests of their own.
TUTORIALS = [ROOT / "docs" / "tutorial.md", ROOT / "docs" / "ru" / "tutorial.md"]
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - set(TUTORIALS))]


def python_of(page: Path) -> list[Block]:
    return [block for block in blocks(page.read_text(encoding="utf-8")) if block.language == "python"]


PAGES_WITH_CODE = [page for page in PAGES if "_build" not in page.parts and python_of(page)]


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "shop.py"
    script.write_text("\n".join(block.text for block in python_of(page) if block.word != "no-run"))

    done = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_that_is_not_run_is_at_least_python(page: Path) -> None:
    for block in python_of(page):
        if block.word == "no-run":
            compile(block.text, str(page), "exec")


def test_the_page_on_the_tables_names_all_of_them() -> None:
    (code, *_) = python_of(ROOT / "docs" / "how-to" / "schema.md")
    names: dict[str, Any] = {}

    exec(code.text, names)

    assert names["OURS"] == {*metadata.tables, VERSION_TABLE}
