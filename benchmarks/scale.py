"""What a statement costs with few rows and with many: ``python -m benchmarks.scale --rows 10000,1000000``.

Rows are made inside the database: all but a few have ended, as in a real one, over the days that they are kept. What is
taken is the CPU time of the server's process, and the pages that it touched: other work on the machine changes neither.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import Servers
from benchmarks.servers import servers

#: Rows that are alive while the statements are timed, whatever the table holds: a third each queued, waiting, running.
LIVE = 3_000

_ENDED = """
INSERT INTO task_run (
    id, namespace, type, queue, payload, options, state, terminal_reason, attempt, max_attempts, deadline_at, publishes,
    owed, claim_token, worker_id, fingerprint, created_at, updated_at, started_at, finished_at, result)
SELECT 'ended-' || lpad(n::text, 12, '0'), 'bench', 'job', 'celery', '[[1], {{}}]', '{{"serializer": "json"}}',
    'succeeded', 'succeeded', 1, 5, at + interval '1 day', 0, false, '0123456789abcdef', 'worker-' || n % 16,
    'p:' || md5(n::text), at, at, at, at, 'null'
FROM (
    SELECT n, clock_timestamp() - interval '7 days' * n / {rows} AS at FROM generate_series({first}, {last}) AS n
) AS ended
"""

_LIVE = f"""
INSERT INTO task_run (
    id, namespace, type, queue, payload, options, state, attempt, max_attempts, deadline_at, next_retry_at, publish_at,
    publishes, owed, claim_token, worker_id, fingerprint, created_at, updated_at, started_at)
SELECT 'live-' || n, 'bench', 'job', 'celery', '[[1], {{}}]', '{{"serializer": "json"}}',
    (ARRAY['queued', 'retrying', 'running'])[n % 3 + 1], 1, 5, at + interval '1 day',
    CASE n % 3 WHEN 1 THEN at + interval '1 hour' END, CASE WHEN n % 3 < 2 THEN at + interval '1 hour' END,
    CASE n % 3 WHEN 0 THEN 1 ELSE 0 END, false, CASE n % 3 WHEN 2 THEN 'token-' || n END, 'worker-' || n % 16,
    'p:' || md5(n::text), at, at, at
FROM (SELECT n, clock_timestamp() AS at FROM generate_series(1, {LIVE}) AS n) AS live
"""

#: What is too dear to be timed so often.
RARE = {"metrics: live runs", "prune a batch of 500"}

_STATISTICS = "FROM stats.pg_stat_statements WHERE query LIKE '%task_run%' OR query LIKE '%task_attempt%'"


class Cost(NamedTuple):
    """Milliseconds of CPU, and pages touched, per call."""

    ms: float
    pages: float


Verbs = dict[str, Callable[[int], Any]]


def main() -> None:
    """Print milliseconds and pages, one column per size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--rows", default="10000,1000000", help="sizes, rising; ten million take about 9 GB of disk")
    parser.add_argument("--times", type=int, default=500)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    sizes = [int(size) for size in asked.rows.split(",")]
    found: dict[str, dict[int, Cost]] = {}
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as (postgres, redis):
        both = Servers(postgres, redis)
        both.empty()
        have = 0
        for size in sizes:
            _fill(both, postgres, have, size)
            have = size
            for name, cost in _costs(both, postgres, asked.times).items():
                found.setdefault(name, {})[size] = cost
                print(f"{size:,} rows: {name}: {cost.ms:.3f} ms, {cost.pages:.0f} pages", flush=True)
    _show(sizes, found)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))


def _show(sizes: list[int], found: dict[str, dict[int, Cost]]) -> None:
    print("\n| ms (pages) | " + " | ".join(f"{size:,} rows" for size in sizes) + " | last / first |")
    print("|---" * (len(sizes) + 2) + "|")
    for name, costs in found.items():
        cells = [f"{costs[size].ms:.3f} ({costs[size].pages:.0f})" for size in sizes]
        print(f"| {name} | {' | '.join(cells)} | {costs[sizes[-1]].ms / costs[sizes[0]].ms:.2f} |")


