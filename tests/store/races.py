"""Let several threads or processes do something at the same moment."""

from __future__ import annotations

import os
import pickle
import select
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

T = TypeVar("T")

#: A fork while other threads run is just what some tests are about; newer Pythons warn of it.
FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def at_once(*works: Callable[[], T]) -> list[T]:
    """Run each in a thread of its own, all from one barrier, and return what they returned."""
    barrier = threading.Barrier(len(works))

    def one(work: Callable[[], T]) -> T:
        barrier.wait(10)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(one, works))


def in_forks(count: int, work: Callable[[], T], *, within: float = 60.0) -> list[T]:
    """Run the same in several forked processes, all from one barrier, and return what they returned."""
    barrier, start = os.pipe()
    answers = [_fork(work, barrier, start) for _ in range(count)]
    os.close(barrier)
    os.close(start)  # the end of the pipe is what all of them wait for
    return [_answer(pid, reader, within) for pid, reader in answers]


def in_a_fork(work: Callable[[], T], *, within: float = 60.0) -> T:
    """Run something in a forked process and return what it returned."""
    return in_forks(1, work, within=within)[0]


def _fork(work: Callable[[], T], barrier: int, start: int) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        os.close(start)
        os.read(barrier, 1)
        answer: object = (True, work())
    except BaseException as error:  # whatever it is belongs to the parent's test
        answer = (False, repr(error))
    try:
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(answer, pipe)
    finally:
        os._exit(0)


def _answer(pid: int, reader: int, within: float) -> T:  # type: ignore[type-var]
    with os.fdopen(reader, "rb") as pipe:
        ready, _, _ = select.select([pipe], [], [], within)
        if not ready:
            os.kill(pid, 9)
        data = pipe.read()
    os.waitpid(pid, 0)
    assert data, f"a forked process gave no answer within {within} s"
    fine, answer = pickle.loads(data)
    assert fine, f"a forked process failed: {answer}"
    return answer  # type: ignore[no-any-return]
