"""Amounts as people read them."""

from decimal import Decimal

from leaseway.domain.budgets.budget import CURRENCIES, MICRO


def amount(micros: int, unit: str) -> str:
    """12.50, 25, 1,000,000: money has two places or none, or as many as it takes."""
    value = (Decimal(micros) / MICRO).normalize()
    text = f"{value:,f}"
    whole, _, places = text.partition(".")
    return f"{whole}.{places.ljust(2, '0')}" if places and unit in CURRENCIES else text


def of(micros: int, limit_micros: int, unit: str) -> str:
    """12.50 of 25 usd"""
    return f"{amount(micros, unit)} of {amount(limit_micros, unit)} {unit}"
