"""Names of parametrized tests, the same in every process that collects them."""

from __future__ import annotations

import re


def shown(value: object) -> str:
    """Return the ``repr`` of a value without memory addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
