"""One system's turn: submit, drain, submit in bulk, latency; each part in fresh tables and fresh processes."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.environment import WARM_UP, count, marks
from benchmarks.machine import Servers, spent, wait_for_quiet
from benchmarks.systems import System

#: Jobs whose latency is taken.
LATENCIES = 200

#: Seconds that a part may take.
LIMIT = 180


class Turn:
    """One system, once.

    Args:
        servers: where it runs.
        name: what it is called.
        system: what it is.
        runs: how many jobs are asked for.
        work: how long each job takes, in seconds.
        patience: how long to wait for a quiet machine before each part, in seconds.
    """

    def __init__(
        self, servers: Servers, name: str, system: System, *, runs: int, work: float, patience: float, folder: Path
    ) -> None:
        self.servers, self.name, self.system, self.work = servers, name, system, work
        self.runs, self.patience, self.folder = max(100, int(runs * system.share)), patience, folder

    def all(self, parts: list[str]) -> dict[str, Any]:
        """Return what was measured of each part that the system has."""
        found: dict[str, Any] = {"system": self.name, "runs": self.runs, "work": self.work}
        wanted = [part for part in parts if part in self.system.parts]
        if {"submit", "drain"} & set(wanted):
            self._begin()
            found["submit"] = self._send("submit", self.runs)
            if "drain" in wanted:
                found["drain"] = self._drain()
        if "bulk" in wanted:
            self._begin()
            found["bulk"] = self._send("bulk", self.runs)
        if "latency" in wanted:
            self._begin()
            found["latency"] = self._latency()
        return found

    def _begin(self) -> None:
        self.servers.empty()
        self.marks = Path(tempfile.mkdtemp(dir=self.folder))
        if self._step("setup", 0).wait():
            raise RuntimeError(f"setup failed: {self._log('setup').read_text()[-2000:]}")

    def _log(self, step: str) -> Path:
        return self.folder / f"{self.name}.{step}.log"

    def _step(self, step: str, number: int, **pipes: Any) -> subprocess.Popen[str]:
        env = {
            **os.environ,
            "BENCH_POSTGRES": self.servers.postgres_url,
            "BENCH_REDIS": self.servers.redis_url,
            "BENCH_MARKS": str(self.marks),
            "BENCH_RUNS": str(self.runs),
            "BENCH_WORK": str(self.work),
            "PYTHONWARNINGS": "ignore",
        }
        command = [sys.executable, "-m", "benchmarks.step", self.name, step, str(number)]
        with self._log(step).open("a") as log:
            pipes = {"stdout": log, "stdin": subprocess.DEVNULL, **pipes}
            return subprocess.Popen(command, env=env, stderr=log, start_new_session=True, text=True, **pipes)

    def _send(self, step: str, number: int) -> dict[str, Any]:
        sender = self._step(step, number, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert sender.stdin is not None
        assert sender.stdout is not None
        while (line := sender.stdout.readline()).strip() not in ("ready", ""):
            pass
        if not line:
            raise RuntimeError(f"{step} failed: {self._log(step).read_text()[-2000:]}")
        loop = wait_for_quiet(self.patience)
        self.servers.reset()
        counted, cpu, began = self.servers.counted(), self.servers.cpu({sender.pid}), time.time()
        sender.stdin.write("\n")
        sender.stdin.flush()
        answer = sender.stdout.readline()
        after, took = self.servers.cpu(set()), time.time() - began
        if not answer:
            raise RuntimeError(f"{step} failed: {self._log(step).read_text()[-2000:]}")
        answer = json.loads(answer)
        sender.wait()
        after["system"] = cpu["system"] + answer["cpu"]
        return {
            **answer,
            "rate": number / answer["seconds"],
            "cpu": spent(cpu, after, took, number),
            "loop": loop,
            **self._counts(counted, number),
        }

    def _counts(self, before: dict[str, float], runs: int) -> dict[str, float]:
        if self.system.settled is None:
            return {}
        time.sleep(0.6)
        return {name: (value - before[name]) / runs for name, value in self.servers.counted().items()}

    @contextmanager
    def _workers(self) -> Iterator[set[int]]:
        workers = [self._step("worker", number) for number in range(self.system.workers)]
        try:
            yield {worker.pid for worker in workers}
        finally:
            for worker in workers:
                os.killpg(worker.pid, signal.SIGTERM)
            until = time.monotonic() + 10
            for worker in workers:
                try:
                    worker.wait(max(0.1, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    os.killpg(worker.pid, signal.SIGKILL)
                    worker.wait()

    def _await(self, number: int) -> None:
        until = time.monotonic() + LIMIT
        while count(self.marks) < number:
            if time.monotonic() > until:
                raise RuntimeError(
                    f"{count(self.marks)} of {number} jobs ran: {self._log('worker').read_text()[-2000:]}"
                )
            time.sleep(0.01)

    def _drain(self) -> dict[str, Any]:
        total = self.runs + WARM_UP
        self.servers.sql("VACUUM ANALYZE")  # as autovacuum would have
        loop = wait_for_quiet(self.patience)
        self.servers.reset()
        counted = self.servers.counted()
        with self._workers() as sessions:
            self._await(1)
            cpu, began = self.servers.cpu(sessions), time.time()
            self._await(total)
            self._await_settled(total)
            after, took = self.servers.cpu(sessions), time.time() - began
        found = sorted(marks(self.marks), key=lambda mark: mark[1])
        seen = sorted(number for number, _ in found if number >= 0)
        return {
            "rate": (total - 1) / ((found[-1][1] - found[0][1]) / 1e9),
            "cpu": spent(cpu, after, took, total),
            "each_once": seen == list(range(self.runs)),
            "loop": loop,
            **self._counts(counted, total),
        }

    def _await_settled(self, total: int) -> None:
        until = time.monotonic() + LIMIT
        while self.system.settled and self.servers.sql(f"/* driver */ {self.system.settled}")[0][0] < total:
            if time.monotonic() > until:
                raise RuntimeError("not every job has ended")
            time.sleep(0.02)

    def _latency(self) -> dict[str, Any]:
        with self._workers():
            time.sleep(2)
            sent = self._send("latency", LATENCIES)["sent"]
            self._await(WARM_UP + LATENCIES)
        began = {number: moment for number, moment in marks(self.marks) if number >= 0}
        taken = [(began[number] - moment) / 1e6 for number, moment in enumerate(sent)]
        points = statistics.quantiles(taken, n=100)
        return {"p50": points[49], "p95": points[94]}
