"""The dashboard and the alert rules ask for nothing that a scrape does not have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from celery_guard.core.states import Reason, State
from celery_guard.observe.metrics import METRICS

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
ALERTS = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]

_SUFFIXES = {"gauge": [""], "counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
SERIES = {f"{name}{suffix}": METRICS[name] for name in METRICS for suffix in _SUFFIXES[METRICS[name][0]]}

PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = {
    **{panel["title"]: [target["expr"] for target in panel["targets"]] for panel in PANELS},
    **{rule["alert"]: [rule["expr"]] for rule in ALERTS},
}


def series_of(expression):
    return re.findall(r"celery_guard_\w+", expression)


@pytest.mark.parametrize("title", EXPRESSIONS, ids=str)
def test_every_series_exists_in_a_scrape(title):
    for expression in EXPRESSIONS[title]:
        assert series_of(expression)
        assert set(series_of(expression)) <= set(SERIES)


@pytest.mark.parametrize("title", EXPRESSIONS, ids=str)
def test_every_label_is_one_of_the_series(title):
    for expression in EXPRESSIONS[title]:
        allowed = {label for name in series_of(expression) for label in SERIES[name][1]} | {"le"}
        grouped = {label for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(", ")}
        selected = set(re.findall(r'(\w+)=~?"', expression))
        assert grouped | selected <= allowed


@pytest.mark.parametrize("title", EXPRESSIONS, ids=str)
def test_every_state_and_reason_exists(title):
    for expression in EXPRESSIONS[title]:
        states = {one for text in re.findall(r'state=~?"([^"]+)"', expression) for one in text.split("|")}
        reasons = set(re.findall(r'reason="([^"]+)"', expression))
        assert states <= {state.value for state in State}
        assert reasons <= {reason.value for reason in Reason}


@pytest.mark.parametrize("title", EXPRESSIONS, ids=str)
def test_every_parenthesis_is_closed(title):
    for expression in EXPRESSIONS[title]:
        bare = re.sub(r'"[^"]*"', "", expression)
        assert [bare.count(one) for one in "({["] == [bare.count(one) for one in ")}]"]


def test_every_metric_is_looked_at():
    shown = {name for expressions in EXPRESSIONS.values() for text in expressions for name in series_of(text)}

    looked_at = {re.sub("_(total|bucket|sum|count)$", "", name) for name in shown} | shown
    assert set(METRICS) <= looked_at


def test_panels_have_places_of_their_own():
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_panels_have_ids_of_their_own():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]

    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_says_what_to_do(rule):
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["what_to_do"]
    assert rule["labels"]["severity"] in ("page", "ticket")
