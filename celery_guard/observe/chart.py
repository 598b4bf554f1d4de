"""A run's life on a time axis: attempts as bars, the waits between them, the deadline as a line.

Everything is placed in percent of the width and in pixels of the height, so the drawing fits a phone and its letters
keep their size. A deadline that is far away would press a life flat, so it is then set apart by a break in the axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from celery_guard.core.wording import spell, stamp
from celery_guard.observe.markup import Markup, element
from celery_guard.observe.story import Chapter, Story, said_reason

__all__ = ["KINDS", "chart", "kind_of"]

#: What an attempt may have come to, as the style sheet colours it; all else is "ended".
KINDS = ("succeeded", "running", "retryable", "unknown", "non_retryable", "ended")

_SHORTEST = timedelta(milliseconds=10)
#: A deadline up to this many lives away is part of the axis.
_NEAR = 3
#: Percent of the width: what a far deadline leaves to the axis, where that breaks, where the deadline is drawn.
_BEFORE_BREAK, _BREAK, _FAR_DEADLINE = 84, 91, 98
#: Percent of the width that a digit needs on a phone.
_DIGIT = 2.8
_STEPS = tuple(
    timedelta(milliseconds=ms) for ms in (2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000)
) + tuple(
    timedelta(minutes=minutes)
    for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1_440, 2_880, 10_080, 43_200, 129_600, 525_600)
)
_MOST_TICKS = 5


def chart(story: Story) -> Markup:
    """Draw a run's life as SVG."""
    axis = _Axis.of(story)
    inner = element(
        "svg",
        *_ticks(axis),
        *_waits(axis, story),
        *_bars(axis, story),
        *_marks(axis, story),
        width="100%" if axis.reaches_deadline else f"{_BEFORE_BREAK}%",
        height="100%",
        overflow="visible",
    )
    far = () if axis.reaches_deadline else _far_deadline(story)
    return element("svg", inner, *far, class_="life", role="img", aria_label=_summary(story))


def kind_of(chapter: Chapter) -> str:
    """Return the kind of an attempt's outcome."""
    return chapter.outcome if chapter.outcome in KINDS else "ended"


@dataclass(frozen=True)
class _Axis:
    """Where a moment is, in percent of the width."""

    start: datetime
    end: datetime
    reaches_deadline: bool

    @classmethod
    def of(cls, story: Story) -> _Axis:
        run = story.run
        ends = [one.finished_at for one in story.chapters if one.finished_at]
        last = max(run.created_at + _SHORTEST, run.finished_at or story.life.now, *ends)
        if run.next_retry_at and not run.is_terminal:
            last = max(last, run.next_retry_at)
        near = run.deadline_at - run.created_at <= _NEAR * (last - run.created_at)
        return cls(run.created_at, max(last, run.deadline_at) if near else last, near)

    def at(self, moment: datetime) -> float:
        share = (moment - self.start) / (self.end - self.start)
        return 100 * min(max(share, 0.0), 1.0)

    def span(self, begin: datetime, end: datetime) -> dict[str, str]:
        x = self.at(begin)
        return {"x": _percent(x), "width": _percent(max(self.at(end) - x, 0.01))}


def _ticks(axis: _Axis) -> Iterator[Markup]:
    whole = axis.end - axis.start
    step = next((step for step in _STEPS if whole <= _MOST_TICKS * step), whole / _MOST_TICKS)
    yield element("line", class_="axis", x1="0", x2="100%", y1=84, y2=84)
    for number in range(int(whole / step) + 1):
        x = axis.at(axis.start + number * step)
        anchor = "start" if number == 0 else "end" if x > 96 else "middle"
        yield element("line", class_="axis", x1=_percent(x), x2=_percent(x), y1=84, y2=89)
        yield element("text", spell(number * step), class_="tick", x=_percent(x), y=104, text_anchor=anchor)


