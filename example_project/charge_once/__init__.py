"""One order, charged once: the same misfortunes happen to a plain Celery task and to a guarded one."""

from celery import Celery

__all__ = ["app"]

app = Celery("charge_once", include=["example_project.charge_once.tasks"], set_as_current=False)
app.config_from_object("example_project.celeryconfig")
