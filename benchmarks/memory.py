"""Whether a worker's memory stays flat: ``python -m benchmarks.memory --runs 20000``."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.environment import count
from benchmarks.machine import Servers
from benchmarks.servers import servers

#: How many times the memory is read while the runs go by.
READINGS = 10


def main() -> None:
    """Print the memory of the main process and of the children, in MiB, as the runs go by."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--system", default="guarded")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as (postgres, redis):
        marks = Path(folder) / "marks"
        marks.mkdir()
        Servers(postgres, redis).empty()
        env = {**os.environ, "BENCH_POSTGRES": postgres, "BENCH_REDIS": redis, "BENCH_MARKS": str(marks)}
        _step(env, asked.system, "setup", 0).wait()
        worker = _step(env, asked.system, "worker", 0)
        try:
            _watch(worker.pid, env, asked.system, asked.runs, marks)
        finally:
            os.killpg(worker.pid, signal.SIGTERM)
            worker.wait()


def _step(env: dict[str, str], system: str, step: str, number: int) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [sys.executable, "-m", "benchmarks.step", system, step, str(number)]
    return subprocess.Popen(command, env=env, text=True, start_new_session=True, **pipes)


def _watch(worker: int, env: dict[str, str], system: str, runs: int, marks: Path) -> None:
    part, done = runs // READINGS, 0
    print("runs | main process | children")
    for _ in range(READINGS):
        sender = _step(env, system, "submit", part - 20)  # which sends 20 more to warm up
        sender.communicate("\n")
        done += part
        while count(marks) < done:
            time.sleep(0.05)
        main = psutil.Process(worker)
        children = [child.memory_info().rss for child in main.children()]
        print(
            f"{done} | {main.memory_info().rss / 2**20:.1f} | {sum(children) / len(children) / 2**20:.1f}", flush=True
        )


if __name__ == "__main__":
    main()
