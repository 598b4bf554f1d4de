"""Every Python block of the README and the docs runs, unless it is marked ``no-run``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python( no-run)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[bool, str]]:
    return [(not marked, code) for marked, code in BLOCK.findall(page.read_text())]


PAGES_WITH_CODE = [page for page in PAGES if "_build" not in page.parts and blocks(page)]


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "shop.py"
    script.write_text("\n".join(code for runs, code in blocks(page) if runs))

    done = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_that_is_not_run_is_at_least_python(page: Path) -> None:
    for runs, code in blocks(page):
        if not runs:
            compile(code, str(page), "exec")
