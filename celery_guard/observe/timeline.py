"""A run's life as one HTML page that needs nothing else: no script, no network, no build."""

from __future__ import annotations

from collections.abc import Iterator

from celery_guard.core.wording import spell, stamp
from celery_guard.observe.chart import KINDS, chart, kind_of
from celery_guard.observe.markup import Markup, element
from celery_guard.observe.story import Chapter, Story, facts, said_reason
from celery_guard.observe.timeline_style import STYLE

__all__ = ["timeline"]

_COLUMNS = ("attempt", "outcome", "waited", "started", "took", "left", "fault", "worker")

#: How much of an error the page shows.
_SHOWN = 500


def timeline(story: Story, *, refresh_after: int | None = None) -> str:
    """Draw a run's life: attempts on a time axis, then each of them in words.

    Args:
        story: what :func:`celery_guard.observe.story.tell` returned.
        refresh_after: seconds after which the browser loads the page again, for a run that is live.

    Returns:
        An HTML document. All that a task or a caller wrote is shown as text, whatever it holds.
    """
    run = story.run
    refresh = [element("meta", http_equiv="refresh", content=refresh_after)] if refresh_after else []
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        *refresh,
        element("title", f"{run.state} · {run.type}"),
        element("style", Markup(STYLE)),
    )
    main = element("main", _header(story), _figure(story), _facts(story), *_attempts(story))
    return f"<!DOCTYPE html>\n{element('html', head, element('body', main), lang='en')}\n"


def _header(story: Story) -> Markup:
    run = story.run
    state = element("strong", run.state.value, class_=f"state {run.state}")
    return element(
        "header",
        element("h1", run.type),
        element("p", element("code", run.id)),
        element("p", state, " ", said_reason(run)),
    )


def _figure(story: Story) -> Markup:
    seen = {kind_of(one) for one in story.chapters}
    swatches = [element("li", kind.replace("_", "-"), class_=kind) for kind in KINDS if kind in seen]
    return element(
        "figure", chart(story), element("figcaption", element("ul", *swatches, class_="kinds")) if swatches else ""
    )


def _facts(story: Story) -> Markup:
    rows = [element("div", element("dt", name), element("dd", value)) for name, value in facts(story) if value]
    return element("dl", *rows)


def _attempts(story: Story) -> Iterator[Markup]:
    if not story.chapters:
        yield element("p", "No attempt has started." if not story.run.is_terminal else "No attempt was made.")
        return
    head = element("tr", *(element("th", name, scope="col") for name in _COLUMNS))
    rows = [element("tr", *_cells(one)) for one in story.chapters]
    yield element("table", element("thead", head), element("tbody", *rows))


def _cells(one: Chapter) -> Iterator[Markup]:
    fault = [element("p", one.fault[:_SHOWN], class_="fault")] if one.fault else []
    rule = [element("small", one.rule)] if one.rule else []
    values: tuple[tuple[str, ...], ...] = (
        (str(one.attempt),),
        (element("span", one.outcome.replace("_", "-"), class_=f"outcome {kind_of(one)}"),),
        (spell(one.waited),),
        (stamp(one.started_at),),
        (spell(one.took),),
        (spell(one.left),),
        (*fault, *rule),
        (one.place,),
    )
    for name, content in zip(_COLUMNS, values, strict=True):
        yield element("td", *content, data_label=name)
