"""No thread of ours is in the middle of something while the process forks.

A fork copies locks as they are, held by threads that do not exist in the child. SQLite keeps the lock state of a file
per process, so a child forked while another thread was writing would see the database locked for good; libraries hold
locks of their own while they connect or compute a cached property.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from weakref import WeakSet

__all__ = ["ForkGate"]

_gates: WeakSet[ForkGate] = WeakSet()


class ForkGate:
    """A lock that a thread's work holds, and a fork waits for.

    Args:
        close: closes what must not be open across a fork.
        patience: how long a fork waits, in seconds; then it goes on regardless.
        is_outer: whether work that holds this gate may wait for others, which a fork then passes after this one.
    """

    def __init__(
        self, close: Callable[[], None] | None = None, patience: float = 20.0, *, is_outer: bool = False
    ) -> None:
        self._lock = threading.RLock()
        self._close = close
        self._patience = patience
        self._held = False
        self.rank = 0 if is_outer else 1
        _gates.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()

    def before_fork(self) -> None:
        """Wait for the work that runs."""
        self._held = self._lock.acquire(timeout=self._patience)
        if self._held and self._close is not None:
            self._close()

    def after_fork_in_parent(self) -> None:
        """Let the work go on."""
        if self._held:
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """Begin with a lock of our own: the thread that held the copied one does not exist here."""
        self._lock = threading.RLock()


def _for_all(step: Callable[[ForkGate], None]) -> Callable[[], None]:
    def take() -> None:
        for gate in sorted(_gates, key=lambda gate: gate.rank):
            step(gate)

    return take


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_for_all(ForkGate.before_fork),
        after_in_parent=_for_all(ForkGate.after_fork_in_parent),
        after_in_child=_for_all(ForkGate.after_fork_in_child),
    )
