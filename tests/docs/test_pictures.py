"""The pictures of the docs: well-formed, complete, and refused when they would not be."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from celery_guard.core.states import MOVES, State

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def svg() -> ModuleType:
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(ROOT / "docs" / "_ext")
        return import_module("svg")


def words(picture: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{SVG}text")]


def test_the_life_of_a_run_shows_every_state_and_every_move(svg: ModuleType) -> None:
    moves = {state.value: [target.value for target in targets] for state, targets in MOVES.items()}

    picture = ElementTree.fromstring(svg.life_cycle(moves, serial="1"))

    arrows = [path for path in picture.iter(f"{SVG}path") if path.get("class") == "way"]
    heads = sum((path.get("marker-start") is not None) + (path.get("marker-end") is not None) for path in arrows)
    assert set(State) <= set(words(picture))
    assert heads == sum(map(len, MOVES.values()))


def test_a_state_without_a_place_is_refused(svg: ModuleType) -> None:
    with pytest.raises(ValueError, match="paused"):
        svg.life_cycle({"paused": []}, serial="1")


def test_a_sequence_says_all_its_lines_in_order(svg: ModuleType) -> None:
    events = svg.read_sequence(["a -> b: first <one>", "b: second", "", "b x third"])

    picture = ElementTree.fromstring(svg.sequence("A & B", ["a", "b"], events, serial="1"))

    assert words(picture) == ["a", "b", "first <one>", "second", "third"]
    assert picture.findtext(f"{SVG}title") == "A & B"


def test_a_line_that_says_nothing_is_refused(svg: ModuleType) -> None:
    with pytest.raises(ValueError, match="a => b"):
        list(svg.read_sequence(["a => b"]))


def test_no_words_of_the_failures_stick_out_of_their_picture(svg: ModuleType) -> None:
    page = (ROOT / "docs" / "explanation" / "failures.md").read_text(encoding="utf-8")
    found = re.findall(r":::\{sequence\} (.*)\n:actors: (.*)\n\n(.*?):::", page, re.DOTALL)
    assert found

    for title, actors, lines in found:
        names = [name.strip() for name in actors.split(",")]
        picture = ElementTree.fromstring(svg.sequence(title, names, svg.read_sequence(lines.splitlines()), serial="1"))
        width = float(picture.get("width", "0"))
        for text in picture.iter(f"{SVG}text"):
            half = len(text.text or "") * svg.LETTER / 2
            assert 0 <= float(text.get("x", "0")) - half <= float(text.get("x", "0")) + half <= width, text.text
