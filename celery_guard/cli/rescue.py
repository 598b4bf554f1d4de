"""``guard rescue``."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

import click

from celery_guard.cli.access import guard_for
from celery_guard.cli.output import JSON, print_json, progress

if TYPE_CHECKING:
    from celery_guard.flow.guard import Guard

__all__ = ["rescue"]


@dataclass
class Rescued:
    """What was found and done."""

    workers_seen: int = 0
    workers_gone: int = 0
    attempts_ended: int = 0
    expired_ended: int = 0


@click.command(
    help="Do what workers do for each other: end the attempts of workers that stopped beating, and runs whose deadline"
    " has passed. It watches for guard_rescue_after before it calls a worker gone."
)
@click.option("--once", is_flag=True, help="Watch once, then exit; without it, go on until stopped.")
@JSON
@click.pass_context
def rescue(ctx: click.Context, once: bool, as_json: bool) -> None:
    """Rescue what nobody else is there to rescue."""
    from celery_guard.errors import StoreUnavailable

    guard = guard_for(ctx, tasks=True)
    round_ = Round(guard)
    try:
        while True:
            try:
                rescued = round_.watch()
            except StoreUnavailable as away:
                if once:
                    raise
                click.echo(f"the store is away: {away}", err=True)
                round_ = Round(guard)
                time.sleep(round_.pause)
                continue
            if once or rescued.workers_gone or rescued.expired_ended:
                _report(rescued, as_json)
            if once:
                return
    finally:
        round_.leave()


class Round:
    """One observer: it beats itself, and accuses others only of what it saw while its own beats came through."""

    def __init__(self, guard: Guard) -> None:
        from celery_guard.flow.rescue import Rescuer
        from celery_guard.flow.sweep import Sweeper

        self.guard = guard
        self.rescue_after = guard.settings.rescue_after.total_seconds()
        self.pause = self.rescue_after / 4
        # no worker's id sorts behind this one: workers give duties to the first among them
        self.id = guard.worker_id = f"rescue-{uuid4().hex}"
        self._rescuer = Rescuer(guard)
        self._sweeper = Sweeper(guard)

    def watch(self) -> Rescued:
        """Watch for as long as a worker may be silent; end what is to be ended."""
        rescued, observed, seen = Rescued(), 0.0, set[str]()
        last: float | None = None
        while True:
            self._beat()
            rescued.expired_ended += self._sweeper.waiting() + self._sweeper.running()
            self._sweeper.followers()
            now = time.monotonic()
            observed += 0.0 if last is None else min(now - last, self._rescuer.watch.at_most)
            last = now
            beats = [beat for beat in self.guard.workers.alive() if beat.worker_id != self.id]
            seen |= {beat.worker_id for beat in beats}
            rescued.attempts_ended += self._rescuer.rescue(beats, monotonic=now)
            rescued.attempts_ended += self._rescuer.take_over(monotonic=now)
            if observed >= self.rescue_after:
                break
            progress(f"watching {len(beats)} workers, {max(0.0, self.rescue_after - observed):.0f} s to go")
            time.sleep(min(self.pause, self.rescue_after - observed + 0.01))
        progress("")
        left = {beat.worker_id for beat in self.guard.workers.alive()}
        rescued.workers_seen, rescued.workers_gone = len(seen), len(seen - left)
        return rescued

    def leave(self) -> None:
        """Be no observer any more."""
        from celery_guard.errors import StoreUnavailable

        with suppress(StoreUnavailable):  # else others will see that it beats no more
            self.guard.workers.stop(self.id)
        self.guard.worker_id = None

    def _beat(self) -> None:
        self.guard.workers.beat(self.id, host=socket.gethostname(), pid=os.getpid(), reserved=())


def _report(rescued: Rescued, as_json: bool) -> None:
    if as_json:
        print_json(vars(rescued))
        return
    click.echo(
        f"{rescued.workers_seen} workers seen, {rescued.workers_gone} of them gone; {rescued.attempts_ended} attempts"
        f" of theirs ended, and {rescued.expired_ended} runs whose deadline had passed"
    )
