"""What the benchmarks say of measured rounds."""

from __future__ import annotations

from benchmarks.report import tables


def a_turn(system: str, number: int, **rates: float) -> dict[str, object]:
    return {"system": system, "round": number, **{part: {"rate": rate} for part, rate in rates.items()}}


def test_a_ratio_compares_within_a_round_and_is_the_median_over_rounds() -> None:
    turns = [
        *(a_turn("celery", number, drain=drain) for number, drain in enumerate((1_000, 500, 2_000))),
        *(a_turn("guarded", number, drain=drain) for number, drain in enumerate((700, 400, 1_500))),
    ]

    text = tables({"turns": turns})

    assert "| guarded | - | - | - | - | 700 | 0.75 | - | - |" in text


def test_a_system_that_failed_is_named_with_its_error() -> None:
    text = tables({"turns": [{"system": "dbos", "round": 0, "error": "it is not installed"}]})

    assert "FAILED: dbos: it is not installed" in text
