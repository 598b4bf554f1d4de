"""Take the pictures of the docs anew: ``python -m tests.web.pictures`` writes ``docs/images``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from celery_guard.core.faults import Category
from celery_guard.core.states import State
from celery_guard.observe.timeline import timeline
from tests.infra.browser import Browser, find_browser
from tests.web.lives import a_story, after, failed

IMAGES = Path(__file__).parents[2] / "docs" / "images"

#: Lives worth showing, each with the height of its picture and whether it is a dark one.
STORIES = {
    "timeline-dead": (
        a_story(
            failed(1, 0.4, 2.1),
            failed(2, 4, 5.8, category=Category.UNKNOWN, rule="unknown", error_type="KeyError", error="'lamps'"),
            failed(3, 9.5, 14),
            meta={"request_id": "r-1"},
            last_error="ServiceBusy: 503 Service Unavailable from http://127.0.0.1:8000/orders/1004",
            error_category=Category.RETRYABLE,
        ),
        800,
        False,
    ),
    "timeline-live": (
        a_story(
            failed(1, 0.4, 2.1), failed(2, 4, 5.8), state=State.RETRYING, next_retry_at=after(10), now=7, attempt=2
        ),
        300,
        True,
    ),
}


def take(browser: Browser, name: str, folder: Path) -> Path:
    """Draw one of the lives and return its picture."""
    story, height, dark = STORIES[name]
    page, picture = browser.folder / f"{name}.html", folder / f"{name}.png"
    page.write_text(timeline(story), encoding="utf-8")
    browser.shoot(page.as_uri(), picture, width=900, height=height, dark=dark)
    return picture


def main() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = find_browser(Path(folder))
        if browser is None:
            sys.exit("no Chromium on this machine")
        for name in STORIES:
            print(take(browser, name, IMAGES))


if __name__ == "__main__":
    main()
