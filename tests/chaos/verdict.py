"""What became of all: read from the table, from the database's own history, and from what the bodies wrote."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from celery_guard.core.states import MOVES, State
from celery_guard.store.database import Database
from tests.chaos.arena import Arena, Freeze
from tests.chaos.cast import Role


@dataclass(frozen=True)
class Body:
    """One body: who ran it, and from when until when as far as is known."""

    run: str
    attempt: int
    pid: int
    begin: float
    end: float | None
    done: bool


@dataclass
class Verdict:
    """What is to be said at the end; the lists must be empty."""

    figures: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    overlapping: list[str] = field(default_factory=list)
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def is_clean(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.stuck or self.wrong or self.overlapping)

    def lines(self) -> Iterator[str]:
        """Say it, a line per kind."""
        for name, count in self.figures.items():
            yield f"{name:34} {count:6}"
        for name in ("lost", "stuck", "wrong", "overlapping"):
            found = getattr(self, name)
            yield f"{name:34} {len(found):6}"
            yield from (f"    {line}" for line in found[:20])
        yield "; ".join(f"{kind} {ending}: {count}" for (kind, ending), count in sorted(self.kinds.items()))


def bodies(folder: Path) -> list[Body]:
    """Read what the bodies wrote, in the order in which they began."""
    path = folder / "effects"
    begun: dict[tuple[str, int, int], Body] = {}
    found: list[Body] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        what, run, attempt, pid, moment = line.split()
        key, at = (run, int(attempt), int(pid)), float(moment)
        if what == "begin":
            if key in begun:  # the same process began the same attempt twice
                found.append(begun.pop(key))
            begun[key] = Body(*key, begin=at, end=None, done=False)
        elif key in begun:
            body = begun.pop(key)
            found.append(Body(body.run, body.attempt, body.pid, body.begin, at, what == "done"))
    return sorted([*found, *begun.values()], key=lambda body: body.begin)


def judge(arena: Arena, roles: Sequence[Role]) -> Verdict:
    """Say what became of guarded runs."""
    verdict = _figures(arena, roles)
    database = Database(arena.database_url)
    with database.connection() as connection:
        rows = {
            row[0]: row
            for row in connection.exec_driver_sql(
                "SELECT id, state, terminal_reason, attempt, owed, next_retry_at, publish_at, publishes, deadline_at,"
                " last_error FROM task_run"
            )
        }
        moves = connection.exec_driver_sql("SELECT run, was, became, attempt FROM history ORDER BY n").fetchall()
        lost = Counter(
            row[0] for row in connection.exec_driver_sql("SELECT error FROM task_attempt WHERE rule = 'worker_lost'")
        )
    database.close()
    by_run = _by_run(bodies(arena.folder))
    for role in roles:
        for run_id in role.ids:
            _judge_run(verdict, role, run_id, rows.get(run_id), by_run.get(run_id, []))
    verdict.wrong += [f"{run}: {was} -> {became} (attempt {attempt})" for run, was, became, attempt in _illegal(moves)]
    verdict.wrong += [f"{run_id}: a row that nobody submitted" for run_id in set(rows) - _ids(roles)]
    verdict.figures["attempts lost and made up for"] = sum(lost.values())
    verdict.figures["of them rescued by another worker"] = lost["its worker stopped beating"]
    return verdict


def judge_plain(arena: Arena, roles: Sequence[Role]) -> Verdict:
    """Say what became of plain Celery tasks: only the bodies know."""
    verdict = _figures(arena, roles)
    by_run = _by_run(bodies(arena.folder))
    for role in roles:
        for run_id in role.ids:
            done = sum(body.done for body in by_run.get(run_id, []))
            verdict.kinds[role.kind, f"{done} times"] += 1
            if role.works and not done:
                verdict.lost.append(f"{run_id} ({role.kind}): begun {len(by_run.get(run_id, []))} times")
    return verdict


def _figures(arena: Arena, roles: Sequence[Role]) -> Verdict:
    verdict, written = Verdict(), bodies(arena.folder)
    works = {run_id for role in roles if role.works for run_id in role.ids}
    done = Counter(body.run for body in written if body.done and body.run in works)
    verdict.figures["runs"] = len(_ids(roles))
    verdict.figures["kills and freezes"] = sum(arena.blows.values())
    verdict.figures["bodies begun"] = len(written)
    verdict.figures["runs whose work was done twice"] = sum(count > 1 for count in done.values())
    logs = "".join(worker.log() for worker in arena.workers)
    verdict.figures["duplicates dropped"] = len(re.findall(r"\] ignored$", logs, re.MULTILINE))
    for run, attempts in _by_run(written).items():
        for first, second in _overlaps(attempts):
            told = f"{run}: attempt {first.attempt} ({first.pid}) and attempt {second.attempt} ({second.pid})"
            if _was_frozen(first, second, arena.freezes):
                verdict.figures["frozen bodies that woke up late"] += 1
            else:
                verdict.overlapping.append(
                    f"{told}: {second.begin - first.begin:.2f} s in, for"
                    f" {min(first.end or 0, second.end or 1e9) - second.begin:.2f} s"
                )
    return verdict


def _judge_run(verdict: Verdict, role: Role, run_id: str, row: Sequence[object] | None, written: list[Body]) -> None:
    if row is None:
        verdict.lost.append(f"{run_id} ({role.kind}): it has no row")
        return
    _, state, reason, attempt, owed, *_ = row
    verdict.kinds[role.kind, str(state)] += 1
    if reason is None or owed:
        verdict.stuck.append(f"{run_id} ({role.kind}): {row[1:]}")
        return
    if (state, reason) not in role.endings:
        verdict.wrong.append(f"{run_id} ({role.kind}): {row[1:]}")
    if state == "succeeded" and not any(body.done and body.attempt == attempt for body in written):
        verdict.wrong.append(f"{run_id} ({role.kind}): succeeded, and no body of attempt {attempt} did its work")
    begun = Counter(body.attempt for body in written)
    if any(count > 1 for count in begun.values()) or any(number > attempt for number in begun):
        verdict.wrong.append(f"{run_id} ({role.kind}): {attempt} attempts, and bodies of {sorted(begun.elements())}")


def _illegal(moves: Sequence[tuple[str, str | None, str, int]]) -> Iterator[tuple[str, str | None, str, int]]:
    attempts: Counter[str] = Counter()
    for run, was, became, attempt in moves:
        if became == State.RUNNING:
            attempts[run] += 1
        legal = became == State.QUEUED if was is None else State(became) in MOVES[State(was)]
        if not legal or attempt != attempts[run]:
            yield run, was, became, attempt


def _by_run(written: Sequence[Body]) -> Mapping[str, list[Body]]:
    found: dict[str, list[Body]] = defaultdict(list)
    for body in written:
        found[body.run].append(body)
    return found


def _overlaps(attempts: Sequence[Body]) -> Iterator[tuple[Body, Body]]:
    for position, first in enumerate(attempts):
        for second in attempts[position + 1 :]:
            if first.end is not None and second.begin < first.end:
                yield first, second


def _was_frozen(first: Body, second: Body, freezes: Sequence[Freeze]) -> bool:
    """Whether the whole worker of the earlier body stood still before the later one began."""
    return any(
        freeze.whole and freeze.pid == first.pid and freeze.begin <= second.begin and freeze.end >= first.begin
        for freeze in freezes
    )


def _ids(roles: Sequence[Role]) -> set[str]:
    return {run_id for role in roles for run_id in role.ids}
