"""Dates as invoices print them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

Format = Callable[[date, str], str]  # the date, and the name of its month

FORMATS: dict[str, Format] = {
    "y4-m-d": lambda d, month: f"{d.year}-{d.month:02}-{d.day:02}",
    "d/m/y4": lambda d, month: f"{d.day:02}/{d.month:02}/{d.year}",
    "m/d/y4": lambda d, month: f"{d.month:02}/{d.day:02}/{d.year}",
    "d/m/y2": lambda d, month: f"{d.day:02}/{d.month:02}/{d.year % 100:02}",
    "d.m.y4": lambda d, month: f"{d.day:02}.{d.month:02}.{d.year}",
    "d.m.y2": lambda d, month: f"{d.day:02}.{d.month:02}.{d.year % 100:02}",
    "d-m-y4": lambda d, month: f"{d.day:02}-{d.month:02}-{d.year}",
    "d-m-y2": lambda d, month: f"{d.day:02}-{d.month:02}-{d.year % 100:02}",
    "d-mon-y2": lambda d, month: f"{d.day:02}-{month[:3]}-{d.year % 100:02}",
    "d month y4": lambda d, month: f"{d.day} {month} {d.year}",
    "d. month y4": lambda d, month: f"{d.day}. {month} {d.year}",
    "d. mon y4": lambda d, month: f"{d.day}. {month[:3]}. {d.year}",
    "month d, y4": lambda d, month: f"{month} {d.day}, {d.year}",
    "mon d, y4": lambda d, month: f"{month[:3]} {d.day}, {d.year}",
}
