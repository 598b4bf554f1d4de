"""What the page on transactions says to users of Django, in a Django."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks

ROOT = Path(__file__).parents[2]

BEFORE = """
import django
from celery import Celery
from django.conf import settings
from celery_guard import GuardedTask

settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "django.db"}})
django.setup()
app = Celery("shop", broker="memory://", task_cls=GuardedTask)


@app.task
def send_receipt(order_id): ...


class order:
    id = 42

    @staticmethod
    def save(): ...

"""
#: A transaction around that of the page ends in this way.
AROUND = """
from django.db import transaction

try:
    with transaction.atomic():
        exec(page)
        if {fails}:
            raise KeyError("the order is refused after all")
except KeyError:
    pass
print("created", send_receipt.apply_async((42,), idempotency_key="receipt-42").created)
"""


@pytest.mark.parametrize(("fails", "said"), [(False, "created False"), (True, "created True")])
def test_the_run_exists_exactly_when_the_order_does(fails: bool, said: str, tmp_path: Path) -> None:
    pytest.importorskip("django")
    page = (ROOT / "docs" / "how-to" / "transactions.md").read_text(encoding="utf-8")
    (code,) = (block.text for block in blocks(page) if "django" in block.text)
    (tmp_path / "shop.py").write_text(f"{BEFORE}page = {code!r}\n{AROUND.format(fails=fails)}")

    done = subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert done.stdout.strip() == said, done.stderr
