"""Tasks for the contract with pytest-celery."""

import os
from pathlib import Path

from celery import shared_task

from celery_guard import GuardedTask
from tests.infra.polling import eventually


@shared_task(base=GuardedTask)
def multiply(one, other):
    return one * other


@shared_task(base=GuardedTask, bind=True)
def held(self, folder):
    """Note who runs it, then wait for the file ``go``."""
    with open(Path(folder, "starts"), "a") as starts:
        print(self.request.hostname, os.getpid(), file=starts)
    eventually(Path(folder, "go").exists, within=60)
    return self.request.hostname
