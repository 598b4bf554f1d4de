"""Reading a customs tariff. It stands for a library that knows nothing of Celery and raises an error of its own."""

from __future__ import annotations

from decimal import Decimal

__all__ = ["TariffTableError", "duty"]


class TariffTableError(Exception):
    """A line of the table has no rate."""


def duty(table: str, goods: str) -> Decimal:
    """Return the percentage that a table of ``goods=percent`` lines sets, 0 for goods it does not name."""
    rates = dict(_rate(number, line) for number, line in enumerate(table.splitlines(), start=1))
    return rates.get(goods, Decimal(0))


def _rate(number: int, line: str) -> tuple[str, Decimal]:
    goods, separator, percent = line.partition("=")
    if not separator:
        raise TariffTableError(f"line {number} has no rate: {line!r}")
    return goods, Decimal(percent)
