"""The picture of a run: one page that needs nothing else, whatever the run has lived through."""

from __future__ import annotations

import re
from datetime import timedelta
from html.parser import HTMLParser

import pytest

from celery_guard.core.deadline import CENTURY
from celery_guard.core.faults import Category
from celery_guard.core.states import Reason, State
from celery_guard.observe.timeline import timeline
from tests.factories import NOON
from tests.web.lives import RUN_ID, a_story, after, failed

LIVE = {"terminal_reason": None}


class Page(HTMLParser):
    """What a page consists of. Tags that do not match fail the test."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, tag, name=""):
        """Return the attributes of elements with a tag and, where one is given, a class."""
        found = [attrs for one, attrs in self.elements if one == tag]
        return [attrs for attrs in found if not name or name in (attrs.get("class") or "").split()]

    def xs(self, tag, name):
        """Return where they begin and how wide they are, in percent."""
        return [(_number(one["x"]), _number(one["width"])) for one in self.all(tag, name)]


def _number(percent):
    return float(percent.removesuffix("%"))


def test_attempts_are_bars_and_the_waits_lie_between_them():
    page = Page(timeline(a_story(failed(1, 9, 18), failed(2, 27, 36), deadline_at=after(45))))

    assert page.xs("rect", "attempt") == [(20, 20), (60, 20)]
    assert page.xs("rect", "wait") == [(0, 20), (40, 20)]


def test_a_near_deadline_is_a_line_on_the_axis():
    page = Page(timeline(a_story(failed(1, 0, 30), deadline_at=after(60))))

    assert [one["class"] for one in page.all("g")] == ["deadline"]
    assert [one["x1"] for one in page.all("line") if "class" not in one] == ["100%"]
    assert page.all("line", "break") == []


@pytest.mark.parametrize("away", [timedelta(days=1), CENTURY])
def test_a_far_deadline_is_set_apart_and_the_life_keeps_its_width(away):
    page = Page(timeline(a_story(failed(1, 0, 5), failed(2, 5, 10), deadline_at=NOON + away)))

    assert page.xs("rect", "attempt") == [(0, 50), (50, 50)]
    assert len(page.all("line", "break")) == 2
    assert "deadline" in page.texts


def test_faults_are_told_on_hover_and_in_words():
    page = Page(timeline(a_story(failed(1, 0, 2, error="the disk is full", rule="python_os"))))

    (hover,) = [text for text in page.texts if text.startswith("attempt 1: ")]
    assert "ServiceBusy: the disk is full" in hover
    assert "rule python_os" in hover
    assert "ServiceBusy: the disk is full" in page.texts
    assert "python_os" in page.texts


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "</title></svg><img src=x onerror=alert(1)>",
        '"><b onclick="alert(1)">',
        "&lt;b&gt;",
    ],
)
def test_whatever_a_task_wrote_is_text(text):
    run = {"type": text, "id": text, "queue": text, "last_error": text, "idempotency_key": text, "meta": {text: text}}
    story = a_story(failed(1, 0, 2, error=text, error_type=text, rule=text, worker_id=text), **run)

    page, plain = (
        Page(timeline(story)),
        Page(timeline(a_story(failed(1, 0, 2), **dict.fromkeys(run, "x") | {"meta": {"x": "x"}}))),
    )

    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert text in page.texts
    assert not [one for _, one in page.elements if any(name.startswith("on") for name in one)]


def test_a_page_asks_for_nothing():
    text = timeline(a_story(failed(1, 0, 2)))

    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in Page(text).elements}
    assert not re.search(r"url\(|@import|src=|href=", text)


def test_a_run_that_died_in_the_queue_is_one_long_wait():
    story = a_story(state=State.DEAD, terminal_reason=Reason.FAILED_DUE_DEADLINE, finished_at=after(45))

    page = Page(timeline(story))

    assert page.xs("rect", "attempt") == []
    assert page.xs("rect", "wait") == [(0, 100)]
    assert "No attempt was made." in page.texts


def test_a_thousand_attempts_are_a_thousand_bars_within_the_picture():
    attempts = [failed(n, 3 * n, 3 * n + 1) for n in range(1, 1_001)]

    page = Page(timeline(a_story(*attempts, max_attempts=2**31 - 1, deadline_at=after(3_010))))

    bars = page.xs("rect", "attempt")
    assert len(bars) == 1_000
    assert all(0 <= x <= x + width <= 100.01 for x, width in bars)
    assert len(page.all("text", "number")) < 20
    assert "1000 of any number" in page.texts


def test_a_run_that_runs_reaches_to_now():
    page = Page(timeline(a_story(state=State.RUNNING, attempt=1, started_at=after(5), now=20, **LIVE)))

    assert page.all("rect", "running")
    assert page.xs("rect", "attempt") == [
        (pytest.approx(100 * 5 / 45, abs=0.01), pytest.approx(100 * 15 / 45, abs=0.01))
    ]
    assert [one["class"] for one in page.all("g")] == ["deadline", "now"]
    assert page.all("circle", "end") == []


def test_a_run_that_waits_shows_when_it_goes_on():
    story = a_story(failed(1, 0, 2), state=State.RETRYING, next_retry_at=after(30), now=10, **LIVE)

    page = Page(timeline(story))

    (due,) = page.all("circle", "next")
    assert _number(due["cx"]) == pytest.approx(100 * 30 / 45, abs=0.01)
    assert page.xs("rect", "wait")[-1][0] == pytest.approx(100 * 2 / 45, abs=0.01)


def test_a_run_that_was_just_submitted_has_a_picture():
    page = Page(timeline(a_story(state=State.QUEUED, now=0, **LIVE)))

    assert "No attempt has started." in page.texts
    assert RUN_ID in page.texts


def test_an_attempt_of_no_time_can_still_be_seen():
    page = Page(timeline(a_story(failed(1, 5, 5), failed(2, 9, 9))))

    assert all(width > 0 for _, width in page.xs("rect", "attempt"))


@pytest.mark.parametrize(
    ("category", "kind"),
    [(Category.RETRYABLE, "retryable"), (Category.UNKNOWN, "unknown"), (None, "ended")],
)
def test_the_colour_says_what_the_error_was(category, kind):
    page = Page(timeline(a_story(failed(1, 0, 2, category=category, rule="cancelled"))))

    assert [one["class"].split() for one in page.all("rect", "attempt")] == [["attempt", kind]]


def test_only_a_live_page_is_loaded_again():
    story = a_story(failed(1, 0, 2))

    assert 'http-equiv="refresh" content="5"' in timeline(story, refresh_after=5)
    assert "refresh" not in timeline(story)
