"""Wait for what other processes do, with a limit and without fixed sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE = 0.02


def eventually(assertion: Callable[[], T], within: float = 10.0) -> T:
    """Call ``assertion`` until it neither raises ``AssertionError`` nor returns ``False``; return what it returned.

    When the time is up, the last ``AssertionError`` is the test's.
    """
    limit = time.monotonic() + within
    while True:
        try:
            found = assertion()
            assert found is not False, f"still not so after {within} s"
            return found
        except AssertionError:
            if time.monotonic() >= limit:
                raise
        time.sleep(PAUSE)
