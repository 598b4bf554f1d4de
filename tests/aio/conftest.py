"""Coroutines in this process, and on real workers that serve a whole module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.flow import conftest as flow
from tests.flow.conftest import (
    _apps_of_their_own as _apps_of_their_own,
    any_shop as any_shop,
    clock as clock,
    one_database as one_database,
    postgres_url as postgres_url,
    shop as shop,
)
from tests.flow.seams import Shop
from tests.intent.conftest import (
    _logs as _logs,
    set_stage as set_stage,
    stage_database as stage_database,
    start_worker as start_worker,
)

open_timeless_shop = flow.open_shop


@pytest.fixture
def open_shop(open_timeless_shop: Callable[..., Shop]) -> Callable[..., Shop]:
    """Make apps whose database's clock is the real one: a coroutine is stopped when its time has really passed."""

    def start(**conf: Any) -> Shop:
        shop = open_timeless_shop(**conf)
        shop.guard.database.clock = None
        return shop

    return start
