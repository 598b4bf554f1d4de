"""The shop's guarded tasks. Each asks what time is left before it waits for anybody."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery_guard import current_run
from example_project import tariff
from example_project.app import app
from example_project.client import BadAddress, ServiceBusy, get_json, post_json, post_json_async
from example_project.folders import exports, home, mails, whole_file

__all__ = [
    "declare_customs",
    "export_month",
    "export_order",
    "export_refunds",
    "export_statement",
    "pay_supplier",
    "send_coupon",
    "send_receipt",
]

#: The longest that any partner is given for one answer; less when the deadline is nearer.
PATIENCE = 20.0
COLUMNS = ("order", "goods", "quantity", "price")

partner = {"retryable": (ServiceBusy,), "non_retryable": (BadAddress,), "deadline": timedelta(seconds=45)}


@app.task(**partner)
def export_order(order_id: int) -> str:
    """Write one order as CSV and return the file's path below the working folder."""
    order = get_json(f"/orders/{order_id}", timeout=current_run().timeout(at_most=PATIENCE))
    return _export(f"order-{order_id}.csv", COLUMNS, order["lines"])


@app.task(**partner)
def export_month(month: str, pages: int, power_cut_in_attempt: int = 0) -> str:
    """Write a month of orders, page by page, as one CSV file.

    Args:
        month: such as ``2026-10``.
        pages: how many pages the partner has.
        power_cut_in_attempt: the attempt whose process is killed half-way, for the demo.
    """

    def lines() -> Iterable[Sequence[Any]]:
        for page in range(1, pages + 1):
            current_run().check()
            yield from get_json(f"/months/{month}/{page}", timeout=current_run().timeout(at_most=PATIENCE))["lines"]
            if page > pages // 2 and current_run().attempt == power_cut_in_attempt:
                power_cut()

    return _export(f"month-{month}.csv", COLUMNS, lines())


@app.task(**partner)
def export_statement(bank: str) -> str:
    """Write the bank's statement as CSV."""
    statement = get_json(f"/banks/{bank}", timeout=current_run().timeout(at_most=PATIENCE))
    return _export(f"statement-{bank}.csv", ("day", "amount"), statement["bookings"])


@app.task(**partner)
def export_refunds(amounts: list[str]) -> str:
    """Write refunds, given as text, with their sum."""
    numbers = [float(amount) for amount in amounts]
    return _export("refunds.csv", ("amount",), [[number] for number in (*numbers, sum(numbers))])


@app.task(**partner)
def declare_customs(order_id: int, goods: str) -> str:
    """Write a customs declaration with today's tariff."""
    table = get_json("/tariff", timeout=current_run().timeout(at_most=PATIENCE))["table"]
    return _export(f"customs-{order_id}.csv", ("goods", "percent"), [[goods, tariff.duty(table, goods)]])


@app.task(**partner)
async def send_receipt(order_id: int, address: str) -> str:
    """Mail a receipt and keep a copy; return the copy's path below the working folder."""
    return await _send(f"receipt-{order_id}", address, {"subject": f"Your order {order_id}"})


@app.task(**partner)
async def send_coupon(address: str, percent: int) -> str:
    """Mail a coupon; it is worth nothing after its deadline."""
    return await _send(f"coupon-{percent}", address, {"subject": f"{percent} % off, for a moment"})


@app.task(**partner, on_worker_lost="fail")
def pay_supplier(supplier: str, cents: int, power_cut_in_attempt: int = 0) -> str:
    """Transfer money and note it down. The bank knows no idempotency key, so a lost attempt is never repeated."""
    post_json(f"/transfers/{supplier}", {"cents": cents}, timeout=current_run().timeout(at_most=PATIENCE))
    if current_run().attempt == power_cut_in_attempt:
        power_cut()
    return _export(f"transfer-{supplier}.csv", ("supplier", "cents"), [[supplier, cents]])


def power_cut() -> None:
    """Kill this process as an out-of-memory killer would: no clean-up, no last word."""
    os.kill(os.getpid(), signal.SIGKILL)


def _export(name: str, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    target = exports() / name
    with whole_file(target) as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(lines)
    return _below_home(target)


async def _send(name: str, address: str, mail: dict[str, str]) -> str:
    run = current_run()
    timeout = run.timeout(at_most=PATIENCE)
    await post_json_async(f"/mailboxes/{address}", mail, timeout=timeout, idempotency_key=run.idempotency_key)
    target = mails() / f"{name}.json"
    with whole_file(target) as file:
        json.dump({**mail, "to": address, "run": run.id, "attempt": run.attempt}, file)
    return _below_home(target)


def _below_home(file: Path) -> str:
    return file.relative_to(home()).as_posix()
