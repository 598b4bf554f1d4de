"""Coroutines in this process, and on real workers that serve a whole module."""

from __future__ import annotations

from tests.flow.conftest import (
    _apps_of_their_own as _apps_of_their_own,
    any_shop as any_shop,
    clock as clock,
    one_database as one_database,
    open_shop as open_shop,
    postgres_url as postgres_url,
    shop as shop,
)
from tests.intent.conftest import (
    _logs as _logs,
    set_stage as set_stage,
    stage_database as stage_database,
    start_worker as start_worker,
)
