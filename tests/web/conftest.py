"""A browser, where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.infra.browser import Browser, find_browser


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    """A real Chromium; tests that need one are skipped on machines without."""
    found = find_browser(tmp_path)
    if found is None:
        pytest.skip("no Chromium on this machine: install chromium, or google-chrome, to test pages in a real browser")
    return found
