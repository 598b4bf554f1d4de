"""Run guarded tasks, or the same ones in plain Celery, while everything around them is killed and frozen.

``python -m tests.chaos.run --runs 1000 --broker redis --seed 7``; the seed fixes what is submitted and what is done.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from contextlib import suppress

from celery_guard.errors import StoreUnavailable
from tests.chaos.arena import Arena, arena
from tests.chaos.cast import Cast
from tests.chaos.verdict import Verdict, bodies, judge, judge_plain

#: How many runs a second are submitted.
PACE = 4.0

#: How long runs may take to end once the chaos is over, in seconds.
CALM = 300.0


def run(runs: int, broker: str, seed: int, *, plain: bool = False, pace: float = PACE, quiet: bool = False) -> Verdict:
    """Let chaos reign while so many runs are submitted and executed; then say what became of them."""

    def say(text: str) -> None:
        if not quiet:
            print(text, flush=True)

    with arena(broker, seed, plain=plain) as stage:
        cast = Cast(random.Random(seed), plain=plain)
        submitting, begin = cast.enter(runs, runs / pace), time.monotonic()
        while submitting.is_alive():
            pause = time.monotonic() + stage.rng.uniform(0.3, 2.5)
            while time.monotonic() < pause:
                stage.catch_up()
                time.sleep(0.02)
            say(f"{time.monotonic() - begin:6.1f} s  {len(cast.ids):5} runs  {stage.blow()}")
        stage.heal()
        if cast.errors:
            raise cast.errors[0]
        say(f"{time.monotonic() - begin:6.1f} s  the chaos is over: {dict(stage.blows)}")
        (_wait_plainly if plain else _wait)(stage, cast)
        say(f"{time.monotonic() - begin:6.1f} s  all that will end has ended")
        return (judge_plain if plain else judge)(stage, cast.roles)


def _wait(stage: Arena, cast: Cast) -> None:
    """Wait until every run has ended and Celery was told, or the time is up."""
    from celery_guard.flow.guard import guard_of

    until, open_ = time.monotonic() + CALM, -1
    while open_ and time.monotonic() < until:
        stage.supervise()
        time.sleep(0.1)
        with suppress(StoreUnavailable), guard_of(cast.tasks.app).database.connection() as connection:
            rows, open_ = connection.exec_driver_sql(
                "SELECT count(*), count(*) FILTER (WHERE finished_at IS NULL OR owed) FROM task_run"
            ).one()
            open_ += max(len(set(cast.ids)) - rows, 0)  # a tail that has no row yet
    guard_of(cast.tasks.app).database.close()


def _wait_plainly(stage: Arena, cast: Cast) -> None:
    """Wait until nothing has happened for longer than the visibility timeout and the longest body."""
    works = {run_id for role in cast.roles if role.works for run_id in role.ids}
    until, seen, since = time.monotonic() + CALM, -1, time.monotonic()
    while time.monotonic() < min(until, since + 30):
        stage.supervise()
        written = bodies(stage.folder)
        if works <= {body.run for body in written if body.done}:
            return
        if len(written) != seen:
            seen, since = len(written), time.monotonic()
        time.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--broker", choices=["redis", "rabbitmq"], default="redis")
    parser.add_argument("--seed", type=int, default=None, help="chosen and printed when not given")
    parser.add_argument("--plain", action="store_true", help="the same bodies as plain Celery tasks")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"{given.runs} runs on {given.broker}, seed {seed}{', plain Celery' if given.plain else ''}", flush=True)
    verdict = run(given.runs, given.broker, seed, plain=given.plain)
    print(*verdict.lines(), sep="\n")
    return 0 if given.plain or verdict.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
