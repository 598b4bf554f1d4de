"""The picture of a run as a real browser draws it."""

from __future__ import annotations

import pytest

from celery_guard.observe.timeline import timeline
from tests.web.lives import a_story, after, failed
from tests.web.pictures import STORIES, take

#: Where each attempt is drawn, how wide the page is, and whether anything sticks out of it.
MEASURE = """({
  bars: [...page.querySelectorAll(".attempt")].map(bar => bar.getBoundingClientRect()).map(at => [at.left, at.right]),
  deadline: page.querySelector(".deadline line").getBoundingClientRect().left,
  sticks_out: page.documentElement.scrollWidth > page.documentElement.clientWidth,
  hover: page.querySelector(".attempt title").textContent,
  alerts: page.querySelectorAll("script, img, b").length,
})"""

HOSTILE = "</title></svg><script>document.body.remove()</script><img src=x onerror=document.body.remove()><b>"


@pytest.mark.parametrize("width", [360, 1200])
def test_attempts_are_drawn_in_order_before_the_deadline_and_nothing_sticks_out(browser, width):
    page = timeline(a_story(failed(1, 9, 18, error=HOSTILE), failed(2, 27, 36, error="x" * 500), deadline_at=after(45)))

    seen = browser.ask(page, MEASURE, width=width)

    (begin, end), (then, last) = seen["bars"]
    assert 0 < begin < end < then < last < seen["deadline"] <= width
    assert end - begin == pytest.approx(last - then, abs=1)
    assert not seen["sticks_out"]
    assert (HOSTILE in seen["hover"], seen["alerts"]) == (True, 0)


def test_the_pictures_of_the_docs_can_be_taken(browser, tmp_path):
    name = next(iter(STORIES))

    picture = take(browser, name, tmp_path)

    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture.stat().st_size > 10_000
