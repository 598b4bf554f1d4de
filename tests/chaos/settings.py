"""What driver and workers of a chaos run share through the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

#: A Celery configuration as JSON, the folder for what bodies did, whether this is a worker, and whether it is plain.
CONF, FOLDER, IN_WORKER, PLAIN = "CHAOS_CONF", "CHAOS_FOLDER", "CHAOS_IN_WORKER", "CHAOS_PLAIN"

#: How long a worker may stand still before others take it for dead, in seconds.
RESCUE_AFTER = 5

#: The same broker options for both worlds. Copies of what a dead worker held come back within seconds.
REDIS = {"visibility_timeout": 15, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
RABBITMQ = {"confirm_publish": True}

COMMON: Mapping[str, Any] = {
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "worker_prefetch_multiplier": 2,
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "worker_send_task_events": False,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "result_backend": None,
}

GUARDED: Mapping[str, Any] = {
    "guard_heartbeat_interval": 1,
    "guard_rescue_after": RESCUE_AFTER,
    "guard_dispatch_interval": 0.3,
    "guard_backoff_base": 0.3,
    "guard_backoff_cap": 2,
    "guard_deadline_grace": 1,
}


def configuration() -> dict[str, Any]:
    """Read the configuration that the driver wrote into the environment."""
    return dict(json.loads(os.environ[CONF]))
