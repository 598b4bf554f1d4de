"""What the driver and the processes of each system agree on: where the servers are, and where a job leaves its mark."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

#: Runs sent before each measured part, with this argument, to connect and to warm up.
WARM_UP, WARM = 20, -1

#: The databases of Redis that are emptied and used: for messages, and for results.
MESSAGES, RESULTS = 5, 6

_MARK = struct.Struct("<qq")
_open: tuple[int, int] | None = None


def postgres(driver: str = "") -> str:
    """Return the URL of the database, for SQLAlchemy with a driver and for others without."""
    return os.environ["BENCH_POSTGRES"].replace("postgresql://", f"postgresql{driver and '+'}{driver}://", 1)


def redis(number: int = MESSAGES) -> str:
    """Return the URL of one of Redis's databases."""
    return f"{os.environ['BENCH_REDIS']}/{number}"


def job(number: int) -> None:
    """Be the task that every system runs: note that it began, then take as long as asked."""
    global _open
    began = time.time_ns()
    if _open is None or _open[0] != os.getpid():
        path = Path(os.environ["BENCH_MARKS"]) / str(os.getpid())
        _open = os.getpid(), os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(_open[1], _MARK.pack(number, began))
    if pause := float(os.environ.get("BENCH_WORK", "0")):
        time.sleep(pause)


def marks(folder: Path) -> Iterator[tuple[int, int]]:
    """Return what jobs noted: their argument, and when they began in nanoseconds."""
    for path in folder.iterdir():
        yield from _MARK.iter_unpack(path.read_bytes())


def count(folder: Path) -> int:
    """Return how many jobs have begun."""
    return sum(path.stat().st_size for path in folder.iterdir()) // _MARK.size
