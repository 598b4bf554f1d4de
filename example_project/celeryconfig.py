"""Celery's configuration of the shop, read from the environment when the app is first used.

``SHOP_HOME``
    the working folder, ``./.demo`` by default.
``SHOP_BROKER_URL``
    such as ``redis://localhost/0``. By default messages are files in the working folder.
``SHOP_DATABASE_URL``
    such as ``postgresql+psycopg2://localhost/shop``. By default runs live in a SQLite file in the working folder.

The tasks themselves read ``SHOP_WORLD_URL``: where the partners answer, such as ``http://127.0.0.1:8000``.
"""

import os as _os

from example_project import folders as _folders

_home = _folders.home()
_home.mkdir(parents=True, exist_ok=True)
_broker = _os.environ.get("SHOP_BROKER_URL")

if _broker:
    broker_url = _broker
else:
    broker_url = "filesystem://localhost//"
    broker_transport = "celery_guard.embedded.broker:Transport"
    broker_transport_options = {
        "data_folder_in": str(_home / "broker" / "messages"),
        "data_folder_out": str(_home / "broker" / "messages"),
        "control_folder": str(_home / "broker" / "control"),
        "polling_interval": 0.25,  # seconds; Celery's default is 1
    }
    for _folder in ("messages", "control"):
        (_home / "broker" / _folder).mkdir(parents=True, exist_ok=True)

broker_connection_retry_on_startup = True
result_backend = _broker if _broker and _broker.startswith("redis") else f"db+sqlite:///{_home / 'results.sqlite3'}"
imports = ("example_project.tasks",)
task_default_queue = "example_project"
worker_send_task_events = True
task_send_sent_event = True
#: How long the pool waits for a last word of a process that is gone; Celery's default is 10 s.
worker_lost_wait = 2.0

# One absolute path for every process: a fork of the worker opens its own connection to the same file.
guard_database_url = _os.environ.get("SHOP_DATABASE_URL") or f"sqlite:///{_home / 'runs.sqlite3'}"
# Short times, so that a person can watch; the defaults suit production.
guard_dispatch_interval = 0.5
guard_heartbeat_interval = 2
guard_rescue_after = 15
guard_backoff_base = 0.5
guard_deadline_grace = 3
