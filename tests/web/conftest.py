"""Web applications around shops of this process, and a browser where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.flow.conftest import (
    _apps_of_their_own as _apps_of_their_own,
    any_shop as any_shop,
    clock as clock,
    one_database as one_database,
    open_shop as open_shop,
    postgres_url as postgres_url,
    shop as shop,
)
from tests.flow.seams import Shop
from tests.infra.browser import Browser, find_browser
from tests.web.site import Site


@pytest.fixture
def any_site(any_shop: Shop) -> Site:
    """A web application on each database; its clients see the runs whose tenant they are."""
    return Site(any_shop)


@pytest.fixture
def site(shop: Shop) -> Site:
    """The same on SQLite."""
    return Site(shop)


@pytest.fixture
def open_site(open_shop: Any) -> Any:
    """Make web applications around shops of their own."""

    def start(site: Any = None, **config: Any) -> Site:
        return Site(open_shop(**config), **(site or {}))

    return start


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    """A real Chromium; tests that need one are skipped on machines without."""
    found = find_browser(tmp_path)
    if found is None:
        pytest.skip("no Chromium on this machine: install chromium, or google-chrome, to test pages in a real browser")
    return found