def _fill(both: Servers, url: str, have: int, rows: int) -> None:
    if have == 0:
        from celery_guard.store.migrations import migrate

        migrate(_database(url))
    else:
        both.sql("DELETE FROM task_run WHERE id NOT LIKE 'ended-%'")
    for first in range(have + 1, rows + 1, 500_000):
        both.sql(_ENDED.format(rows=rows, first=first, last=min(first + 499_999, rows)))
    both.sql(_LIVE)
    both.sql("VACUUM ANALYZE")
    both.sql("CHECKPOINT")


def _database(url: str) -> Any:
    from celery_guard.store.database import Database

    # What the log costs is the same with any number of rows, and would hide what is not. One connection: it is watched.
    options = {"connect_args": {"options": "-c synchronous_commit=off"}, "pool_size": 1}
    return Database(url.replace("postgresql://", "postgresql+psycopg2://", 1), options)


def _costs(both: Servers, url: str, times: int) -> dict[str, Cost]:
    """Return what each verb costs; what is due at each tick is nothing."""
    database = _database(url)
    connection = database.engine.raw_connection()
    cursor = connection.cursor()
    cursor.execute("SELECT pg_backend_pid()")
    clock = Path(f"/proc/{cursor.fetchone()[0]}/schedstat")
    connection.close()
    found = {}
    for name, verb in _verbs(database).items():
        calls = 5 if name in RARE else times
        verb(-1)  # plans, caches
        both.sql("SELECT stats.pg_stat_statements_reset()")
        before = _nanoseconds(clock)
        for number in range(calls):
            verb(number)
        after = _nanoseconds(clock)
        pages = both.sql(f"SELECT sum(shared_blks_hit + shared_blks_read) {_STATISTICS}")[0][0]
        found[name] = Cost((after - before) / calls / 1e6, float(pages) / calls)
    return found


def _nanoseconds(clock: Path) -> int:
    return int(clock.read_text().split()[0])


def _verbs(database: Any) -> Verbs:
    from celery_guard.core.decide import Finish
    from celery_guard.core.states import Reason, State
    from celery_guard.store.records import NewRun
    from celery_guard.store.runs import RunStore
    from celery_guard.store.tallies import TallyStore

    runs, claims = RunStore(database, "bench"), {}
    success = Finish(State.SUCCEEDED, Reason.SUCCEEDED)
    too_late = Finish(State.DEAD, Reason.FAILED_DUE_DEADLINE)

    def submit(number: int) -> None:
        new = NewRun(
            f"new-{number}", "bench", "job", "celery", "[[1], {}]", "{}", "p:0", 5, deadline_after=9e4, lease=60
        )
        assert runs.submit(new)

    def claim(number: int) -> None:
        claims[number] = runs.claim(f"new-{number}", "token", worker_id="worker-1", fingerprint="p:0")

    def settle(number: int) -> None:
        assert runs.settle(claims[number].claim, success, result="null")

    return {
        "submit": submit,
        "claim": claim,
        "settle": settle,
        "look one up": lambda number: runs.find(f"new-{number}"),
        "idle tick: due rows": lambda number: runs.take_due(limit=200, lease=20),
        "idle tick: deadlines passed": lambda number: runs.finish_expired(too_late, limit=200),
        "idle tick: overdue bodies": lambda number: runs.overdue(timedelta(seconds=5), limit=200),
        "idle tick: followers": lambda number: runs.follow(limit=200),
        "lost messages": lambda number: runs.waiting(reserved=[], on_its_way=2.0),
        "rows of a stale worker": lambda number: runs.running_on("worker-1"),
        "metrics: live runs": lambda number: TallyStore(database, "bench").live(),
        "prune a batch of 500": lambda number: runs.prune(
            State.SUCCEEDED, timedelta(days=6), timedelta(days=6), limit=500
        ),
    }


if __name__ == "__main__":
    main()
