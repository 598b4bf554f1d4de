"""Translations say in another language what the originals say: the same code, headings and pictures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import blocks

ROOT = Path(__file__).parents[2]
PAIRS = [
    pytest.param(ROOT / "README.md", ROOT / "README.ru.md", id="README"),
    pytest.param(ROOT / "docs" / "tutorial.md", ROOT / "docs" / "ru" / "tutorial.md", id="tutorial"),
]


@pytest.mark.parametrize(("original", "translation"), PAIRS)
def test_a_translation_has_the_same_code(original: Path, translation: Path) -> None:
    ours, theirs = (
        [(block.language, block.word, block.text) for block in blocks(page.read_text(encoding="utf-8"))]
        for page in (original, translation)
    )

    assert theirs == ours


@pytest.mark.parametrize(("original", "translation"), PAIRS)
def test_a_translation_has_the_same_sections_and_names(original: Path, translation: Path) -> None:
    ours, theirs = (page.read_text(encoding="utf-8") for page in (original, translation))

    assert levels(theirs) == levels(ours)
    assert names(theirs) >= names(ours)


def levels(page: str) -> list[str]:
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    return re.findall(r"^(#+) ", prose, re.MULTILINE)


def names(page: str) -> set[str]:
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    return set(re.findall(r"`([^`\n]+)`", prose))
