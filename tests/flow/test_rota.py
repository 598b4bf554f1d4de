"""What comes round in a worker comes round as often as it should, and never all at once."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest

from celery_guard.flow.rota import Duty, Rota


class Watched:
    """A rota whose clock stands still while it works, and which notes when each duty was done."""

    def __init__(self, every: Mapping[str, float], *, tick_every: float) -> None:
        self.now = 0.0
        self.done: dict[str, list[float]] = {name: [] for name in every}
        self.has_more: set[str] = set()
        duties = [Duty(lambda name=name: self._note(name), seconds) for name, seconds in every.items()]
        self.rota = Rota(duties, tick_every=tick_every)

    def _note(self, name: str) -> bool:
        self.done[name].append(self.now)
        return name in self.has_more

    def run(self, *, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.rota.tick(self.now)
            self.now = self.rota.next_tick(self.now)

    def longest_wait(self, name: str) -> float:
        return max(later - earlier for earlier, later in pairwise([0.0, *self.done[name], self.now]))


@pytest.mark.parametrize(
    ("tick", "beat"),
    [
        pytest.param(1.0, 5.0, id="by-default"),
        pytest.param(1.0, 1.0, id="a-beat-per-tick"),
        pytest.param(1.0, 0.5, id="two-beats-per-tick"),
        pytest.param(0.1, 1.0, id="fast-ticks"),
        pytest.param(5.0, 5.0, id="slow-ticks"),
    ],
)
def test_each_duty_comes_round_within_a_tick_of_when_it_is_due(tick, beat):
    every = {"waiting": tick, "running": tick, "followers": 2 * tick}
    every |= dict.fromkeys(("permits", "rescue", "audit", "lost"), beat)
    every |= {"prune": 15.0, "workers": 600.0}
    watched = Watched(every, tick_every=tick)

    watched.run(seconds=1_300)

    late = {name: watched.longest_wait(name) - seconds for name, seconds in every.items()}
    assert {name: seconds for name, seconds in late.items() if seconds > 1.01 * tick} == {}


def test_two_at_most_are_done_at_once():
    watched = Watched(dict.fromkeys("abcdefg", 1.0), tick_every=1.0)

    watched.run(seconds=60)

    moments = [moment for done in watched.done.values() for moment in done]
    assert max(map(moments.count, moments)) == 2


def test_ticks_are_no_closer_than_a_quarter_and_no_further_apart_than_what_was_said():
    busy, idle = Watched(dict.fromkeys("abcdefghijk", 0.1), tick_every=1.0), Watched({"a": 60.0}, tick_every=1.0)

    busy.run(seconds=10)
    assert sorted({moment for done in busy.done.values() for moment in done}) == [tick / 4 for tick in range(40)]

    idle.rota.tick(0.0)
    assert idle.rota.next_tick(0.0) == 1.0


def test_a_duty_with_more_to_do_goes_on_at_the_next_tick():
    watched = Watched({"prune": 15.0}, tick_every=1.0)
    watched.has_more = {"prune"}

    watched.run(seconds=3)
    watched.has_more.clear()
    watched.run(seconds=20)

    assert watched.done["prune"] == [0.0, 1.0, 2.0, 3.0, 18.0]