def _waits(axis: _Axis, story: Story) -> Iterator[Markup]:
    run, begun = story.run, story.run.created_at
    for one in story.chapters:
        if one.started_at and one.started_at > begun:
            yield _wait(axis, begun, one.started_at, f"waited {spell(one.waited)} for attempt {one.attempt}")
        begun = one.finished_at or story.life.now
    until = run.finished_at or max(story.life.now, run.next_retry_at or story.life.now)
    if until > begun:
        verb = "waited" if run.is_terminal else "waits"
        yield _wait(axis, begun, until, f"{verb} {spell(until - begun)}")


def _wait(axis: _Axis, begin: datetime, end: datetime, words: str) -> Markup:
    return element("rect", element("title", words), class_="wait", y=51, height=6, **axis.span(begin, end))


def _bars(axis: _Axis, story: Story) -> Iterator[Markup]:
    free = 0.0
    for one in story.chapters:
        begin, end = one.started_at or one.finished_at or story.run.created_at, one.finished_at or story.life.now
        title = element("title", _told(one))
        yield element("rect", title, class_=f"attempt {kind_of(one)}", y=34, height=40, rx=2, **axis.span(begin, end))
        middle = (axis.at(begin) + axis.at(end)) / 2
        if middle >= free:
            free = middle + _DIGIT * (len(str(one.attempt)) + 1)
            yield element("text", str(one.attempt), class_="number", x=_percent(middle), y=28, text_anchor="middle")


def _told(one: Chapter) -> str:
    lines = (
        f"attempt {one.attempt}: {one.outcome}",
        f"took {spell(one.took)}" if one.took is not None else "",
        one.rule and f"rule {one.rule}",
        one.fault[:500],
        f"on {one.place}" if one.place else "",
        f"{spell(-one.left)} after the deadline" if one.left.total_seconds() < 0 else f"{spell(one.left)} left",
    )
    return "\n".join(line for line in lines if line)


def _marks(axis: _Axis, story: Story) -> Iterator[Markup]:
    run, now = story.run, story.life.now
    if axis.reaches_deadline:
        yield _line(axis.at(run.deadline_at), "deadline", f"deadline {stamp(run.deadline_at)}")
    if run.finished_at:
        title = element("title", f"ended {stamp(run.finished_at)}: {run.state} {said_reason(run)}".rstrip())
        yield element("circle", title, class_=f"end {run.state}", cx=_percent(axis.at(run.finished_at)), cy=54, r=6)
        return
    yield _line(axis.at(now), "now", f"now {stamp(now)}")
    if run.next_retry_at:
        title = element("title", f"the next attempt is due {stamp(run.next_retry_at)}")
        yield element("circle", title, class_="next", cx=_percent(axis.at(run.next_retry_at)), cy=54, r=5)


def _line(x: float, name: str, words: str) -> Markup:
    """Draw a line from top to bottom with its name, on the side where there is room."""
    anchor, shift = ("end", -4) if x > 50 else ("start", 4)
    return element(
        "g",
        element("title", words),
        element("line", x1=_percent(x), x2=_percent(x), y1=2, y2=89),
        element("text", name, x=_percent(x), dx=shift, y=12, text_anchor=anchor),
        class_=name,
    )


def _far_deadline(story: Story) -> Iterator[Markup]:
    run = story.run
    for begin, end in ((_BEFORE_BREAK, _BREAK), (_BREAK + 1, 100)):
        yield element("line", class_="axis", x1=_percent(begin), x2=_percent(end), y1=84, y2=84)
    for x in (_BREAK, _BREAK + 1):
        yield element("line", class_="axis break", x1=_percent(x), x2=_percent(x), y1=78, y2=90)
    yield _line(_FAR_DEADLINE, "deadline", f"deadline {stamp(run.deadline_at)}")
    away = spell(run.deadline_at - run.created_at)
    yield element("text", away, class_="tick", x="100%", y=104, text_anchor="end")


def _summary(story: Story) -> str:
    run = story.run
    count = f"{len(story.chapters)} attempt{'' if len(story.chapters) == 1 else 's'}"
    lived = spell((run.finished_at or story.life.now) - run.created_at)
    return f"{run.type} is {run.state} {said_reason(run)}".rstrip() + f": {count} in {lived}; all are told below"


def _percent(x: float) -> str:
    return f"{x:.3f}".rstrip("0").rstrip(".") + "%"
