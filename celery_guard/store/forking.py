"""No SQLite connection is open while the process forks.

SQLite keeps the lock state of a file per process, and a fork copies it: a child forked while another thread was writing
would see the database locked for good, whatever connections it opens itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from weakref import WeakSet

__all__ = ["ForkGate"]

_gates: WeakSet[ForkGate] = WeakSet()

#: How long a fork waits for a statement of another thread, in seconds.
_PATIENCE = 20.0


class ForkGate:
    """A lock that statements hold, and a fork waits for.

    Args:
        close: closes the connections of this process.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._lock = threading.RLock()
        self._close = close
        _gates.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()

    def before_fork(self) -> None:
        """Wait for the statement that runs, and close the connections."""
        self._held = self._lock.acquire(timeout=_PATIENCE)
        if self._held:
            self._close()

    def after_fork_in_parent(self) -> None:
        """Let statements run again."""
        if self._held:
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """Begin with a lock of our own: the thread that held the copied one does not exist here."""
        self._lock = threading.RLock()


def _for_all(step: Callable[[ForkGate], None]) -> Callable[[], None]:
    def take() -> None:
        for gate in list(_gates):
            step(gate)

    return take


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_for_all(ForkGate.before_fork),
        after_in_parent=_for_all(ForkGate.after_fork_in_parent),
        after_in_child=_for_all(ForkGate.after_fork_in_child),
    )
