"""A short chaos run; ``make chaos`` makes long ones."""

from __future__ import annotations

import pytest

from tests.chaos.run import run
from tests.infra import servers


@pytest.mark.timeout(300)
def test_every_run_ends_as_it_must_while_everything_is_killed_and_frozen():
    try:
        verdict = run(140, "redis", 4, pace=4)
    except servers.MissingServer as missing:
        (pytest.fail if servers.IN_CI else pytest.skip)(str(missing))

    print(*verdict.lines(), sep="\n")
    assert verdict.is_clean
    assert verdict.figures["runs"] >= 140
    assert verdict.figures["attempts lost and made up for"] > 0
